"""Volatile loads that wait for another thread: those whose value decides whether their own loop goes on."""

from __future__ import annotations

import re

from .program import Program, found_once

_REGISTER = re.compile(r"%[\w$.]+")


@found_once
def polling_loads(program: Program) -> frozenset[int]:
    """The volatile loads, by index, whose value decides whether a loop around them goes on: ``while (*flag == 0);``."""
    volatile = [ins for ins in program.code if ins.parts[0] == "ld" and "volatile" in ins.parts]
    if not volatile:
        return frozenset()
    jumps = [(program.labels.get(ins.operands[0], 0), ins) for ins in program.code if ins.parts[0] == "bra"]
    loops = [(target, ins.index) for target, ins in jumps if target <= ins.index]
    found = set()
    for load in volatile:
        for first, last in loops:
            if first <= load.index <= last:
                derived = _derived(program, first, last, load.operands[0])
                # A jump that leaves the loop, or that goes back in it.
                decides = (
                    jump for target, jump in jumps if first <= jump.index <= last and not jump.index < target <= last
                )
                if any(jump.guard and jump.guard[0] in derived for jump in decides):
                    found.add(load.index)
    return frozenset(found)


def _derived(program: Program, first: int, last: int, register: str) -> set[str]:
    """The registers of a loop whose value depends on one of them, within one round."""
    derived = set(_REGISTER.findall(register))
    for ins in program.code[first : last + 1]:
        if ins.parts[0] in ("st", "red", "bra", "ld", "atom") or len(ins.operands) < 2:
            continue
        if any(derived.intersection(_REGISTER.findall(operand)) for operand in ins.operands[1:]):
            derived.update(_REGISTER.findall(ins.operands[0]))
    return derived
