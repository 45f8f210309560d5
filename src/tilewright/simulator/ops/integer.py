"""Integer arithmetic (PTX ISA 9.7.1, 9.7.2)."""

# ruff: noqa: ARG001 - every factory of the table takes the type and its modifiers

from __future__ import annotations

from typing import Any

import numpy as np

from ..machine.values import DTYPES, Array
from ._table import INTS, Compute, apply_ufunc, size_of, value

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
    """Both halves of the product, as unsigned words."""
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
