"""What becomes of a product before it is stored: activation(α · scale_a · A·B · scale_b + β · out + bias)."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import DTypeError, ShapeError, UsageError, did_you_mean

ACTIVATIONS = ("relu", "gelu", "silu")
#: Steps of k, and columns of B, that have one scale where scales are given by blocks.
BLOCK = 128


@dataclass(frozen=True, eq=False)
class Epilogue:
    """The numbers and arrays of an epilogue, as the caller gives them; None for what is absent. A scale that is a number is
    part of ``alpha``."""

    alpha: float = 1.0
    beta: float = 0.0
    bias: Any = None
    activation: str | None = None
    scale_a: Any = None
    scale_b: Any = None

    @property
    def arrays(self) -> dict[str, Any]:
        """Its arrays by name."""
        named = {"bias": self.bias, "scale_a": self.scale_a, "scale_b": self.scale_b}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def is_scaling(self) -> bool:
        """Whether it has no more than ``alpha`` and ``beta``."""
        return not self.arrays and self.activation is None

    def __str__(self) -> str:
        return epilogue_text(self.alpha, self.beta, self.activation, list(self.arrays))

    def check_dtype(self, dtype: np.dtype) -> None:
        """Raise DTypeError for a product of a dtype that has no epilogue."""
        if dtype.kind != "f" and not (dtype.kind == "c" and self.activation is None):
            what = "an activation" if dtype.kind == "c" else "an epilogue"
            raise DTypeError(f"the product is {dtype}, and {what} needs real floating-point numbers")

    def check_matrices(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        """Raise ShapeError where there are arrays, and an operand of one of these shapes is no matrix."""
        if self.arrays and min(len(a), len(b)) < 2:
            raise ShapeError(f"{' and '.join(self.arrays)} are for products of matrices: a is {a}, b is {b}")

    @classmethod
    def of(cls, out: Any, alpha: Any, beta: Any, bias: Any, activation: Any, scale_a: Any, scale_b: Any) -> Epilogue:
        """The checked epilogue of a product into ``out``. Raises UsageError.

        >>> Epilogue.of(None, 2, 0, None, None, 0.5, None).alpha
        1.0
        """
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not isinstance(value, numbers.Real):
                raise UsageError(f"{name} must be a real number, got {value!r:.80}")
        if activation is not None and activation not in ACTIVATIONS:
            raise UsageError(f"activation {activation!r} is not known: {did_you_mean(str(activation), ACTIVATIONS)}")
        if beta != 0 and out is None:
            raise UsageError(f"beta is {beta}, and there is no out whose values it could multiply")
        alpha, scales = float(alpha), [scale_a, scale_b]
        for i, scale in enumerate(scales):
            if isinstance(scale, numbers.Real) and not isinstance(scale, np.generic):
                alpha, scales[i] = alpha * float(scale), None
        return cls(alpha, float(beta), bias, activation, *scales)

    def has_blocks(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """Whether the scales are those of blocks, for operands of these shapes: ``scale_a`` has a number for each row and
        128 of k, ``scale_b`` one for each 128 of k and 128 columns. False where these are all of k and all columns: that is
        the same as a number for each row and a single one.

        >>> Epilogue(scale_a=np.ones((5, 2)), scale_b=np.ones((2, 3))).has_blocks((5, 200), (200, 300))
        True
        """
        if self.scale_a is None or self.scale_b is None or not len(a) == len(b) == 2:
            return False
        given = tuple(np.shape(self.scale_a)), tuple(np.shape(self.scale_b))
        return given == block_shapes(a[0], b[1], a[1]) and given[1] != (1, 1)

    def scaled_operands(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, Epilogue]:
        """The operands, times the scales of their blocks if it has any, and what remains of the epilogue. Raises
        ShapeError."""
        self.check_matrices(a.shape, b.shape)
        if not self.has_blocks(a.shape, b.shape):
            return a, b, self
        of_a = np.repeat(np.asarray(self.scale_a), BLOCK, axis=1)[:, : a.shape[1]]
        of_b = np.repeat(np.repeat(np.asarray(self.scale_b), BLOCK, axis=0), BLOCK, axis=1)[: b.shape[0], : b.shape[1]]
        scaled = (a * of_a).astype(a.dtype), (b * of_b).astype(b.dtype)
        return *scaled, replace(self, scale_a=None, scale_b=None)

    def applied(self, product: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """The result for a product of floating-point numbers, which has the operands' shapes combined, in its dtype. Raises
        DTypeError, ShapeError."""
        kind = product.dtype.type
        self.check_dtype(product.dtype)
        result = product * kind(self.alpha)
        rows, columns = ((1, *product.shape) if product.ndim < 2 else product.shape)[-2:]
        if self.scale_a is not None:
            result = result * _vector("scale_a", self.scale_a, rows, 0).astype(kind)
        if self.scale_b is not None:
            result = result * _vector("scale_b", self.scale_b, columns, 1).astype(kind)
        if self.beta != 0 and out is not None:
            result = result + kind(self.beta) * out.astype(kind)
        if self.bias is not None:
            bias = _vector("bias", self.bias, columns, 1)
            result = result + bias.astype(kind)
        return _activated(result, self.activation).astype(product.dtype, copy=False)


def block_shapes(m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The shapes of ``scale_a`` and ``scale_b`` that give scales of blocks.

    >>> block_shapes(5, 300, 200)
    ((5, 2), (2, 3))
    """
    steps = -(-k // BLOCK)
    return (m, steps), (steps, -(-n // BLOCK))


def epilogue_text(
    alpha: float, beta: float, activation: str | None, arrays: Collection[str], product: str = "A·B"
) -> str:
    """An epilogue as a formula; ``arrays`` are the names of those that it has.

    >>> epilogue_text(2, 1, "relu", ["bias", "scale_a"])
    'relu(2 · scale_a · A·B + 1 · out + bias)'
    """
    scales = [name for name in ("scale_a", "scale_b") if name in arrays]
    factors = [f"{alpha:g}"] * (alpha != 1) + scales + [product]
    added = [f"{beta:g} · out"] * (beta != 0) + ["bias"] * ("bias" in arrays)
    text = " + ".join([" · ".join(factors), *added])
    return f"{activation}({text})" if activation else text


def vector_step(name: str, shape: tuple[int, ...], strides: tuple[int, ...], size: int, axis: int) -> int:
    """The stride of an array of ``size`` numbers, one for each row (``axis`` 0) or column (1) of a product; 0 for a single
    number, which all share. Raises ShapeError.

    >>> vector_step("bias", (1, 5), (7, 2), 5, 1), vector_step("scale_a", (), (), 5, 0)
    (2, 0)
    """
    if math.prod(shape) == 1 and name != "bias":
        return 0
    if shape == (size,):
        return strides[0]
    if shape == ((size, 1), (1, size))[axis]:
        return strides[axis]
    each = ("row", "column")[axis]
    others = {
        "scale_a": f", a single number, or with such a scale_b one for each row and {BLOCK} of k of two matrices",
        "scale_b": f", a single number, or with such a scale_a one for each {BLOCK}×{BLOCK} of b, of two matrices",
    }
    which = others.get(name, "")
    raise ShapeError(f"{name} is {shape}: it must be one number for each {each} of the product, ({size},){which}")


def _vector(name: str, value: Any, size: int, axis: int) -> np.ndarray:
    array = np.asarray(value)
    vector_step(name, array.shape, array.strides, size, axis)
    if array.size == 1:
        return array.reshape(())
    return array.reshape((size, 1) if axis == 0 else (size,))


def _activated(x: np.ndarray, activation: str | None) -> np.ndarray:
    if activation == "relu":
        return np.where(x < 0, x.dtype.type(0), x)
    if activation == "gelu":
        erf = np.frompyfunc(math.erf, 1, 1)(x / x.dtype.type(math.sqrt(2))).astype(x.dtype)
        return x * (1 + erf) / 2
    if activation == "silu":
        with np.errstate(over="ignore"):
            return x / (1 + np.exp(-x))
    return x
