"""Instructions ``clusterlaunchcontrol``, by which a block requests to run a cluster of the grid that has not begun (PTX
ISA 9.7.13.17, 9.7.13.18).

The simulator runs every block of the grid itself and refuses each request. To refuse every request is correct: on a
GPU, too, a request is refused if all clusters have begun already. The answer to a request arrives as an asynchronous
copy of 16 bytes, and follows the rules of other such copies.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..assembly.instructions import Instruction, elements_of
from ..counters.work import NOTHING
from ..machine.lanes import Lanes
from ..machine.transfers import chunks_of
from ..machine.values import Array, Ints
from ._table import Step, UnknownInstruction, destination, step
from .access import address
from .async_copy import CopyEngine, addresses_of, words_of

#: The bytes of an answer. An answer that is not all zero would name a cluster.
ANSWER = 16


@step("clusterlaunchcontrol")
def _cluster_launch_control(ins: Instruction, lanes: Lanes) -> Step:
    words = words_of(ins)
    if words[1:2] == ["try_cancel"]:
        return _try_cancel(ins, lanes, set(words[2:]))
    if words[1:] == ["query_cancel", "is_canceled", "pred", "b128"] and len(ins.operands) == 2:
        out, answer = destination(lanes, ins, ins.operands[0], "pred")[0], lanes.wide_register(ins.operands[1], ins)

        def ask(sel: Ints | None) -> None:
            some = slice(None) if sel is None else sel
            out[some] = answer[some].any(axis=-1)

        return ask
    if words[1:2] == ["query_cancel"] and words[2].startswith("get_first_ctaid") and words[-1] == "b128":
        names = [name for name in elements_of(ins.operands[0]) if name != "_"]
        outs = [destination(lanes, ins, n, "b32")[0] for n in names]

        def name_block(sel: Ints | None) -> None:
            for out in outs:  # undefined after a refusal
                out[slice(None) if sel is None else sel] = 0xFFFFFFFF

        return name_block
    raise UnknownInstruction(ins)


def _try_cancel(ins: Instruction, lanes: Lanes, flags: set[str]) -> Step:
    everywhere = "multicast::cluster::all" in flags
    if flags - {"shared::cta", "multicast::cluster::all"} != {"async", "mbarrier::complete_tx::bytes", "b128"}:
        raise UnknownInstruction(ins)
    engine, narrow = CopyEngine(ins, lanes), "shared::cta" in flags
    into, barriers = (address(operand, lanes, ins, narrow=True) for operand in ins.operands)
    if not narrow and lanes.width(ins.operands[0].strip("[] ").split("+")[0], ins) == 8:
        raise UnknownInstruction(ins, "has generic addresses, which cannot be run")

    def ask(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        for lane, target, at in zip(
            active.tolist(), addresses_of(into, active), addresses_of(barriers, active), strict=True
        ):
            place, barrier = engine.in_shared(target, ANSWER, lane), engine.barrier(at, lane)
            if place is None or barrier is None:
                engine.count_as_arrived(barrier, ANSWER)
                continue
            put = partial(_refuse, place.region.data, place.first)
            mask = (1 << lanes.cluster.size) - 1 if everywhere else None
            engine.load(lane, place, chunks_of(place.first, ANSWER), put, barrier=barrier, mask=mask, work=NOTHING)

    return ask


def _refuse(memory: Array, first: int, block_offset: int) -> None:
    """Store an answer that names no cluster."""
    memory[first + block_offset : first + block_offset + ANSWER] = np.uint8(0)
