"""Whether the value of a load is used: compilers load more than the source asks for.

NVVM turns ``if (p) v = s[5];`` into a load for every thread and a ``selp``, and three floats of a ``float4`` into a load
of all four. A value in a register that no instruction uses, or that a ``selp`` does not select, was not read by the source.
"""

from __future__ import annotations

import re
from collections import Counter

from .instructions import Instruction
from .program import Program

#: A register that is selected where this predicate (first) has this value (second).
Condition = tuple[str, bool]
#: Instructions whose result is all they do, apart from ``selp``.
_PURE = {"mov", "add", "sub", "mul", "mad", "fma", "cvt", "and", "or", "xor", "not", "neg", "shl", "shr", "min", "max"}
#: Instructions followed from a load to a selection.
_FAR = 8


class Demand:
    """Looks ahead in the basic blocks of a program."""

    def __init__(self, program: Program) -> None:
        self.block = {at: block.index for block in program.blocks for at in range(block.first, block.last + 1)}
        self.users: dict[str, list[Instruction]] = {}
        self.made: Counter[str] = Counter()
        self.maker: dict[str, int] = {}
        for ins in program.code:
            made = _registers(ins.operands[0]) if ins.operands and _makes(ins) else []
            read = [name for operand in ins.operands[_makes(ins) :] for name in _registers(operand)]
            for name in dict.fromkeys([*read, *([ins.guard[0]] if ins.guard else [])]):
                self.users.setdefault(name, []).append(ins)
            self.made.update(made)
            self.maker |= dict.fromkeys(made, ins.index)

    def of(self, load: Instruction, register: str) -> list[Condition] | None:
        """The conditions, known before ``load``, any of which makes its result count: none at all where it is not used
        or only a condition could tell that is not known yet; None where it always counts."""
        return [] if register == "_" else self._needed(load, register, load.index, _FAR)

    def copied(self, register: str) -> bool:
        """Whether a result is stored as it is and nothing else: of a structure, bytes that pad it may be among it."""
        users = self.users.get(register, [])
        return bool(users) and all(
            user.parts[0] == "st" and register not in _registers(user.operands[0]) for user in users
        )

    def _needed(self, load: Instruction, register: str, since: int, far: int) -> list[Condition] | None:
        found: list[Condition] = []
        for user in self.users.get(register, []):
            near = self.block[user.index] == self.block[load.index] and user.index > since
            if not far or not near or user.guard or self.made[register] > 1:
                return None
            if user.parts[0] == "selp" and register not in _registers(user.operands[3]):
                if self.made[user.operands[3]] > 1 or user.operands[1] == user.operands[2]:
                    return None
                if self.maker.get(user.operands[3], load.index) < load.index:
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


def _makes(ins: Instruction) -> bool:
    """Whether the first operand is what an instruction makes."""
    return ins.parts[0] not in ("st", "red", "bra", "brx", "bar", "barrier", "cp", "stmatrix") and not (
        ins.operands and ins.operands[0].startswith("[")
    )


def _registers(operand: str) -> list[str]:
    return re.findall(r"%[\w$.]+", operand)
