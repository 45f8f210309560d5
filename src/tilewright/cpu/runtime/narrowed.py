"""Operands in a narrower dtype: float64 as float32, where neither the operands nor any product of theirs leaves its range.

Each matrix may be multiplied by a power of two, which is exact, and the result is divided by both. With A and B scaled to
magnitudes below 1, no sum overflows. If the least magnitudes that are not zero are a and b, all products are at least a·b:
from 2^-126 on, a rounding to a subnormal number errs by at most 2^-150, which is no more than the unit roundoff of float32
times the product. So the bound of the error is that of arithmetic without limits of exponents.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ...host.limits import get_threads
from .runner import Product
from .slices import even_slices
from .threads import Team

#: Elements of a piece that is converted while it is in the second cache, and the least elements for each thread.
_PIECE, _LEAST = 1 << 15, 1 << 18
_MAGNITUDE = np.uint64((1 << 63) - 1)
#: The exponents of the least normal number of float32, and of the power of two above its largest one.
_LOWEST, _HIGHEST = -126, 128


def multiply_narrowed(
    run: Product, a: np.ndarray, b: np.ndarray, dtype: np.dtype, shape: tuple[int, ...], target: np.ndarray | None
) -> np.ndarray | None:
    """The product of ``a`` and ``b``, of this shape, computed by ``run`` in the narrower ``dtype``: in ``target`` or a new
    array. None where the magnitudes do not allow it; then nothing is written."""
    narrow = narrowed_operands(a, b, dtype)
    if narrow is None:
        return None
    x, y, exponent = narrow
    c = np.empty(shape, dtype)
    run(x, y, c)
    target = np.empty(shape, a.dtype) if target is None else target
    widened(c, exponent, target)
    return target


def narrowed_operands(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, int] | None:
    """``a`` and ``b`` of float64 (or complex128) in the narrower ``dtype``, and the exponent of the power of two by which
    their product must be multiplied; None where there is no such pair, as with an infinity or a NaN.

    >>> x, y, exponent = narrowed_operands(np.array([[2.0**500]]), np.array([[2.0**-490]]), np.dtype(np.float32))
    >>> float(np.ldexp(x @ y, exponent)[0, 0])
    1024.0
    >>> narrowed_operands(np.array([[1, 2.0**-100]]), np.array([[1], [2.0**-100]]), np.dtype(np.float32)) is None
    True
    """
    (x, *of_a), (y, *of_b) = _narrowed(a, dtype), _narrowed(b, dtype)
    (least_a, most_a), (least_b, most_b) = (_exponents(*each) for each in (of_a, of_b))
    if math.isinf(most_a) or math.isinf(most_b) or least_a - most_a + least_b - most_b < _LOWEST:
        return None
    of_sums = (2 * a.shape[-1]).bit_length()  # a part of a complex number has twice as many products
    in_range = min(least_a, least_b, least_a + least_b) >= _LOWEST
    if in_range and max(most_a, most_b, most_a + most_b + of_sums) < _HIGHEST:
        return x, y, 0
    return _scaled(a, -int(most_a), dtype), _scaled(b, -int(most_b), dtype), int(most_a + most_b)


def widened(c: np.ndarray, exponent: int, target: np.ndarray) -> None:
    """Write ``c``, multiplied by the power of two of this exponent, to ``target`` of any strides and dtype."""

    def convert(rows: slice) -> None:
        with np.errstate(all="ignore"):  # the result may overflow to infinity
            if not exponent:
                np.copyto(target[rows], c[rows], casting="unsafe")
                return
            wide = np.empty(c[rows].shape, np.result_type(c, np.float64))
            for source, part in zip(_parts(c[rows]), _parts(wide), strict=True):
                np.ldexp(source.astype(np.float64), exponent, out=part)
            np.copyto(target[rows], wide, casting="unsafe")

    _shared(convert, len(c), c.size)


def _narrowed(x: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, float, float]:
    """``x`` in the narrower dtype, and its least magnitude but zero and its largest: infinite with an infinity or a NaN, and
    infinite and zero without any number but zero."""
    if not x.flags.c_contiguous and x.ndim > 1 and x.swapaxes(-1, -2).flags.c_contiguous:
        narrow, least, most = _narrowed(x.swapaxes(-1, -2), dtype)
        return narrow.swapaxes(-1, -2), least, most
    narrow = np.empty(x.shape, dtype)
    source = np.ascontiguousarray(x).reshape(-1).view(np.float64)
    target = narrow.reshape(-1).view(np.float32)
    found: list[tuple[int, int]] = []

    def convert(part: slice) -> None:
        least, most = (1 << 64) - 1, 0
        bits = np.empty(_PIECE, np.uint64)
        with np.errstate(all="ignore"):
            for low in range(part.start, part.stop, _PIECE):
                piece = source[low : min(low + _PIECE, part.stop)]
                target[low : low + piece.size] = piece
                magnitude = np.bitwise_and(piece.view(np.uint64), _MAGNITUDE, out=bits[: piece.size])
                most = max(most, int(magnitude.max()))
                magnitude -= np.uint64(1)  # so that zero is larger than every other
                least = min(least, int(magnitude.min()))
        found.append((least, most))

    _shared(convert, source.size, source.size)
    most = max((high for _, high in found), default=0)
    least = min((low for low, _ in found), default=0) + 1
    return narrow, _as_float(least) if most else math.inf, _as_float(most)


def _as_float(bits: int) -> float:
    value = float(np.uint64(bits).view(np.float64))
    return math.inf if math.isnan(value) else value


def _exponents(least: float, most: float) -> tuple[float, float]:
    """Exponents of the powers of two that are at most the least magnitude, and above the largest one; both 0 without any."""
    if not most:
        return 0, 0
    if math.isinf(most):
        return 0, math.inf
    return math.frexp(least)[1] - 1, math.frexp(most)[1]


def _scaled(x: np.ndarray, exponent: int, dtype: np.dtype) -> np.ndarray:
    scaled = np.empty_like(x, dtype)
    for source, part in zip(_parts(x), _parts(scaled), strict=True):
        part[...] = np.ldexp(source, exponent)
    return scaled


def _parts(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Views of the real and the imaginary part."""
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def _shared(job: Callable[[slice], None], length: int, size: int) -> None:
    """Cut a ``length`` among the threads that pay for ``size`` elements."""
    threads = max(1, min(get_threads(), size // _LEAST))
    Team(threads).run([functools.partial(job, part) for part in even_slices(length, threads)])
