"""Loops of the PTX that run a constant number of rounds, and how far each round moves an address.

NVVM leaves ``for (int i = 0; i < 8; i++)`` as a loop of one basic block, in which registers grow by constants:
``add.s32 %r46, %r46, 8; add.s32 %r48, %r48, 512; setp.ne.s32 %p2, %r48, 2304; @%p2 bra …``. ptxas unrolls such a loop, and
may then move the bytes of several rounds with one wide access.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .instructions import Instruction
from .program import BasicBlock, Program

#: Loops of more rounds are not looked at; ptxas does not unroll them.
MOST_ROUNDS = 1024
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
#: The most definitions that are followed to where an address comes from.
_FAR = 16


@dataclass(frozen=True)
class Stride:
    """How an address moves in such a loop: in round i it is the sum of ``roots``, ``start`` and i times ``step``."""

    rounds: int
    roots: tuple[str, ...]
    start: int
    step: int


@dataclass(frozen=True)
class _Value:
    """A register as a sum: of other registers or symbols, a constant, and a step for each round of the loop."""

    roots: tuple[str, ...]
    start: int = 0
    step: int = 0

    def plus(self, other: _Value) -> _Value:
        return _Value(tuple(sorted(self.roots + other.roots)), self.start + other.start, self.step + other.step)


class CountedLoops:
    """The loops of a program that consist of one basic block and run a constant number of rounds."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._writers: dict[str, list[Instruction]] = {}
        for ins in program.code:
            for name in _written(ins):
                self._writers.setdefault(name, []).append(ins)
        self._rounds = {block.index: rounds for block in program.blocks if (rounds := self._rounds_of(block)) > 1}

    def stride(self, block: BasicBlock, base: str, at: int) -> Stride | None:
        """How the register ``base`` moves from round to round, as read by instruction ``at``; None if that is unknown."""
        value = self._value(base, block, at, _FAR) if block.index in self._rounds else None
        return Stride(self._rounds[block.index], value.roots, value.start, value.step) if value else None

    def _value(self, operand: str, block: BasicBlock, at: int, far: int) -> _Value | None:
        """An operand of an instruction in a loop."""
        if (number := _number(operand)) is not None:
            return _Value((), number)
        inside = self._inside(operand, block)
        if not inside:
            return self._start(operand, block, far)
        (writer,) = inside if len(inside) == 1 else (None,)
        if writer is None or writer.guard or not far:
            return None
        if step := _increment(writer):
            first = self._start(operand, block, far)
            return first.plus(_Value((), step if writer.index < at else 0, step))
        parts = [self._value(x, block, writer.index, far - 1) for x in _terms(writer)] if writer.index < at else []
        return _total(parts)

    def _start(self, operand: str, block: BasicBlock, far: int) -> _Value:
        """An operand at the start of a loop."""
        if (number := _number(operand)) is not None:
            return _Value((), number)
        outside = self._outside(operand, block)
        numbers = {_number(ins.operands[1]) if ins.parts[0] == "mov" and not ins.guard else None for ins in outside}
        if len(numbers) == 1 and (number := numbers.pop()) is not None:
            return _Value((), number)
        if len(outside) == 1 and not outside[0].guard and far:
            terms = _terms(outside[0])
            # A register that is written several times may have had another value when it was read here.
            if all(len(self._writers.get(term, [])) < 2 for term in terms):
                return _total([self._start(term, block, far - 1) for term in terms]) or _Value((operand,))
        return _Value((operand,))

    def _inside(self, register: str, block: BasicBlock) -> list[Instruction]:
        return [ins for ins in self._writers.get(register, []) if block.first <= ins.index <= block.last]

    def _outside(self, register: str, block: BasicBlock) -> list[Instruction]:
        return [ins for ins in self._writers.get(register, []) if not block.first <= ins.index <= block.last]

    def _rounds_of(self, block: BasicBlock) -> int:
        """The number of rounds of a loop that is this block; 0 if it is none, or if the number is not constant."""
        branch = self.program.code[block.last]
        if (
            branch.parts[0] != "bra"
            or branch.guard is None
            or self.program.labels.get(branch.operands[0]) != block.first
        ):
            return 0
        tests = self._inside(branch.guard[0], block)
        if len(tests) != 1 or tests[0].parts[0] != "setp" or len(tests[0].operands) != 3 or tests[0].guard:
            return 0
        _, register, bound = tests[0].operands
        holds, limit = _COMPARE.get(tests[0].parts[1]), _number(bound)
        inside, outside = self._inside(register, block), self._outside(register, block)
        step = _increment(inside[0]) if len(inside) == 1 else None
        start = self._start(register, block, _FAR)
        if holds is None or limit is None or not step or not outside or start.roots:
            return 0
        late = inside[0].index > tests[0].index  # the register grows after it was compared
        for rounds in range(1, MOST_ROUNDS + 1):
            value = start.start + step * (rounds - late)
            if holds(value, limit) is branch.guard[1]:  # the branch is taken where the predicate is not ``negated``
                return rounds
        return 0


def _written(ins: Instruction) -> Iterator[str]:
    """The registers that an instruction writes: those of its first operand, unless it stores or branches."""
    if ins.operands and ins.parts[0] not in ("st", "red", "bra", "brx") and not ins.operands[0].startswith("["):
        yield from re.findall(r"%[\w$.]+", ins.operands[0])


def _number(text: str) -> int | None:
    return int(text, 0) if re.fullmatch(r"-?(?:0x[0-9a-fA-F]+|\d+)", text) else None


def _increment(ins: Instruction) -> int | None:
    """What an instruction adds to the register that it writes; None if it does anything else."""
    terms = _terms(ins)
    if len(terms) != 2 or terms[0] != ins.operands[0] or ins.guard:
        return None
    return _number(terms[1])


def _terms(ins: Instruction) -> list[str]:
    """The operands whose sum an instruction writes; empty if it does anything else."""
    name, operands = ins.parts[0], ins.operands
    if name == "mov" and len(operands) == 2:
        return [operands[1]]
    if name == "add" and len(operands) == 3 and ins.parts[1][:1] in "su":
        return [*operands[1:]]
    return []


def _total(parts: Sequence[_Value | None]) -> _Value | None:
    """The sum of values; None if one is unknown, or if there are none."""
    known = [part for part in parts if part is not None]
    return functools.reduce(_Value.plus, known) if known and len(known) == len(parts) else None
