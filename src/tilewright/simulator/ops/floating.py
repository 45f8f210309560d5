"""Floating-point instructions in single, double, half and bfloat16 (PTX ISA 9.7.3 to 9.7.5).

Instructions on half and bfloat16 are computed in float64, and the result is rounded once; packed pairs are computed
element by element. ``.approx`` instructions are computed in float64 and rounded once. The results of ``.approx``
instructions are within PTX's error bounds, but may differ from the hardware's results in the last bits. For special
operands, such as zero, infinity and NaN, the results of ``.approx`` instructions are equal to the hardware's.
"""

# ruff: noqa: ARG001 - every factory of the table takes the type and its modifiers

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ..machine.values import Array
from ._table import FLOATS, HALVES, Compute, Factory, apply_ufunc, value
from .rounding import (
    MODES,
    NAN16,
    NAN32,
    TINY32,
    bf16_to_f32,
    canonical,
    directed64,
    errors,
    f32_to_bf16,
    flush,
    fma32,
    fma64,
    hand_on,
    narrow16,
    narrow32,
    odd32,
    odd_sum,
    zero_of_sum,
)

ROUND = (*MODES, "ftz", "sat")


def _mode(flags: set[str]) -> str:
    return next((m for m in MODES if m in flags), "rn")


def halves(x: Array, kind: str, ftz: bool = False) -> Array:
    """Convert half or bfloat16 values, single or in pairs, to float64: (n,) or (2n,)."""
    if kind.endswith("x2"):
        x = np.ascontiguousarray(x).reshape(-1).view(np.float16 if kind == "f16x2" else np.uint16)
    x = bf16_to_f32(x) if kind.startswith("bf16") else x
    return (flush(x) if ftz else x).astype(np.float64)


def put_halves(out: Array, x: Array, kind: str, mode: str = "rn", ftz: bool = False) -> None:
    """Convert float64 values (exact, or rounded to odd) to half or bfloat16, single or in pairs."""
    if kind.startswith("bf16"):
        single = odd32(x)
        rounded = f32_to_bf16(flush(single) if ftz else single, mode)
    else:
        rounded = narrow16(x, mode)
        rounded = flush(rounded) if ftz else rounded
        rounded = np.where(np.isnan(rounded), NAN16.view(np.float16), rounded)
    if kind.endswith("x2"):
        rounded = np.ascontiguousarray(rounded).view(np.uint32)
    out[...] = rounded if kind.endswith("x2") or out.dtype == rounded.dtype else rounded.view(out.dtype)


def on_halves(kind: str, flags: set[str], exact: Callable[..., Array]) -> Compute:
    """Make a computation on half-precision operands that works in float64; ``exact`` returns a float64 result that is
    exact or rounded to odd."""
    ftz = "ftz" in flags

    def compute(out: Array, *inputs: Array) -> None:
        wide = [halves(x, kind, ftz) for x in inputs]
        if kind.endswith("x2"):
            wide = [np.tile(w, out.size) if w.size == 2 and out.size > 1 else w for w in wide]
        result = exact(*wide)
        if "relu" in flags:
            result = np.where(result > 0, result, np.where(np.isnan(result), result, 0.0))
        if "sat" in flags:
            result = saturate(result)
        put_halves(out, result, kind, _mode(flags), ftz)

    return compute


def saturate(x: Array) -> Array:
    """Apply ``.sat``: clamp to [0, 1]; NaN and -0 become +0."""
    zero = x.dtype.type(0)
    return np.where(np.isnan(x), zero, np.clip(x, zero, x.dtype.type(1)) + zero)


#: A function that takes the operands of an instruction and returns two numbers whose sum is its result.
Terms = Callable[..., tuple[Array, Array]]


def on_single(
    flags: set[str], nearest: Compute, exact: Callable[..., Array] | None = None, terms: Terms | None = None
) -> Compute:
    """Make a computation in single precision. The computation calls ``nearest`` for the rounding mode rn, and ``exact``
    in float64 for other modes; then it applies ftz, sat and the canonical NaN."""
    mode = _mode(flags)

    def compute(out: Array, *inputs: Array) -> None:
        if "ftz" in flags:
            inputs = tuple(flush(x) for x in inputs)
        if mode == "rn" or exact is None:
            nearest(out, *inputs)
        else:
            wide = [x.astype(np.float64) for x in inputs]
            result = exact(*wide)
            rounded = narrow32(result, mode)
            out[...] = zero_of_sum(rounded, result == 0, *terms(*wide), mode) if terms else rounded
        if "ftz" in flags:
            out[...] = flush(out)
        if "sat" in flags:
            out[...] = saturate(out)
        canonical(out)

    return compute


