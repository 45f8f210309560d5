"""Loads whose value only a compare-and-swap at the same address uses as its guess: they do not race with other threads.

``old = *p; do { seen = old; old = atomicCAS(p, seen, f(seen)); } while (old != seen);`` reads ``*p`` without an atomic. If
another thread changes it meanwhile, the comparison fails, and the loop goes on with the value that the atomic returned.
"""

from __future__ import annotations

from .instructions import Instruction
from .program import Program, found_once
from .variables import ptx_integer

#: A base (a register, a variable or a number), and the bytes added to it.
_Address = tuple[str, int]


@found_once
def compared_loads(program: Program) -> frozenset[int]:
    """The loads, by index, whose result is the comparand of a compare-and-swap at the address that they read."""
    swaps = [ins for ins in program.code if ins.parts[0] == "atom" and "cas" in ins.parts and len(ins.operands) == 4]
    if not swaps:
        return frozenset()
    writers: dict[str, list[Instruction]] = {}
    for ins in program.code:
        if len(ins.operands) > 1 and ins.parts[0] not in ("st", "red"):
            writers.setdefault(ins.operands[0], []).append(ins)
    found = set()
    for swap in swaps:
        address = _address(swap.operands[1], writers)
        for ins in _origins(swap.operands[2], writers):
            if ins.parts[0] == "ld" and _address(ins.operands[1], writers) == address:
                found.add(ins.index)
    return frozenset(found)


def _origins(register: str, writers: dict[str, list[Instruction]]) -> list[Instruction]:
    """The instructions whose result a register holds, possibly after moves."""
    found, waiting, seen = [], [register], {register}
    while waiting:
        for ins in writers.get(waiting.pop(), ()):
            source = ins.operands[1]
            if ins.parts[0] != "mov":
                found.append(ins)
            elif source not in seen:
                seen.add(source)
                waiting.append(source)
    return found


def _address(operand: str, writers: dict[str, list[Instruction]]) -> _Address:
    """``[%rd1+8]`` as its base and offset, where registers that are written once are replaced by what they hold."""
    base, _, added = operand.strip("[] ").partition("+")
    offset = ptx_integer(added.strip() or "0") or 0
    base = base.strip()
    while len(of_base := writers.get(base, [])) == 1:
        (ins,) = of_base
        step = ptx_integer(ins.operands[2]) if ins.parts[0] == "add" and len(ins.operands) == 3 else None
        if ins.guard or (ins.parts[0] not in ("mov", "cvta") and step is None):
            break
        base, offset = ins.operands[1], offset + (step or 0)
    return base, offset
