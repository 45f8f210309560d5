"""Which operands a kernel may write, found from its code: the others need no check for races."""

from __future__ import annotations

import functools
import re

from .instructions import Instruction
from .program import Program, found_once

#: The source of an address that was loaded from memory: it may point anywhere.
MEMORY = "memory"
_STORES = ("st", "red")


@functools.lru_cache(maxsize=1 << 16)
def operand_names(operand: str) -> tuple[str, ...]:
    """The names in an operand."""
    return tuple(re.findall(r"[A-Za-z_$%][\w$.]*", operand))


@found_once
def pointers_written(program: Program) -> set[str] | None:
    """Parameters and variables that the address of a store or atomic to global memory may come from.

    Follows values through registers and the arguments of calls, in any order of execution. None means any operand: an
    address was loaded from memory.
    """
    roots = {p.name for p in program.entry.params} | {v.name for v in program.variables.values() if v.space == "global"}
    flows: dict[str, set[str]] = {}
    changed = True
    while changed:
        changed = False
        for ins in program.code:
            sources = _sources(ins, flows, roots)
            for word in operand_names(ins.operands[0]) if sources else ():
                known = flows.setdefault(word, set())
                if not sources <= known:
                    known |= sources
                    changed = True
    written: set[str] = set()
    for ins in program.code:
        if not _writes_global(ins) or len(ins.operands) < 2:
            continue
        origins = _origins(ins.operands[1 if ins.parts[0] == "atom" else 0], flows, roots)
        if not origins or MEMORY in origins:
            return None
        written |= origins
    return written


def _writes_global(ins: Instruction) -> bool:
    """Whether an instruction may write global memory."""
    if ins.parts[0] == "cp":  # the copy engine, from shared to global memory
        return "bulk_group" in ins.parts
    return ins.parts[0] in (*_STORES, "atom") and not {"shared", "local", "param"} & set(ins.parts)


def _sources(ins: Instruction, flows: dict[str, set[str]], roots: set[str]) -> set[str]:
    """What the result of an instruction may be derived from; a loaded value of 32 bits or fewer is no address."""
    name = ins.parts[0]
    if len(ins.operands) < 2 or (name in _STORES and "param" not in ins.parts):
        return set()
    if (name in ("ld", "ldu") and "param" not in ins.parts) or name == "atom":
        return {MEMORY} if ins.parts[-1].endswith(("64", "128")) else set()
    return set().union(*(_origins(operand, flows, roots) for operand in ins.operands[1:]))


def _origins(operand: str, flows: dict[str, set[str]], roots: set[str]) -> set[str]:
    origins: set[str] = set()
    for word in operand_names(operand):
        origins |= flows.get(word, set()) | ({word} if word in roots else set())
    return origins
