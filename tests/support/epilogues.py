"""Operands of products with an epilogue, and what the result must be."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

E4, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
F16, F32, F64, I8 = map(np.dtype, ("float16", "float32", "float64", "int8"))
ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
EPS = {F64: 2.0**-50, F32: 2.0**-21, F16: 2.0**-10, BF16: 2.0**-7}


def whole(*shape: int, dtype: Any = F32, seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def reals(*shape: int, dtype: Any = F32, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype(dtype)


def check(result: np.ndarray, exact: np.ndarray, dtype: Any) -> None:
    """The result has this dtype, and was rounded once."""
    assert result.dtype == dtype
    assert (abs(result.astype(np.float64) - exact) <= EPS[np.dtype(dtype)] * (1 + abs(exact))).all()


def expected(a: np.ndarray, b: np.ndarray, out: Any = None, **says: Any) -> np.ndarray:
    """The result in float64."""
    scale_a, scale_b, bias = (says.get(name) for name in ("scale_a", "scale_b", "bias"))
    x = a.astype(np.float64) @ b.astype(np.float64) * says.get("alpha", 1)
    x = x if scale_a is None else x * np.asarray(scale_a, np.float64).reshape(-1, 1)
    x = x if scale_b is None else x * np.asarray(scale_b, np.float64)
    x = x if out is None else x + says["beta"] * out.astype(np.float64)
    return ACTIVATIONS[says.get("activation")](x if bias is None else x + bias.astype(np.float64))
