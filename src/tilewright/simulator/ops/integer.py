"""Instructions on whole numbers: arithmetic, carries, logic, shifts and bit fields (PTX ISA 9.7.1, 9.7.2, 9.7.8)."""

# ruff: noqa: ARG001 - every factory of the table takes the type and its modifiers

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.values import DTYPES, Array, Ints
from ._table import (
    BITS,
    INTS,
    Compute,
    Step,
    apply_ufunc,
    check_modifiers,
    destination,
    elementwise,
    number_of,
    size_of,
    step,
    value,
)

# ---- sums and products -----------------------------------------------------------------------------------------------

WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _saturating(ufunc: Any) -> Compute:
    def compute(out: Array, a: Array, b: Array) -> None:
        out[...] = np.clip(ufunc(a.astype(np.int64), b.astype(np.int64)), -(1 << 31), (1 << 31) - 1)

    return compute


@value("add", INTS, ("sat",))
def _add(kind: str, flags: set[str]) -> Compute:
    return _saturating(np.add) if flags else apply_ufunc(np.add)


@value("sub", INTS, ("sat",))
def _sub(kind: str, flags: set[str]) -> Compute:
    return _saturating(np.subtract) if flags else apply_ufunc(np.subtract)


def _high(kind: str, a: Array, b: Array) -> Array:
    """The upper half of the product."""
    if kind in WIDER:
        wide = DTYPES[WIDER[kind]]
        return (a.astype(wide) * b.astype(wide)) >> wide.type(8 * size_of(kind))
    au, bu = a.view(np.uint64), b.view(np.uint64)
    m, s = np.uint64(0xFFFFFFFF), np.uint64(32)
    low = (au & m) * (bu & m)
    mid1, mid2 = (au >> s) * (bu & m), (au & m) * (bu >> s)
    carry = ((low >> s) + (mid1 & m) + (mid2 & m)) >> s
    high = (au >> s) * (bu >> s) + (mid1 >> s) + (mid2 >> s) + carry
    if kind == "s64":  # the unsigned product takes a negative factor 2**64 too high
        high = high - np.where(a < 0, bu, np.uint64(0)) - np.where(b < 0, au, np.uint64(0))
    return high


def low_and_high(kind: str, a: Array, b: Array) -> tuple[Array, Array]:
    """Return the low and the high half of a product, as unsigned words."""
    unsigned = np.dtype(f"u{size_of(kind)}")
    return _cast(a * b, unsigned), _cast(_high(kind, a, b), unsigned)


def _product(kind: str, flags: set[str]) -> Any:
    if "wide" in flags:
        wide = DTYPES[WIDER[kind]]
        return lambda a, b: a.astype(wide) * b.astype(wide)
    if "hi" in flags:
        dtype = DTYPES[kind]
        return lambda a, b: _cast(_high(kind, a, b), dtype)
    return lambda a, b: a * b


def _cast(x: Array, dtype: Any) -> Array:
    """Keep the low bits."""
    x = np.asarray(x)
    return x.view(dtype) if x.dtype.itemsize == dtype.itemsize else x.astype(dtype)


def _wide(kind: str, flags: set[str]) -> str:
    if "wide" in flags and kind not in WIDER:
        raise NotImplementedError(f"has no type wider than {kind}")
    return WIDER[kind] if "wide" in flags else kind


@value("mul", INTS, ("lo", "hi", "wide"), out=_wide)
def _mul(kind: str, flags: set[str]) -> Compute:
    if flags == {"wide"}:
        wide = DTYPES[WIDER[kind]]
        return lambda out, a, b: np.multiply(a, b, out=out, dtype=wide)
    if "hi" not in flags:
        return apply_ufunc(np.multiply)
    product = _product(kind, flags)

    def compute(out: Array, a: Array, b: Array) -> None:
        out[...] = product(a, b)

    return compute


