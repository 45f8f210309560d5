"""Adds products in float32 in several orders with NumPy, and measures the errors: the experiment of docs/accuracy.md.

``python docs/summation.py`` writes a record. It uses the operands of the GPU benchmarks, from the same seed, and compares
the same elements of C. If a kernel gives the same bits as an order of addition here, the kernel adds in that order.

The typical error of a sum is ‖C − A·B‖ divided by ‖A·B‖. A rule predicts it: each rounding adds an error proportional to
the current partial sum, and if terms have random signs, the mean square of a partial sum grows in proportion to its number
of terms. So the typical error is ROUNDING·u·√d, where d is the number of roundings that affect a product on average. For a
running sum over k, d is about k/2.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.lab.bench.device import random_values
from tilewright.lab.inputs.formats import FORMATS
from tilewright.lab.verify.verify import ErrorSample
from tilewright.records.bench import BenchRecord, write_records
from tilewright.records.report.accuracy import ROUNDING

RECORD = Path(__file__).parent.parent / "benchmarks" / "cpu-error-orders.jsonl"
SIZES = (256, 512, 1024, 2048, 4096)
LEAVES = (4096, 2048, 1024, 512, 256)
SEED = 1
#: The length of a panel of k in cpu/register_tile.
KC = 384

Matrix = NDArray[np.float32]

# ---- orders of addition


def running(a: Matrix, b: Matrix) -> Matrix:
    """Return A·B with one running sum over all of k, as fused multiply-adds compute it.

    A float64 holds each product exactly, so only the sum is rounded.
    """
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    wide_a, wide_b = a.T.astype(np.float64), b.astype(np.float64)
    for column, row in zip(wide_a, wide_b, strict=True):
        total = (total + np.multiply.outer(column, row)).astype(np.float32)
    return total


def blocks(a: Matrix, b: Matrix, kc: int) -> Matrix:
    """Return A·B with one running sum for each block of ``kc`` elements of k; the sums are added one after another.

    Kernels that sum a panel of k in registers add in this order.
    """
    parts = range(0, a.shape[1], kc)
    return functools.reduce(np.add, (running(a[:, p : p + kc], b[p : p + kc]) for p in parts))


def leaves(a: Matrix, b: Matrix, leaf: int, kc: int) -> Matrix:
    """Return A·B as a sum of products ``blocks`` for each ``leaf`` elements of k.

    This is a classical product whose sums are as long as those in the leaves of Strassen's recursion.
    """
    parts = range(0, a.shape[1], leaf)
    return functools.reduce(np.add, (blocks(a[:, p : p + leaf], b[p : p + leaf], kc) for p in parts))


def rounded_operands(a: Matrix, b: Matrix) -> Matrix:
    """Return a running sum over operands that are first rounded to TF32, which has 10 bits of fraction."""
    return running(_tf32(a), _tf32(b))


def _tf32(x: Matrix) -> Matrix:
    return ((np.ascontiguousarray(x).view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def lanes(a: Matrix, b: Matrix, count: int) -> Matrix:
    """Return A·B with ``count`` running sums, each of every ``count``-th product, which are then added by halves.

    Kernels whose accumulators are the lanes of vectors add in this order.
    """
    return folded([running(a[:, i::count], b[i::count]) for i in range(count)])


def dealt(a: Matrix, b: Matrix, parts: int, slice: int) -> Matrix:
    """Return A·B with ``parts`` running sums that take turns of ``slice`` products; the sums are added one after another."""
    turn = np.arange(a.shape[1]) // slice % parts
    return functools.reduce(np.add, (running(a[:, turn == i], b[turn == i]) for i in range(parts)))


def pairwise(a: Matrix, b: Matrix) -> Matrix:
    """Return A·B by pairwise summation of rounded products."""
    return folded([np.multiply.outer(column, row) for column, row in zip(a.T, b, strict=True)])


def folded(parts: Sequence[Matrix]) -> Matrix:
    """Return the sum of matrices, whose number is a power of 2, by adding the second half of them to the first half."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [x + y for x, y in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


ORDERS: dict[str, Callable[..., Matrix]] = {
    "sum/running": running,
    "sum/blocks": blocks,
    "sum/lanes": lanes,
    "sum/pairwise": pairwise,
    "sum/dealt": dealt,
    "sum/leaves": leaves,
    "sum/rounded_operands": rounded_operands,
}

# ---- what is expected of them


