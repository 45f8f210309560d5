"""Floating-point arithmetic in single, double, half and bfloat16 (PTX ISA 9.7.3 to 9.7.5).

``.approx`` instructions are computed in float64 and rounded once: within PTX's error bounds, not the hardware's bits.
Half and bfloat16 work in float32 or float64 and round once at the end, packed pairs element by element.
"""

# ruff: noqa: ARG001 - every factory of the table takes the type and its modifiers

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..state import Array
from ._table import FLOATS, HALVES, Compute, value
from .rounding import (
    MODES,
    bf16_to_f32,
    canonical,
    f32_to_bf16,
    flush,
    fma32,
    fma64,
    narrow16,
    narrow32,
    odd32,
    odd_sum,
)

ROUND = (*MODES, "ftz", "sat")


def _mode(flags: set[str]) -> str:
    return next((m for m in MODES if m in flags), "rn")


def halves(x: Array, kind: str) -> Array:
    """Half or bfloat16 values, alone or in pairs (n,) or (2n,), as float64."""
    if kind.endswith("x2"):
        x = np.ascontiguousarray(x).reshape(-1).view(np.float16 if kind == "f16x2" else np.uint16)
    return (bf16_to_f32(x) if kind.startswith("bf16") else x).astype(np.float64)


def put_halves(out: Array, x: Array, kind: str, mode: str = "rn") -> None:
    """float64 (exact, or rounded to odd) → half or bfloat16, alone or in pairs."""
    made = f32_to_bf16(odd32(x), mode) if kind.startswith("bf16") else narrow16(x, mode)
    if not kind.startswith("bf16"):
        made = np.where(np.isnan(made), np.uint16(0x7FFF).view(np.float16), made)
    if kind.endswith("x2"):
        made = np.ascontiguousarray(made).view(np.uint32)
    out[...] = made if kind.endswith("x2") or out.dtype == made.dtype else made.view(out.dtype)


def on_halves(kind: str, flags: set[str], exact: Callable[..., Array]) -> Compute:
    """Compute on halves in float64; ``exact`` returns an exact or odd-rounded result."""

    def compute(out: Array, *inputs: Array) -> None:
        wide = [halves(x, kind) for x in inputs]
        if kind.endswith("x2"):
            wide = [np.tile(w, out.size) if w.size == 2 and out.size > 1 else w for w in wide]
        result = exact(*wide)
        if "relu" in flags:
            result = np.where(result > 0, result, np.where(np.isnan(result), result, 0.0))
        if "sat" in flags:
            result = np.where(np.isnan(result), 0.0, np.clip(result, 0.0, 1.0))
        put_halves(out, result, kind, _mode(flags))

    return compute


def on_single(flags: set[str], nearest: Compute, exact: Callable[..., Array] | None = None) -> Compute:
    """Single precision: rn directly, other modes through ``exact`` in float64, then ftz, sat and the canonical NaN."""
    mode = _mode(flags)

    def compute(out: Array, *inputs: Array) -> None:
        if "ftz" in flags:
            inputs = tuple(flush(x) for x in inputs)
        if mode == "rn" or exact is None:
            nearest(out, *inputs)
        else:
            out[...] = narrow32(exact(*[x.astype(np.float64) for x in inputs]), mode)
        if "ftz" in flags:
            out[...] = flush(out)
        if "sat" in flags:
            out[...] = np.where(
                np.isnan(out), np.float32(0), np.clip(out, np.float32(0), np.float32(1)) + np.float32(0)
            )
        canonical(out)

    return compute


def _nearest(ufunc: Any) -> Compute:
    def compute(out: Array, *inputs: Array) -> None:
        ufunc(*inputs, out=out)

    return compute


def _exactly(ufunc: Any, exact: Callable[..., Array]) -> Callable[[str, set[str]], Compute]:
    def factory(kind: str, flags: set[str]) -> Compute:
        if kind == "f32":
            return on_single(flags, _nearest(ufunc), exact)
        if kind == "f64":
            return _double(flags, _nearest(ufunc))
        return on_halves(kind, flags, exact)

    return factory


def _double(flags: set[str], nearest: Compute) -> Compute:
    if _mode(flags) != "rn":
        raise NotImplementedError("is supported in double precision with rounding to nearest only")
    return nearest


value("add", FLOATS, ROUND)(_exactly(np.add, odd_sum))
value("sub", FLOATS, ROUND)(_exactly(np.subtract, lambda a, b: odd_sum(a, -b)))
value("mul", FLOATS, ROUND)(_exactly(np.multiply, np.multiply))


