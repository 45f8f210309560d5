"""Block barriers: how an instruction names one, and what is wrong with those who meet at it."""

from __future__ import annotations

import numpy as np

from .ops import UnknownInstruction
from .ptx import Instruction
from .shadow import Ints
from .state import Lanes


def report_divergence(lanes: Lanes, ins: Instruction, group: Ints, places: Ints, gone: int) -> None:
    """Report a barrier that ``gone`` threads of the block never reach, or that one warp reaches at several places.

    ``group`` are the lanes that wait and ``places`` where. Hardware since Volta lets threads that have left be missing;
    the language does not. Warps may wait at different barrier instructions, the threads of one warp may not.
    """
    if gone:
        text = f"{gone} of {lanes.threads} threads of the block left the kernel without reaching it: {ins.text}"
        lanes.report("divergent barrier", ins, group, np.ones(1, bool), None, text)
    if (places != places[0]).any():
        warps = lanes.base_warp[group]
        least, most = np.full(int(warps.max()) + 1, places.max()), np.zeros(int(warps.max()) + 1, np.int64)
        np.minimum.at(least, warps, places)
        np.maximum.at(most, warps, places)
        split = (least < most)[warps]
        if split.any():
            text = f"threads of one warp wait at different barriers: {ins.text}"
            lanes.report("divergent barrier", ins, group, split, None, text)


def barrier_form(ins: Instruction) -> tuple[int, int, str]:
    """Number, thread count (0: all) and kind ("sync", "arrive" or "red") of a barrier instruction."""
    flags = [p for p in ins.parts[1:] if p not in ("cta", "aligned")]
    kind = flags[0] if flags else ""
    operands = list(ins.operands)
    if kind == "red":
        operands = operands[1:-1]
    known = {"sync", "arrive", "red", "popc", "and", "or", "u32", "pred"}
    if kind not in ("sync", "arrive", "red") or set(flags) - known:
        raise UnknownInstruction(ins)
    try:
        numbers = [int(o, 0) for o in operands]
    except ValueError:
        raise UnknownInstruction(ins, "has a barrier number in a register, which is not supported") from None
    return numbers[0] if numbers else 0, numbers[1] if len(numbers) > 1 else 0, kind