def roundings(order: str, k: int, *, kc: int = 0, count: int = 0, leaf: int = 0, parts: int = 1, **_: int) -> float:
    """Return d, the number of roundings that affect a product on average.

    >>> roundings("sum/running", 1024), roundings("sum/pairwise", 1024)
    (512.5, 11.0)
    >>> roundings("sum/blocks", 1024, kc=64)  # half a block, and half of 16 blocks
    40.9375
    """
    if order == "sum/running":
        return (k + 1) / 2
    if order == "sum/pairwise":
        return 1 + math.log2(k)
    if order == "sum/lanes":
        return roundings("sum/running", k // count) + math.log2(count)
    if order == "sum/dealt":  # the parts are blocks in another order, where they are alike
        return roundings("sum/blocks", k, kc=k // parts)
    inside = functools.partial(roundings, "sum/blocks", kc=kc) if leaf else functools.partial(roundings, "sum/running")
    length = leaf or kc
    sizes = [min(length, k - p) for p in range(0, k, length)]
    # The first two of the parts' sums meet in the first of the additions.
    return sum(size * (inside(size) + len(sizes) - max(1, i)) for i, size in enumerate(sizes)) / k


def expected(order: str, k: int, **params: int) -> float:
    """Return the typical error that the rule predicts, in units of u = 2^-24.

    Rounding uniform operands to 11 bits changes each by 2^-11/√7 of its size in the root mean square, independent of k.
    In one binade the mean square of the errors is one third of the square of half a unit. The sum over all binades is 1/7
    of the mean square of the operands, in the same units.
    """
    if order == "sum/rounded_operands":
        return math.hypot(expected("sum/running", k), math.sqrt(2 / 7) * 2**13)
    return ROUNDING * math.sqrt(roundings(order, k, **params))


# ---- Strassen's scheme and Winograd's: rows are products, columns A11 A12 A21 A22, the same of B and of C

STRASSEN = (
    [[1, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0], [-1, 0, 1, 0], [0, 1, 0, -1]],
    [[1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, -1], [-1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]],
    [[1, 0, 0, 1], [0, 0, 1, -1], [0, 1, 0, 1], [1, 0, 1, 0], [-1, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]],
)
WINOGRAD = (
    [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, -1, -1], [0, 0, 0, 1], [0, 0, 1, 1], [-1, 0, 1, 1], [1, 0, -1, 0]],
    [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, -1, -1, 1], [-1, 1, 0, 0], [1, -1, 0, 1], [0, -1, 0, 1]],
    [[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 0], [0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]],
)
SCHEMES = {"cpu/strassen": STRASSEN, "cpu/strassen_winograd": WINOGRAD}


def growth(scheme: tuple[Sequence[Sequence[int]], ...]) -> float:
    """Return the factor by which one level of recursion multiplies the mean squared error, relative to C.

    The product of a sum of x quarters of A and a sum of y quarters of B has x·y times the variance of the product of two
    quarters, and its squared error grows as much. A quarter of C adds several such products. Terms that do not belong to
    the quarter cancel, and a variance of 2 remains.

    >>> growth(STRASSEN), growth(WINOGRAD)
    (4.0, 7.0)
    """
    a, b, c = (np.square(part) for part in scheme)
    return float((c * np.outer(a.sum(axis=1) * b.sum(axis=1), np.ones(4))).sum() / 4 / 2)


def expected_of_recursions(k: int, leaf: int) -> dict[str, float]:
    """Return the predicted typical errors, in units of u, of Strassen-like kernels that recurse down to ``leaf``.

    The prediction ignores the roundings when quarters are added.
    """
    of_leaf, levels = expected("sum/blocks", leaf, kc=KC), math.log2(k / leaf)
    return {kernel: of_leaf * growth(scheme) ** (levels / 2) for kernel, scheme in SCHEMES.items()}


# ---- the experiment


@functools.cache
def operands(k: int) -> tuple[Matrix, Matrix, ErrorSample]:
    """Return rows of A, columns of B, and the exact product of these with which results are compared."""
    a, b = (np.asarray(x, np.float32) for x in random_values((k, k, k), FORMATS["float32"], SEED))
    sample = ErrorSample(a, b)
    return a[sample.rows], np.ascontiguousarray(b[:, sample.columns]), sample


def record(order: str, k: int, **params: int) -> BenchRecord:
    """Measure the typical error of one order of addition for products of size k, and return it as a record."""
    a, b, sample = operands(k)
    about = {"expected": expected(order, k, **params)}
    if "leaf" in params:
        about |= expected_of_recursions(k, params["leaf"])
    error = sample.rms_error(ORDERS[order](a, b, **params))
    environment = {"command": "python docs/summation.py", "numpy": np.__version__}
    known: dict[str, Any] = {"about": about, "rms_error": error, "seed": SEED, "environment": environment}
    return BenchRecord(order, "cpu", k, k, k, "float32", "ok", params=params, **known)


def main() -> int:
    """Measure all orders of addition at all sizes, and write the record."""
    made = []
    for k in SIZES:
        made += [record("sum/running", k), record("sum/blocks", k, kc=KC), record("sum/lanes", k, count=64)]
        made += [record("sum/pairwise", k), record("sum/dealt", k, parts=4, slice=8), record("sum/rounded_operands", k)]
    made += [record("sum/leaves", LEAVES[0], leaf=leaf, kc=KC) for leaf in LEAVES]
    RECORD.unlink(missing_ok=True)
    write_records(RECORD, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
