"""Which operands a kernel may write, read off its text: the others need no watching for races."""

from __future__ import annotations

import re

from .program import Program


def words(operand: str) -> list[str]:
    """The names in an operand."""
    return re.findall(r"[A-Za-z_$%][\w$.]*", operand)


def pointers_written(program: Program) -> set[str] | None:
    """Parameters and variables that the address of a store or atomic to global memory may come from.

    Follows values through registers, in any order of execution. None means any: an address came out of memory.
    """
    flows: dict[str, set[str]] = {}
    params = {p.name for p in program.entry.params}
    roots = params | {v.name for v in program.variables.values() if v.space in ("global", "param")}
    through = {"st", "atom", "red"}
    changed = True
    while changed:
        changed = False
        for ins in program.code:
            if not ins.operands:
                continue
            into = set(words(ins.operands[0]))
            taken = {w for o in ins.operands[1:] for w in words(o)}
            sources: set[str] = set()
            for word in taken:
                sources |= flows.get(word, set()) | ({word} if word in roots else set())
            for word in into:
                held = flows.setdefault(word, set())
                if not sources <= held:
                    held |= sources
                    changed = True
    written: set[str] = set()
    for ins in program.code:
        if ins.parts[0] not in through or {"shared", "local", "param"} & set(ins.parts):
            continue
        operand = ins.operands[1] if ins.parts[0] == "atom" else ins.operands[0]
        found: set[str] = set()
        for word in words(operand):
            found |= flows.get(word, set()) | ({word} if word in roots else set())
        if not found:
            return None
        written |= found
    return written
