"""``setmaxnreg``: the warps of a warp group give registers back, or take some (PTX ISA 9.7.19.5)."""

from __future__ import annotations

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.registers import UNIT
from ..machine.values import Ints
from ._table import Step, UnknownInstruction, check_modifiers, number_of, one_of, step


@step("setmaxnreg", ("u32",))
def _setmaxnreg(ins: Instruction, lanes: Lanes) -> Step:
    one_of(ins, check_modifiers(ins, ("inc", "dec", "sync", "aligned")), ("inc", "dec"))
    count = number_of(ins, ins.operands[0])
    if not 24 <= count <= 256 or count % UNIT:
        raise UnknownInstruction(ins, "must name a multiple of 8 from 24 to 256")

    def change(sel: Ints | None) -> None:
        lanes.register_pool.set(ins, lanes.every if sel is None else sel, count)

    return change