def _exactly(
    nearest: Any,
    exact: Callable[..., Array],
    missing: Callable[..., Fraction] | None = None,
    terms: Terms | None = None,
) -> Callable[[str, set[str]], Compute]:
    """The factory of an operation for all float types.

    ``nearest`` rounds to nearest, in float32 or float64. ``exact`` computes in float64 from narrower numbers, exactly or
    rounded to odd. ``missing`` gives, in rational arithmetic, a number with the sign of the exact minus the rounded result
    (None: the operation never rounds). ``terms`` is given for sums.
    """

    def factory(kind: str, flags: set[str]) -> Compute:
        if kind == "f32":
            return on_single(flags, nearest(kind), exact, terms)
        if kind == "f64":
            return on_double(flags, nearest(kind), missing, terms)
        return on_halves(kind, flags, exact)

    return factory


def on_double(
    flags: set[str],
    nearest: Compute,
    missing: Callable[..., Fraction] | None = None,
    terms: Terms | None = None,
    order: int = 1,
) -> Compute:
    """Make a computation in double precision. The computation calls ``nearest`` for the rounding mode rn; for other
    modes it corrects this result by the sign of the exact result minus this result, which ``missing`` computes. If
    operands are NaN, the result is the last operand that is a NaN (with ``order`` -1, the first)."""
    mode = _mode(flags)

    def compute(out: Array, *inputs: Array) -> None:
        result = np.empty(out.shape)
        nearest(result, *inputs)
        if mode != "rn" and missing is not None:
            signs = errors(missing, result, inputs)
            rounded = directed64(result, signs, mode)
            result = zero_of_sum(rounded, (result == 0) & (signs == 0), *terms(*inputs), mode) if terms else rounded
        hand_on(result, inputs[::order])
        out[...] = result

    return compute


def _also_pairs(factory: Factory) -> Factory:
    """A factory that also has ``f32x2`` (from compute capability 10.0 on): two floats in 64 bits, each computed apart."""

    def paired(kind: str, flags: set[str]) -> Compute:
        if kind != "f32x2":
            return factory(kind, flags)
        single = factory("f32", flags)

        def compute(out: Array, *inputs: Array) -> None:
            single(out.view(np.float32), *(np.array(np.broadcast_to(x, out.shape)).view(np.float32) for x in inputs))

        return compute

    return paired


def _by(ufunc: Any) -> Callable[[str], Compute]:
    return lambda kind: apply_ufunc(ufunc)


_FLOATS_AND_PAIRS = (*FLOATS, "f32x2")
value("add", _FLOATS_AND_PAIRS, ROUND)(
    _also_pairs(_exactly(_by(np.add), odd_sum, lambda a, b, r: a + b - r, lambda a, b: (a, b)))
)
value("sub", _FLOATS_AND_PAIRS, ROUND)(
    _also_pairs(
        _exactly(_by(np.subtract), lambda a, b: odd_sum(a, -b), lambda a, b, r: a - b - r, lambda a, b: (a, -b))
    )
)
value("mul", _FLOATS_AND_PAIRS, ROUND)(_also_pairs(_exactly(_by(np.multiply), np.multiply, lambda a, b, r: a * b - r)))
_fma = _exactly(
    lambda kind: fma32 if kind == "f32" else fma64,
    lambda a, b, c: odd_sum(a * b, c),
    lambda a, b, c, r: a * b + c - r,
    lambda a, b, c: (a * b, c),
)
value("fma", _FLOATS_AND_PAIRS, (*ROUND, "relu"))(_also_pairs(_fma))
value("mad", ("f32", "f64"), ROUND)(_fma)
value("abs", FLOATS, ("ftz",))(_exactly(_by(np.absolute), np.absolute))
value("neg", FLOATS, ("ftz",))(_exactly(_by(np.negative), np.negative))


def _extreme(largest: bool) -> Callable[[str, set[str]], Compute]:
    """min and max: of a number and a NaN the number (with ``.NaN`` the NaN), and −0 < +0. ``.xorsign.abs``: of the
    magnitudes, with the product's sign."""

    def factory(kind: str, flags: set[str]) -> Compute:
        pick = (np.maximum if largest else np.minimum) if "NaN" in flags else (np.fmax if largest else np.fmin)

        def exact(a: Array, b: Array) -> Array:
            if "xorsign" in flags:
                negative = np.signbit(a) != np.signbit(b)
                result = pick(np.abs(a), np.abs(b))
                return np.where(negative, -result, result)
            result = pick(a, b)
            zero = (a == 0) & (b == 0)
            if zero.any():
                signs = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
                signed = np.copysign(np.zeros((), result.dtype), np.where(signs, -1, 1).astype(result.dtype))
                result = np.where(zero, signed, result)
            return result

        def plain(out: Array, a: Array, b: Array, *more: Array) -> None:
            out[...] = functools.reduce(exact, more, exact(a, b))  # of three f32 from compute capability 10.0 on

        if kind == "f32":
            return on_single(flags, plain)
        return on_double(flags, plain) if kind == "f64" else on_halves(kind, flags, exact)

    return factory


