"""Quotients, roots, and the approximations of the fast unit (PTX ISA 9.7.3.7 to 9.7.3.22).

``.approx`` instructions are computed in float64 and rounded once: within PTX's error bounds, but without the hardware's
exact bits. Their corner cases are the hardware's.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ..machine.values import Array
from ._table import HALVES, Compute, Factory, value
from .floating import ROUND, on_double, on_halves, on_single
from .nans import NAN32
from .rounding import MODES, TINY32, flush


def _wide(function: Callable[..., Array], missing: Callable[..., Fraction] | None = None) -> Factory:
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
    return _wide(quotient, lambda a, b, r: a / b - r)(kind, flags)


value("rcp", ("f32", "f64"), (*MODES, "ftz", "approx"))(_wide(lambda a: 1.0 / a, lambda a, r: 1 / a - r))
value("sqrt", ("f32", "f64"), (*MODES, "ftz", "approx"))(_wide(np.sqrt, lambda a, r: a - r * r))
value("rsqrt", ("f32", "f64"), ("approx", "ftz"))(_wide(lambda a: 1.0 / np.sqrt(a)))
value("lg2", ("f32",), ("approx", "ftz"))(_wide(np.log2))
value("sin", ("f32",), ("approx", "ftz"))(_wide(np.sin))
value("cos", ("f32",), ("approx", "ftz"))(_wide(np.cos))


def _approximate(function: Callable[[Array], Array]) -> Factory:
    def factory(kind: str, flags: set[str]) -> Compute:
        return _wide(function)(kind, flags) if kind == "f32" else on_halves(kind, flags, function)

    return factory


value("ex2", ("f32", *HALVES), ("approx", "ftz"))(_approximate(np.exp2))
value("tanh", ("f32", *HALVES), ("approx",))(_approximate(np.tanh))