@value("mad", INTS, ("lo", "hi", "wide", "sat"), out=_wide, takes=lambda k, f: (k, k, _wide(k, f)))
def _mad(kind: str, flags: set[str]) -> Compute:
    product = _product(kind, flags)
    if "sat" in flags:
        return _saturated_sum(product)

    def compute(out: Array, a: Array, b: Array, c: Array) -> None:
        np.add(product(a, b), c, out=out)

    return compute


def _saturated_sum(product: Any) -> Compute:
    def compute(out: Array, a: Array, b: Array, c: Array) -> None:
        out[...] = np.clip(product(a, b).astype(np.int64) + c, -(1 << 31), (1 << 31) - 1)

    return compute


def _product24(kind: str, flags: set[str]) -> Any:
    """Bits 0 to 31, or 16 to 47, of the product of the low 24 bits."""
    dtype, wide = DTYPES[kind], DTYPES[WIDER[kind]]

    def product(a: Array, b: Array) -> Array:
        x, y = (((v << dtype.type(8)) >> dtype.type(8)).astype(wide) for v in (a, b))
        return _cast((x * y) >> wide.type(16 if "hi" in flags else 0), dtype)

    return product


@value("mul24", ("u32", "s32"), ("lo", "hi"))
def _mul24(kind: str, flags: set[str]) -> Compute:
    product = _product24(kind, flags)

    def compute(out: Array, a: Array, b: Array) -> None:
        out[...] = product(a, b)

    return compute


@value("mad24", ("u32", "s32"), ("lo", "hi", "sat"))
def _mad24(kind: str, flags: set[str]) -> Compute:
    product = _product24(kind, flags)
    return _saturated_sum(product) if "sat" in flags else lambda out, a, b, c: np.add(product(a, b), c, out=out)


@value("sad", INTS, takes=lambda k, f: (k, k, k))
def _sad(kind: str, flags: set[str]) -> Compute:
    return lambda out, a, b, c: np.add(c, np.where(a < b, b - a, a - b), out=out)


def _quotient(a: Array, b: Array) -> Array:
    """Division toward zero; by zero gives all ones, as GPUs do."""
    q = np.floor_divide(a, b)
    if q.dtype.kind == "i":
        q = q + ((q * b != a) & ((a < 0) != (b < 0))).astype(q.dtype)
    return np.where(b == 0, ~np.zeros((), q.dtype), q)


@value("div", INTS)
def _div(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, a: Array, b: Array) -> None:
        out[...] = _quotient(a, b)

    return compute


@value("rem", INTS)
def _rem(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, a: Array, b: Array) -> None:
        remainder = a - _quotient(a, b) * b
        out[...] = np.where(b == 0, ~np.zeros((), remainder.dtype), remainder)  # by zero all ones, as the quotient

    return compute


@value("min", INTS)
def _min(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.minimum)


@value("max", INTS)
def _max(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.maximum)


@value("abs", ("s16", "s32", "s64"))
def _abs(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.absolute)


@value("neg", ("s16", "s32", "s64"))
def _neg(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.negative)


def _part(x: Array, i: int, bits: int, kind: str) -> Array:
    """Part i, of ``bits`` bits, of each word; signed if ``kind`` is s32."""
    part = (x >> np.uint32(bits * i)).astype(f"u{bits // 8}")
    return (part.view(f"i{bits // 8}") if kind == "s32" else part).astype(np.int64)