value("min", FLOATS, ("ftz", "NaN", "xorsign", "abs"))(_extreme(False))
value("max", FLOATS, ("ftz", "NaN", "xorsign", "abs"))(_extreme(True))


@value("copysign", ("f32", "f64"))
def _copysign(kind: str, flags: set[str]) -> Compute:
    return lambda out, a, b: np.copysign(b, a, out=out)


#: In PTX, zeros are normal numbers.
_TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= np.finfo(a.dtype).tiny) | (a == 0)),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}


@value("testp", ("f32", "f64"), tuple(_TESTS), out=lambda k, f: "pred")
def _testp(kind: str, flags: set[str]) -> Compute:
    if len(flags) != 1:
        raise NotImplementedError("must have exactly one test")
    test = _TESTS[next(iter(flags))]

    def compute(out: Array, a: Array) -> None:
        out[...] = test(a)

    return compute


# ---- quotients, roots and approximations -----------------------------------------------------------------------------


def _in_float64(function: Callable[..., Array], missing: Callable[..., Fraction] | None = None) -> Factory:
    """The factory of an operation that is computed in float64: a quotient or root of 24-bit numbers, once rounded to 53
    bits, rounds to 24 bits like the exact result, in every direction."""

    def single(out: Array, *inputs: Array) -> None:
        out[...] = function(*[x.astype(np.float64) for x in inputs])

    def double(out: Array, *inputs: Array) -> None:
        out[...] = function(*inputs)

    def factory(kind: str, flags: set[str]) -> Compute:
        if kind == "f32":
            return on_single(flags, single, function)
        if {"approx", "ftz"} <= flags:
            return _of_upper_words(function)
        # GPUs divide doubles by a routine, which tests the dividend first.
        return on_double(flags, double, missing, order=-1)

    return factory


def _of_upper_words(function: Callable[[Array], Array]) -> Compute:
    """``.approx.ftz`` of doubles: reads and returns only their upper 32 bits, and its NaN is that of f32."""
    upper, nan = np.uint64(0xFFFFFFFF << 32), np.uint64(NAN32) << np.uint64(32)

    def compute(out: Array, a: Array) -> None:
        truncated = (np.asarray(a).view(np.uint64) & upper).view(np.float64)
        result = flush(function(flush(truncated)))
        out.view(np.uint64)[...] = np.where(np.isnan(result), nan, result.view(np.uint64) & upper)

    return compute


def _by_reciprocal(a: Array, b: Array) -> Array:
    """a · (1/b), where a subnormal 1/b is flushed: a divisor beyond 2^126 gives 0, or NaN if a is infinite."""
    reciprocal = 1.0 / b
    return a * np.where(np.abs(reciprocal) < TINY32, np.copysign(0.0, reciprocal), reciprocal)


@value("div", ("f32", "f64"), (*ROUND, "approx", "full"))
def _div(kind: str, flags: set[str]) -> Compute:
    quotient = _by_reciprocal if "approx" in flags else np.divide
    return _in_float64(quotient, lambda a, b, r: a / b - r)(kind, flags)


value("rcp", ("f32", "f64"), (*MODES, "ftz", "approx"))(_in_float64(lambda a: 1.0 / a, lambda a, r: 1 / a - r))
value("sqrt", ("f32", "f64"), (*MODES, "ftz", "approx"))(_in_float64(np.sqrt, lambda a, r: a - r * r))
value("rsqrt", ("f32", "f64"), ("approx", "ftz"))(_in_float64(lambda a: 1.0 / np.sqrt(a)))
value("lg2", ("f32",), ("approx", "ftz"))(_in_float64(np.log2))
value("sin", ("f32",), ("approx", "ftz"))(_in_float64(np.sin))
value("cos", ("f32",), ("approx", "ftz"))(_in_float64(np.cos))


def _approximate(function: Callable[[Array], Array]) -> Factory:
    def factory(kind: str, flags: set[str]) -> Compute:
        return _in_float64(function)(kind, flags) if kind == "f32" else on_halves(kind, flags, function)

    return factory


value("ex2", ("f32", *HALVES), ("approx", "ftz"))(_approximate(np.exp2))
value("tanh", ("f32", *HALVES), ("approx",))(_approximate(np.tanh))
