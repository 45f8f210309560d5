"""Hints: to caches, to the scheduler and to the launch of the next kernel. They change no result (PTX ISA 9.7.9, 9.7.19)."""

# ruff: noqa: ARG001 - every entry of the table takes the instruction and the lanes

from __future__ import annotations

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.values import Ints
from ._table import Step, destination, step


@step("prefetch")
@step("prefetchu")
@step("applypriority")
@step("nanosleep", ("u32",))
@step("griddepcontrol")
def _nothing(ins: Instruction, lanes: Lanes) -> Step:
    return lambda sel: None


@step("discard")
def _discard(ins: Instruction, lanes: Lanes) -> Step:
    """Leaves memory with undefined contents. Reads of it before the next write are not reported."""
    return lambda sel: None


@step("createpolicy", ("b64",))
def _createpolicy(ins: Instruction, lanes: Lanes) -> Step:
    """Gives 0: a cache policy has no effect here."""
    out = destination(lanes, ins, ins.operands[0], "b64")[0]

    def create(sel: Ints | None) -> None:
        out[slice(None) if sel is None else sel] = 0

    return create