@value("fma", FLOATS, (*ROUND, "relu"))
@value("mad", ("f32", "f64"), ROUND)
def _fma(kind: str, flags: set[str]) -> Compute:
    if kind == "f32":
        return on_single(flags, fma32, lambda a, b, c: odd_sum(a * b, c))
    if kind == "f64":
        return _double(flags, fma64)
    return on_halves(kind, flags, lambda a, b, c: odd_sum(a * b, c))


# A quotient or root of 24-bit numbers rounded to 53 bits rounds to 24 as the exact one does, in every direction.


def _wide(function: Callable[..., Array]) -> Callable[[str, set[str]], Compute]:
    def single(out: Array, *inputs: Array) -> None:
        out[...] = function(*[x.astype(np.float64) for x in inputs])

    def double(out: Array, *inputs: Array) -> None:
        out[...] = function(*inputs)

    def factory(kind: str, flags: set[str]) -> Compute:
        return on_single(flags, single, function) if kind == "f32" else _double(flags, double)

    return factory


value("div", ("f32", "f64"), (*ROUND, "approx", "full"))(_wide(np.divide))
value("rcp", ("f32", "f64"), (*MODES, "ftz", "approx"))(_wide(lambda a: 1.0 / a))
value("sqrt", ("f32", "f64"), (*MODES, "ftz", "approx"))(_wide(np.sqrt))
value("rsqrt", ("f32", "f64"), ("approx", "ftz"))(_wide(lambda a: 1.0 / np.sqrt(a)))
value("lg2", ("f32",), ("approx", "ftz"))(_wide(np.log2))
value("sin", ("f32",), ("approx", "ftz"))(_wide(np.sin))
value("cos", ("f32",), ("approx", "ftz"))(_wide(np.cos))


def _approximate(function: Callable[[Array], Array]) -> Callable[[str, set[str]], Compute]:
    def factory(kind: str, flags: set[str]) -> Compute:
        return _wide(function)(kind, flags) if kind == "f32" else on_halves(kind, flags, function)

    return factory


value("ex2", ("f32", *HALVES), ("approx", "ftz"))(_approximate(np.exp2))
value("tanh", ("f32", *HALVES), ("approx",))(_approximate(np.tanh))


def _extreme(largest: bool) -> Callable[[str, set[str]], Compute]:
    """min and max: a NaN loses (``.NaN``: wins), and −0 < +0."""

    def factory(kind: str, flags: set[str]) -> Compute:
        pick = (np.maximum if largest else np.minimum) if "NaN" in flags else (np.fmax if largest else np.fmin)

        def exact(a: Array, b: Array) -> Array:
            result = pick(a, b)
            zero = (a == 0) & (b == 0)
            if zero.any():
                signs = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
                signed = np.copysign(np.zeros((), result.dtype), np.where(signs, -1, 1).astype(result.dtype))
                result = np.where(zero, signed, result)
            return result

        def plain(out: Array, a: Array, b: Array) -> None:
            out[...] = exact(a, b)

        if kind == "f32":
            return on_single(flags, plain)
        return plain if kind == "f64" else on_halves(kind, flags, exact)

    return factory


value("min", FLOATS, ("ftz", "NaN"))(_extreme(False))
value("max", FLOATS, ("ftz", "NaN"))(_extreme(True))


def _sign_bits(kind: str) -> int:
    return {"f32": 1 << 31, "f64": 1 << 63, "f16x2": 0x80008000, "bf16x2": 0x80008000}.get(kind, 0x8000)


def _signs(change: Callable[[Array, Any], Array]) -> Callable[[str, set[str]], Compute]:
    """abs and neg change the sign bit and nothing else, also of a NaN."""

    def factory(kind: str, flags: set[str]) -> Compute:
        def compute(out: Array, a: Array) -> None:
            if "ftz" in flags and kind == "f32":
                a = flush(a)
            bits = np.asarray(a).view(f"u{a.dtype.itemsize}")
            out.view(bits.dtype)[...] = change(bits, bits.dtype.type(_sign_bits(kind)))

        return compute

    return factory


value("abs", FLOATS, ("ftz",))(_signs(lambda bits, sign: bits & ~sign))
value("neg", FLOATS, ("ftz",))(_signs(lambda bits, sign: bits ^ sign))


@value("copysign", ("f32", "f64"))
def _copysign(kind: str, flags: set[str]) -> Compute:
    return lambda out, a, b: np.copysign(b, a, out=out)


_TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}


@value("testp", ("f32", "f64"), tuple(_TESTS), out=lambda k, f: "pred")
def _testp(kind: str, flags: set[str]) -> Compute:
    test = _TESTS[next(iter(flags))]

    def compute(out: Array, a: Array) -> None:
        out[...] = test(a)

    return compute
