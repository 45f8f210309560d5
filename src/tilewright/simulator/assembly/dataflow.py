"""Analyses the data flow of a program, to find accesses that need no check for races or for unwritten memory.

Operands that a kernel never writes need no check for races. A load whose value is not used was added by the compiler,
and needs no check for unwritten memory. A load whose value a compare-and-swap checks, and a load that polls in a loop,
do not race with other threads.
"""

from __future__ import annotations

import functools
import re
from collections import Counter

from .instructions import Instruction, ptx_integer
from .program import Program, found_once

# ---- operands that a kernel may write --------------------------------------------------------------------------------

#: The source of an address that was loaded from memory; such an address may point anywhere.
MEMORY = "memory"
_STORES = ("st", "red")


@functools.lru_cache(maxsize=1 << 16)  # programs repeat their operands
def operand_names(operand: str) -> tuple[str, ...]:
    """Return the names of registers and variables in an operand."""
    return tuple(re.findall(r"[A-Za-z_$%][\w$.]*", operand))


@found_once
def pointers_written(program: Program) -> set[str] | None:
    """Return the parameters and variables from which a kernel may compute the address of a store or atomic to global
    memory.

    The analysis follows values through registers and the arguments of calls, in any order of execution. A result of
    None means that any operand may be written, because an address was loaded from memory.
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
        origins = _sources_of(ins.operands[1 if ins.parts[0] == "atom" else 0], flows, roots)
        if not origins or MEMORY in origins:
            return None
        written |= origins
    return written


def _writes_global(ins: Instruction) -> bool:
    """Whether an instruction may write global memory."""
    if ins.parts[0] == "tensormap":
        return "replace" not in ins.parts or "shared" not in ins.parts
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
    return set().union(*(_sources_of(operand, flows, roots) for operand in ins.operands[1:]))


def _sources_of(operand: str, flows: dict[str, set[str]], roots: set[str]) -> set[str]:
    origins: set[str] = set()
    for word in operand_names(operand):
        origins |= flows.get(word, set()) | ({word} if word in roots else set())
    return origins


# ---- loads whose value is not used -----------------------------------------------------------------------------------

#: A predicate, and the value of it for which a loaded value is selected.
Condition = tuple[str, bool]
#: Instructions that have no effect but their result, except ``selp``.
_PURE = {"mov", "add", "sub", "mul", "mad", "fma", "cvt", "and", "or", "xor", "not", "neg", "shl", "shr", "min", "max"}
#: The most instructions followed from a load to a ``selp``.
_FAR = 8


class Demand:
    """Finds, within a basic block, whether the value of a load is used."""

    def __init__(self, program: Program) -> None:
        self.block = {at: block.index for block in program.blocks for at in range(block.first, block.last + 1)}
        self.users: dict[str, list[Instruction]] = {}  # by register
        self.writes: Counter[str] = Counter()  # number of instructions that write a register
        self.writer: dict[str, int] = {}  # the last of them
        for ins in program.code:
            written = _registers(ins.operands[0]) if ins.operands and _has_result(ins) else []
            read = [name for operand in ins.operands[_has_result(ins) :] for name in _registers(operand)]
            for name in dict.fromkeys([*read, *([ins.guard[0]] if ins.guard else [])]):
                self.users.setdefault(name, []).append(ins)
            self.writes.update(written)
            self.writer |= dict.fromkeys(written, ins.index)

    def of(self, load: Instruction, register: str) -> list[Condition] | None:
        """Return the conditions under which the result of ``load`` is used. Each condition is on predicates that were
        written before ``load``; the result is used if at least one condition holds.

        The list of conditions is empty if the result of the load is not used, or is selected only by predicates that
        are written later. None instead of a list means that the result of the load must be assumed to be used.
        """
        return [] if register == "_" else self._needed(load, register, load.index, _FAR)

    def copied(self, register: str) -> bool:
        """Whether the result of a load is only stored, unchanged. A structure that is copied by loads and stores may
        contain padding bytes that were never written."""
        users = self.users.get(register, [])
        return bool(users) and all(
            user.parts[0] == "st" and register not in _registers(user.operands[0]) for user in users
        )

    def _needed(self, load: Instruction, register: str, since: int, far: int) -> list[Condition] | None:
        found: list[Condition] = []
        for user in self.users.get(register, []):
            near = self.block[user.index] == self.block[load.index] and user.index > since
            if not far or not near or user.guard or self.writes[register] > 1:
                return None
            if user.parts[0] == "selp" and register not in _registers(user.operands[3]):
                if self.writes[user.operands[3]] > 1 or user.operands[1] == user.operands[2]:
                    return None
                if self.writer.get(user.operands[3], load.index) < load.index:
                    found.append((user.operands[3], user.operands[1] == register))
                continue
            if user.parts[0] not in _PURE:
                return None
            for name in _registers(user.operands[0]):
                more = self._needed(load, name, user.index, far - 1)
                if more is None:
                    return None
                found += more
        return found


@found_once
def demand_of(program: Program) -> Demand:
    """Return the analysis of a program that tells whether the values of the program's loads are used."""
    return Demand(program)


def _has_result(ins: Instruction) -> bool:
    """Whether the first operand of an instruction is its result."""
    return ins.parts[0] not in ("st", "red", "bra", "brx", "bar", "barrier", "cp", "stmatrix") and not (
        ins.operands and ins.operands[0].startswith("[")
    )


@functools.lru_cache(maxsize=1 << 16)  # programs repeat their operands
def _registers(operand: str) -> tuple[str, ...]:
    return tuple(re.findall(r"%[\w$.]+", operand))


# ---- loads that a compare-and-swap checks ----------------------------------------------------------------------------

#: A base (a register, a variable or a number), and the bytes added to it.
_Address = tuple[str, int]


@found_once
def compared_loads(program: Program) -> frozenset[int]:
    """Return the loads, by index, whose result is the expected value of a compare-and-swap at the same address."""
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
        for ins in _written_by(swap.operands[2], writers):
            if ins.parts[0] == "ld" and _address(ins.operands[1], writers) == address:
                found.add(ins.index)
    return frozenset(found)


def _written_by(register: str, writers: dict[str, list[Instruction]]) -> list[Instruction]:
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


# ---- loads that wait for another thread ------------------------------------------------------------------------------

_REGISTER = re.compile(r"%[\w$.]+")


@found_once
def polling_loads(program: Program) -> frozenset[int]:
    """Return the volatile loads, by index, whose value decides whether the loop around the load continues, as in
    ``while (*flag == 0);``."""
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
