"""``st.async`` and ``red.async``: stores to another block of the cluster that complete at its mbarrier (PTX ISA 9.7.9.12).

The bytes are stored at once. A thread knows of them when it has waited for the phase of the barrier, and a read before that
is a race.
"""

from __future__ import annotations

from dataclasses import replace

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.mbarriers import Mbarrier
from ..machine.values import Ints
from ._table import TABLE, Step, UnknownInstruction, size_of, step
from .access import address
from .mbarrier import at_barriers

_FORM = {"async", "shared", "cluster", "mbarrier", "complete_tx", "bytes"}
_OPERATIONS = {"inc": ("u32",), "dec": ("u32",), "min": ("u32", "s32"), "max": ("u32", "s32"), "add": ("u32", "s32", "u64"),
               "and": ("b32",), "or": ("b32",), "xor": ("b32",)}  # fmt: skip


@step("st.async", ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"))
def _store(ins: Instruction, lanes: Lanes) -> Step:
    return _remote(ins, lanes, {"weak", "v2", "v4"})


@step("red.async", ("u32", "s32", "u64", "b32"))
def _reduce(ins: Instruction, lanes: Lanes) -> Step:
    if not any(ins.parts[-1] in kinds for name, kinds in _OPERATIONS.items() if name in ins.parts):
        raise UnknownInstruction(ins)
    return _remote(ins, lanes, {"relaxed", *_OPERATIONS})


def _remote(ins: Instruction, lanes: Lanes, allowed: set[str]) -> Step:
    """The plain access, and then its bytes at the barrier, which must be in the same block."""
    flags, kind = ins.parts[1:-1], ins.parts[-1]
    needed = {"shared", "cluster", "complete_tx", "bytes"} <= set(flags)
    if set(flags) - _FORM - allowed or not needed or len(ins.operands) != 3:
        raise UnknownInstruction(ins)
    kept = [flag for flag in flags if flag in allowed - {"weak", "relaxed"}]
    order = [flag for flag in flags if flag == "relaxed"]
    opcode = ".".join([ins.parts[0], *order, "shared::cluster", *kept, kind])
    store = TABLE[ins.parts[0], kind](replace(ins, opcode=opcode, operands=ins.operands[:2]), lanes)
    nbytes = size_of(kind) * next((int(flag[1:]) for flag in flags if flag in ("v2", "v4")), 1)

    def complete(barrier: Mbarrier, some: Ints) -> None:
        lanes.mbarriers.bring(ins, barrier, some, nbytes * some.size)

    arrive = at_barriers(ins, lanes, "shared", address(ins.operands[2], lanes, ins, True), complete)

    def run(sel: Ints | None) -> None:
        store(sel)
        arrive(sel)

    return run
