"""Sums and products of several words: a carry is passed from instruction to instruction (PTX ISA 9.7.2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.values import DTYPES, Array, Ints
from ._table import Step, check_modifiers, destination, size_of, step
from .integer import low_and_high

_WORDS = ("u32", "s32", "u64", "s64")


def _flag(lanes: Lanes) -> Array:
    """The carry of each lane, stored like a register: cleared when a block starts."""
    if "CC.CF" not in lanes.registers:
        lanes.registers["CC.CF"] = np.zeros(lanes.size, bool)
    return lanes.registers["CC.CF"]


def add_words(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """a + b + carry of unsigned words, and the carry out of it."""
    total = a + b
    more = total + carry
    return more, (total < a) | (more < total)


def subtract_words(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """a - b - borrow of unsigned words, and the borrow out of it."""
    rest = a - b
    less = rest - borrow
    return less, (a < b) | (rest < borrow)


def _chained(name: str, takes_carry: bool, operation: Callable[..., tuple[Array, Array]], product: bool) -> None:
    def build(ins: Instruction, lanes: Lanes) -> Step:
        kind = f"u{8 * size_of(ins.parts[-1])}"
        flags = check_modifiers(ins, ("cc", "lo", "hi"))
        inputs = [lanes.source(o, kind, ins) for o in ins.operands[1:]]
        out, flag, dtype = destination(lanes, ins, ins.operands[0], kind)[0], _flag(lanes), DTYPES[kind]
        high = "hi" in flags

        def run(sel: Ints | None) -> None:
            where = slice(None) if sel is None else sel
            a, b, *c = (x if sel is None or x.ndim == 0 else x[sel] for x in inputs)
            if product:
                signed = f"{ins.parts[-1][0]}{kind[1:]}"
                halves = low_and_high(signed, np.asarray(a).view(DTYPES[signed]), np.asarray(b).view(DTYPES[signed]))
                a, b = halves[high].view(dtype), c[0]
            carry = flag[where].astype(dtype) if takes_carry else dtype.type(0)
            out[where], carry_out = operation(a, b, carry)
            if "cc" in flags:
                flag[where] = carry_out

        return run

    step(name, _WORDS)(build)


# The forms of add, sub and mad that neither take nor give a carry are in ``integer``.
for _operation, _gives, _takes in ((add_words, "add.cc", "addc"), (subtract_words, "sub.cc", "subc")):
    _chained(_gives, False, _operation, False)
    _chained(_takes, True, _operation, False)
    _chained(f"{_takes}.cc", True, _operation, False)
_chained("mad.cc", False, add_words, True)
_chained("madc", True, add_words, True)
_chained("madc.cc", True, add_words, True)
