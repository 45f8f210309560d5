"""The epilogue of a product, which is applied before the result is stored: activation(α · scale_a · A·B · scale_b + β
· out + bias)."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError, UsageError, did_you_mean
from .operands import admit, asked_dtype, is_real, promoted

ACTIVATIONS = ("relu", "gelu", "silu")
#: The number of steps of k, and of columns of B, that have one scale, if scales are given by blocks.
BLOCK = 128


@dataclass(frozen=True, eq=False)
class Epilogue:
    """The numbers and arrays of an epilogue, as the caller gives them; None for each number or array that is absent. A
    scale that is a number is multiplied into ``alpha``."""

    alpha: float = 1.0
    beta: float = 0.0
    bias: Any = None
    activation: str | None = None
    scale_a: Any = None
    scale_b: Any = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of the epilogue by name."""
        named = {"bias": self.bias, "scale_a": self.scale_a, "scale_b": self.scale_b}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def is_scaling(self) -> bool:
        """Whether the epilogue consists only of ``alpha`` and ``beta``."""
        return not self.arrays and self.activation is None

    def __str__(self) -> str:
        return epilogue_text(self.alpha, self.beta, self.activation, list(self.arrays))

    def check_dtype(self, dtype: np.dtype) -> None:
        """Raise DTypeError if products of ``dtype`` cannot have an epilogue."""
        if dtype.kind != "f" and not (dtype.kind == "c" and self.activation is None):
            what = "an activation" if dtype.kind == "c" else "an epilogue"
            raise DTypeError(f"the product is {dtype}, and {what} needs real floating-point numbers")

    def check_matrices(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        """Raise ShapeError if the epilogue has arrays, and an operand with one of these shapes is not a matrix."""
        if self.arrays and min(len(a), len(b)) < 2:
            raise ShapeError(f"{' and '.join(self.arrays)} are for products of matrices: a is {a}, b is {b}")

    @classmethod
    def of(cls, out: Any, alpha: Any, beta: Any, bias: Any, activation: Any, scale_a: Any, scale_b: Any) -> Epilogue:
        """Make and check the epilogue of a product that is written into ``out``. Raises UsageError if an argument is
        wrong.

        >>> Epilogue.of(None, 2, 0, None, None, 0.5, None).alpha
        1.0
        """
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not is_real(value):
                raise UsageError(f"{name} must be a real number within the range of float64, got {value!r:.80}")
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
        """Return whether each scale belongs to a block of an operand, for operands of these shapes.

        With scales of blocks, ``scale_a`` has one number for each row and each 128 elements of k, and ``scale_b`` has
        one number for each 128 elements of k and each 128 columns. The result is False if a single block covers all of
        k and all columns, because ``scale_a`` then has one number for each row and ``scale_b`` is a single number.

        >>> Epilogue(scale_a=np.ones((5, 2)), scale_b=np.ones((2, 3))).has_blocks((5, 200), (200, 300))
        True
        """
        if self.scale_a is None or self.scale_b is None or not len(a) == len(b) == 2:
            return False
        given = tuple(np.shape(self.scale_a)), tuple(np.shape(self.scale_b))
        return given == block_shapes(a[0], b[1], a[1]) and given[1] != (1, 1)

    def scaled_operands(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, Epilogue]:
        """Return the operands, multiplied by the scales of their blocks if there are such scales, and the rest of the
        epilogue. Raises ShapeError."""
        self.check_matrices(a.shape, b.shape)
        if not self.has_blocks(a.shape, b.shape):
            return a, b, self
        of_a = np.repeat(np.asarray(self.scale_a), BLOCK, axis=1)[:, : a.shape[1]]
        of_b = np.repeat(np.repeat(np.asarray(self.scale_b), BLOCK, axis=0), BLOCK, axis=1)[: b.shape[0], : b.shape[1]]
        scaled = (a * of_a).astype(a.dtype), (b * of_b).astype(b.dtype)
        return *scaled, replace(self, scale_a=None, scale_b=None)

    def applied(self, product: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """Return the result of applying the epilogue to a product of floating-point numbers. ``product`` has the
        operands' combined shape, and a dtype wide enough for all parts of the result. Raises DTypeError, OperandError,
        ShapeError."""
        self.check_dtype(product.dtype)
        of = self.vectors(product.shape, product.dtype)
        added = None if self.beta == 0 else out
        dtype = np.result_type(product, *of.values(), *([] if added is None else [added]))
        if not all(is_within(factor, dtype) for factor in (self.alpha, self.beta)):
            dtype = np.result_type(dtype, np.float64)
        result = product.astype(dtype, copy=False) * dtype.type(self.alpha)
        for scale in (of.get("scale_a"), of.get("scale_b")):
            if scale is not None:
                result = result * scale
        if added is not None:
            result = result + dtype.type(self.beta) * added
        if "bias" in of:
            result = result + of["bias"]
        return _activated(result, self.activation)

    def vectors(self, shape: tuple[int, ...], dtype: np.dtype) -> dict[str, np.ndarray]:
        """Return the arrays of the epilogue by name, each in the shape and dtype in which it is combined with a
        product of this shape and dtype. Raises DTypeError, OperandError, ShapeError."""
        rows, columns = (1, 1, *shape)[-2:]
        sizes = {"scale_a": (rows, 0), "scale_b": (columns, 1), "bias": (columns, 1)}
        return {name: _vector(name, value, dtype, *sizes[name]) for name, value in self.arrays.items()}


def asked_dtypes(a: np.dtype, b: np.dtype, out_dtype: Any, epilogue: Epilogue | None) -> tuple[np.dtype, np.dtype]:
    """Return the dtype of the result, and the dtype in which to multiply for this result. A product with an epilogue
    is multiplied at least in float32, and in float64 if ``alpha`` is outside the range of float32."""
    dtype = promoted(a, b)
    asked, wide = asked_dtype(dtype if out_dtype is None else out_dtype, dtype)
    if epilogue is None:
        return asked, wide
    if wide.name in ("float16", "bfloat16"):
        wide = np.dtype(np.float32)
    within = wide.kind not in "fc" or is_within(epilogue.alpha, wide)
    return asked, wide if within else np.result_type(wide, np.float64)


def block_shapes(m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of ``scale_a`` and ``scale_b`` if each block of an operand has a scale.

    >>> block_shapes(5, 300, 200)
    ((5, 2), (2, 3))
    """
    steps = -(-k // BLOCK)
    return (m, steps), (steps, -(-n // BLOCK))


def epilogue_text(
    alpha: float, beta: float, activation: str | None, arrays: Collection[str], product: str = "A·B"
) -> str:
    """An epilogue as a formula. ``arrays`` are the names of the epilogue's arrays.

    >>> epilogue_text(2, 1, "relu", ["bias", "scale_a"])
    'relu(2 · scale_a · A·B + 1 · out + bias)'
    """
    scales = [name for name in ("scale_a", "scale_b") if name in arrays]
    factors = [f"{alpha:g}"] * (alpha != 1) + scales + [product]
    added = [f"{beta:g} · out"] * (beta != 0) + ["bias"] * ("bias" in arrays)
    text = " + ".join([" · ".join(factors), *added])
    return f"{activation}({text})" if activation else text


def vector_step(name: str, shape: tuple[int, ...], strides: tuple[int, ...], size: int, axis: int) -> int:
    """Return the stride of an array that holds one number for each row (``axis`` 0) or each column (``axis`` 1) of a
    product. ``size`` is the number of these rows or columns. The stride is 0 if the array holds a single number.
    Raises ShapeError.

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


def is_within(factor: float, dtype: np.dtype) -> bool:
    """Return whether a dtype can represent a finite factor: the converted factor is finite, and is zero only if the
    factor is zero.

    >>> is_within(1e40, np.dtype("float32")), is_within(1e40, np.dtype("float64")), is_within(0.0, np.dtype("float32"))
    (False, True, True)
    """
    with np.errstate(all="ignore"):
        there = abs(dtype.type(factor))
    return bool(np.isfinite(there)) >= math.isfinite(factor) and bool(there) == bool(factor)


def _vector(name: str, value: Any, dtype: np.dtype, size: int, axis: int) -> np.ndarray:
    array = admit(value, name, by_numpy=True)
    if array.dtype.kind not in ("biufc" if dtype.kind == "c" else "biuf") and array.dtype.name != "bfloat16":
        raise DTypeError(f"{name} is {array.dtype}, which does not combine with a product of {dtype}")
    vector_step(name, array.shape, array.strides, size, axis)
    if array.size == 1:
        return array.reshape(())
    return array.reshape((size, 1) if axis == 0 else (size,))


def _activated(x: np.ndarray, activation: str | None) -> np.ndarray:
    if activation == "relu":
        return np.where(x < 0, x.dtype.type(0), x)
    if activation == "gelu":
        # 1 + erf(x) would cancel where x is negative.
        erfc = np.frompyfunc(math.erfc, 1, 1)(x.astype(np.float64) / -math.sqrt(2))
        return (x * np.asarray(erfc, np.float64) / 2).astype(x.dtype)
    if activation == "silu":
        with np.errstate(over="ignore"):
            return x / (1 + np.exp(-x))
    return x