def _dot(count: int, kind: str, flags: set[str]) -> Compute:
    """``dp4a.atype.btype`` and ``dp2a.lo.atype.btype``: the words of a are cut into ``count``, those of b into bytes."""
    first = next(iter(flags - {"lo", "hi"}), kind)  # the set holds two equal types once
    start = 2 if "hi" in flags else 0

    def compute(out: Array, a: Array, b: Array, c: Array) -> None:
        total = c.astype(np.int64)
        for i in range(count):
            total = total + _part(a, i, 32 // count, first) * _part(b, start + i, 8, kind)
        out[...] = total.astype(np.int32)

    return compute


def _dot_types(kind: str, flags: set[str]) -> tuple[str, ...]:
    return "b32", "b32", "s32"


value("dp4a", ("u32", "s32"), ("u32", "s32"), takes=_dot_types, out=lambda k, f: "s32")(
    lambda kind, flags: _dot(4, kind, flags)
)
value("dp2a", ("u32", "s32"), ("u32", "s32", "lo", "hi"), takes=_dot_types, out=lambda k, f: "s32")(
    lambda kind, flags: _dot(2, kind, flags)
)


# ---- several words: a carry is passed on -----------------------------------------------------------------------------

_WORDS = ("u32", "s32", "u64", "s64")


def _flag(lanes: Lanes) -> Array:
    """The carry of each lane, stored like a register: cleared when a block starts."""
    if "CC.CF" not in lanes.registers:
        lanes.registers["CC.CF"] = np.zeros(lanes.size, bool)
    return lanes.registers["CC.CF"]


def add_words(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """Return a + b + carry for unsigned words, and the carry out."""
    total = a + b
    more = total + carry
    return more, (total < a) | (more < total)


def subtract_words(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """Return a - b - borrow for unsigned words, and the borrow out."""
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


# The forms of add, sub and mad that neither take nor give a carry are above.
for _operation, _gives, _takes in ((add_words, "add.cc", "addc"), (subtract_words, "sub.cc", "subc")):
    _chained(_gives, False, _operation, False)
    _chained(_takes, True, _operation, False)
    _chained(f"{_takes}.cc", True, _operation, False)
_chained("mad.cc", False, add_words, True)
_chained("madc", True, add_words, True)
_chained("madc.cc", True, add_words, True)


# ---- logic, shifts and bit fields ------------------------------------------------------------------------------------


@value("and", (*BITS, "pred"))
def _and(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.bitwise_and)


@value("or", (*BITS, "pred"))
def _or(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.bitwise_or)


@value("xor", (*BITS, "pred"))
def _xor(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.bitwise_xor)


@value("not", (*BITS, "pred"))
def _not(kind: str, flags: set[str]) -> Compute:
    return apply_ufunc(np.invert)


@value("cnot", BITS)
def _cnot(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, a: Array) -> None:
        out[...] = a == 0

    return compute


def _shift(ufunc: Any, dtype: Any) -> Compute:
    """Shifts clamp: a shift by the width or more gives 0, or copies of the sign; NumPy's shift by the width does too."""

    def compute(out: Array, a: Array, b: Array) -> None:
        ufunc(a, np.minimum(b, np.uint32(8 * dtype.itemsize)).astype(dtype), out=out)

    return compute


@value("shl", BITS, takes=lambda k, f: (k, "u32"))
def _shl(kind: str, flags: set[str]) -> Compute:
    return _shift(np.left_shift, DTYPES[kind])


@value("shr", (*BITS, *INTS), takes=lambda k, f: (k, "u32"))
def _shr(kind: str, flags: set[str]) -> Compute:
    return _shift(np.right_shift, DTYPES[kind])


@value("shf", ("b32",), ("l", "r", "clamp", "wrap"))
def _shf(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, low: Array, high: Array, by: Array) -> None:
        n = (by & 31 if "wrap" in flags else np.minimum(by, 32)).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        out[...] = ((both << n) >> np.uint64(32) if "l" in flags else both >> n) & np.uint64(0xFFFFFFFF)

    return compute


@value("popc", ("b32", "b64"), out=lambda k, f: "u32")
def _popc(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, a: Array) -> None:
        out[...] = np.bitwise_count(a)

    return compute


def _bit_length(a: Array) -> Array:
    length = np.zeros(np.shape(a), np.uint32)
    for shift in (32, 16, 8, 4, 2, 1):
        if shift < 8 * a.dtype.itemsize:
            big = (a >> a.dtype.type(shift)) != 0
            length = length + big * np.uint32(shift)
            a = np.where(big, a >> a.dtype.type(shift), a)
    return length + (a != 0).astype(np.uint32)


@value("clz", ("b32", "b64"), out=lambda k, f: "u32")
def _clz(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, a: Array) -> None:
        np.subtract(np.uint32(8 * size_of(kind)), _bit_length(a), out=out)

    return compute


@value("bfind", ("u32", "s32", "u64", "s64"), ("shiftamt",), out=lambda k, f: "u32")
def _bfind(kind: str, flags: set[str]) -> Compute:
    bits = 8 * size_of(kind)

    def compute(out: Array, a: Array) -> None:
        flipped = np.where(a < 0, ~a, a) if kind[0] == "s" else a
        last = _bit_length(flipped.astype(f"u{bits // 8}"))
        none = last == 0
        out[...] = np.where(none, np.uint32(0xFFFFFFFF), bits - last if "shiftamt" in flags else last - np.uint32(1))

    return compute


@value("brev", ("b32", "b64"))
def _brev(kind: str, flags: set[str]) -> Compute:
    dtype = DTYPES[kind].type
    masks = {32: 0x00000000FFFFFFFF, 16: 0x0000FFFF0000FFFF, 8: 0x00FF00FF00FF00FF}
    masks |= {4: 0x0F0F0F0F0F0F0F0F, 2: 0x3333333333333333, 1: 0x5555555555555555}

    def compute(out: Array, a: Array) -> None:
        for by, mask in masks.items():
            if by < 8 * size_of(kind):
                low = dtype(mask & ((1 << 8 * size_of(kind)) - 1))
                a = ((a >> dtype(by)) & low) | ((a & low) << dtype(by))
        out[...] = a

    return compute


def _place_and_count(bits: int, dtype: Any, *fields: Array) -> list[Array]:
    """Start and length of a bit field, at most the word's width. For words of 32 bits GPUs have an instruction, which
    reads 8 bits of both; for words of 64 bits they run several, which read all bits."""
    return [np.minimum(x & 0xFF if bits == 32 else x, bits).astype(dtype) for x in fields]


@value("bfe", ("u32", "s32", "u64", "s64"), takes=lambda k, f: (k, "u32", "u32"))
def _bfe(kind: str, flags: set[str]) -> Compute:
    bits, dtype = 8 * size_of(kind), DTYPES[kind]
    unsigned = np.dtype(f"u{bits // 8}").type

    def compute(out: Array, a: Array, pos: Array, count: Array) -> None:
        p, n = _place_and_count(bits, unsigned, pos, count)
        field = np.where(p >= bits, unsigned(0), a.view(unsigned) >> p)
        if kind[0] == "s":  # bits past the top are the sign
            field = (a >> np.minimum(p, unsigned(bits - 1)).astype(dtype)).view(unsigned)
        unused = (unsigned(bits) - n).astype(unsigned)
        top = (field << unused).astype(unsigned)
        result = top.view(dtype) >> unused.astype(dtype) if kind[0] == "s" else top >> unused
        out[...] = np.where(n == 0, dtype.type(0), result)

    return compute


@value("bfi", ("b32", "b64"), takes=lambda k, f: (k, k, "u32", "u32"))
def _bfi(kind: str, flags: set[str]) -> Compute:
    bits, unsigned = 8 * size_of(kind), DTYPES[kind].type

    def compute(out: Array, a: Array, b: Array, pos: Array, count: Array) -> None:
        p, n = _place_and_count(bits, unsigned, pos, count)
        mask = np.left_shift(np.left_shift(unsigned(1), n) - unsigned(1), p)
        out[...] = (b & ~mask) | (np.left_shift(a, p) & mask)

    return compute


@step("lop3", ("b32",))
def _lop3(ins: Instruction, lanes: Lanes) -> Step:
    check_modifiers(ins, ())
    *operands, code = *ins.operands[1:4], number_of(ins, ins.operands[4])

    def compute(out: Array, a: Array, b: Array, c: Array) -> None:
        result: Array = np.zeros((), np.uint32)
        for row in range(8):
            if code >> row & 1:
                result = result | (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        out[...] = result

    inputs = [lanes.source(operand, "b32", ins) for operand in operands]
    return elementwise(lanes, ins, ins.operands[0], "b32", compute, inputs)


#: Modes of prmt: for a selector of 0, 1, 2 and 3 the four nibbles that select the bytes.
_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@value("prmt", ("b32", *_MODES), ("b32",), out=lambda k, f: "b32", takes=lambda k, f: ("b32",) * 3)
def _prmt(kind: str, flags: set[str]) -> Compute:
    def compute(out: Array, a: Array, b: Array, selector: Array) -> None:
        if kind in _MODES:
            selector = np.array(_MODES[kind], np.uint32)[selector & 3]
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result: Array = np.zeros((), np.uint32)
        for i in range(4):
            nibble = (selector >> np.uint32(4 * i)) & np.uint32(15)
            byte = (both >> ((nibble & np.uint32(7)) * np.uint32(8)).astype(np.uint64)).astype(np.uint32) & np.uint32(
                0xFF
            )
            sign = np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
            result = result | np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * i)
        out[...] = result

    return compute


@value("fns", ("b32",), takes=lambda k, f: ("b32", "u32", "s32"))
def _fns(kind: str, flags: set[str]) -> Compute:
    """The place of the n-th bit that is set, counted from a base upwards, or downwards where n is negative."""

    def compute(out: Array, mask: Array, base: Array, n: Array) -> None:
        place, left, step = (
            base.astype(np.int64),
            np.maximum(np.abs(n.astype(np.int64)), 1),
            np.sign(n.astype(np.int64)),
        )
        found: Array = np.full(out.shape, 0xFFFFFFFF, np.uint32)
        for _ in range(32):
            hit = (place >= 0) & (place < 32) & (mask >> (place & 31).astype(np.uint32) & np.uint32(1) == 1)
            left = left - hit
            found = np.where(hit & (left == 0), place, found).astype(np.uint32)
            place = np.where(step == 0, 32, place + step)  # n = 0 tests the bit at the base only
        out[...] = found

    return compute


def _from(place: Array) -> Array:
    """Words with all bits set from a place upwards."""
    return np.left_shift(np.uint32(0xFFFFFFFF), np.minimum(place, np.uint32(32)).astype(np.uint32))


@value("bmsk", ("b32",), ("clamp", "wrap"), takes=lambda k, f: ("u32", "u32"))
def _bmsk(kind: str, flags: set[str]) -> Compute:
    """A mask of ``count`` bits from ``place`` upwards; both are clamped to 32, or taken modulo 32."""

    def compute(out: Array, place: Array, count: Array) -> None:
        p, n = (np.minimum(x, np.uint32(32)) if "clamp" in flags else x & np.uint32(31) for x in (place, count))
        out[...] = _from(p) & ~_from(p + n)

    return compute


@value("szext", ("u32", "s32"), ("clamp", "wrap"), takes=lambda k, f: (k, "u32"))
def _szext(kind: str, flags: set[str]) -> Compute:
    """The low ``count`` bits of a word, extended by their sign or by zeros."""

    def compute(out: Array, a: Array, count: Array) -> None:
        n = np.minimum(count, np.uint32(32)) if "clamp" in flags else count & np.uint32(31)
        bits, rest = a.view(np.uint32), _from(n)
        sign = (n > 0) & (bits >> (np.maximum(n, 1) - 1).astype(np.uint32) & np.uint32(1) == 1) & (kind == "s32")
        out.view(np.uint32)[...] = (bits & ~rest) | np.where(sign, rest, np.uint32(0))

    return compute
