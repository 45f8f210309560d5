"""Instructions that compute nothing: hints, ``setmaxnreg``, and ``vprintf``, the function that printf calls.

The hints concern caches, the scheduler and the launch of the next kernel (PTX ISA 9.7.9, 9.7.19). By ``setmaxnreg``,
the warps of a warp group release registers, or request more registers (9.7.19.5). ``vprintf`` gets the generic address
of a format, and the generic address of the format's arguments.
"""

# ruff: noqa: ARG001 - every entry of the table takes the instruction and the lanes

from __future__ import annotations

from functools import partial

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.printed import formatted
from ..machine.registers import UNIT
from ..machine.spaces import WINDOW
from ..machine.values import Array, Ints
from ._table import Step, UnknownInstruction, check_modifiers, destination, number_of, one_of, step

# ---- hints, which change no result -----------------------------------------------------------------------------------


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


# ---- registers given back and taken ----------------------------------------------------------------------------------


@step("setmaxnreg", ("u32",))
def _setmaxnreg(ins: Instruction, lanes: Lanes) -> Step:
    one_of(ins, check_modifiers(ins, ("inc", "dec", "sync", "aligned")), ("inc", "dec"))
    count = number_of(ins, ins.operands[0])
    if not 24 <= count <= 256 or count % UNIT:
        raise UnknownInstruction(ins, "must name a multiple of 8 from 24 to 256")

    def change(sel: Ints | None) -> None:
        lanes.register_pool.set(ins, lanes.every if sel is None else sel, count)

    return change


# ---- printf ----------------------------------------------------------------------------------------------------------

#: The most bytes of a format or string, and of the arguments of one call.
_LONGEST, _ARGUMENTS = 1 << 16, 33 * 8


@step("vprintf")
def _vprintf(ins: Instruction, lanes: Lanes) -> Step:
    forms, arguments = (lanes.source(operand, "u64", ins) for operand in ins.operands[1:3])

    def show(sel: Ints | None) -> None:
        for lane in (lanes.every if sel is None else sel).tolist():
            block, thread = int(lanes.grid_blocks[lanes.of_block[lane]]), int(lanes.tid[lane])
            lanes.launch.printed.add(block, thread, partial(_text, lanes, lane, forms, arguments))

    return show


def _text(lanes: Lanes, lane: int, forms: Array, arguments: Array) -> str:
    packed = _bytes(lanes, lane, int(arguments[lane]), _ARGUMENTS)
    return formatted(_string(lanes, lane, int(forms[lane])), packed, partial(_string, lanes, lane))


def _string(lanes: Lanes, lane: int, address: int) -> str:
    return _bytes(lanes, lane, address, _LONGEST).split(b"\0")[0].decode(errors="replace")


def _bytes(lanes: Lanes, lane: int, address: int, most: int) -> bytes:
    """At most so many bytes at a generic address, as a lane sees them; none at an address that is not valid."""
    name = next((name for name, base in WINDOW.items() if base >> 56 == address >> 56), "global")
    space, own = lanes.spaces[name], address - WINDOW.get(name, 0)
    region = space.holding(own, own + 1)
    if region is None:
        return b""
    at = int(space.offsets(region, np.array([own]), np.array([lane]))[0])
    length = next((span.end - own for span in region.spans if span.first <= own < span.end), region.nbytes - at)
    return region.data[at : at + min(most, length)].tobytes()
