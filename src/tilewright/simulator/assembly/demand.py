"""Whether the value of a load is used: compilers load more than the source asks for.

NVVM turns ``if (p) v = s[5];`` into a load for every thread and a ``selp``, and three floats of a ``float4`` into a load
of all four. A value in a register that no instruction uses, or that a ``selp`` does not select, was not read by the source.
"""

from __future__ import annotations

import functools
import re
from collections import Counter

from .instructions import Instruction
from .program import Program, found_once

#: A predicate, and the value with which it selects a loaded value.
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
        """Conditions, on predicates written before ``load``, under which its result is used; one suffices.

        Empty: it is not used, or only selected by predicates that are written later. None: it has to be taken as used.
        """
        return [] if register == "_" else self._needed(load, register, load.index, _FAR)

    def copied(self, register: str) -> bool:
        """Whether a result is only stored, unchanged; a structure that is copied so may hold unwritten padding bytes."""
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
    """Whether the values of its loads are used."""
    return Demand(program)


def _has_result(ins: Instruction) -> bool:
    """Whether the first operand of an instruction is its result."""
    return ins.parts[0] not in ("st", "red", "bra", "brx", "bar", "barrier", "cp", "stmatrix") and not (
        ins.operands and ins.operands[0].startswith("[")
    )


@functools.lru_cache(maxsize=1 << 16)
def _registers(operand: str) -> tuple[str, ...]:
    return tuple(re.findall(r"%[\w$.]+", operand))
