"""Computes symmetric products on the CPU: only one triangle of the result is computed. The computed triangle is stored
alone, or also mirrored into the other triangle.

A product that overwrites all of C has a plan with a ``symmetry`` (``cpu/plan.py``). For a symmetric product that does
not overwrite all of C, C is cut into panels of rows. In each panel, the part left of the diagonal block is computed by
a ``gemm`` in place. The panel's diagonal block is computed as a separate product, and then combined with C.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ..errors import ShapeError, UsageError
from ..product.operands import admit_out, can_write
from ..product.problem import Symmetry
from .gemm import plan_gemm, run_gemm
from .plan import host_plan, make_diagonal_real, mirror_lower, multiplied

#: Rows of a panel: of fewer, packing all that is left of the diagonal takes more than a tenth of the time.
_PANEL = 768


def product_of_complex(
    a: np.ndarray, b: np.ndarray, out: Any, rows: bool, conjugate: bool, precision: str | float
) -> Any:
    """Return the product of a complex matrix and its transpose, one of them conjugated, in ``out`` or in a new
    array."""
    x, y = a, b
    if conjugate:
        x, y = (a, b.conj()) if rows else (a.conj(), b)
    symmetry: Symmetry = "hermitian" if conjugate else "gram"
    plan = host_plan(x.shape, y.shape, x.dtype, y.dtype, precision, symmetry=symmetry)
    target = None if out is None else admit_out(out, plan.layout.result, plan.dtype)
    result = multiplied(plan, x, y, target)
    if not plan.problem.symmetry:  # a kernel without triangles, or few rows
        mirror_lower(result, conjugate)
    return result if out is None else out


def check_square(a: np.ndarray, b: np.ndarray) -> None:
    """Raise ShapeError unless A·B is a square matrix."""
    if a.ndim != 2 or b.ndim != 2 or a.shape != b.shape[::-1]:
        raise ShapeError(f"a is {a.shape}, b is {b.shape}: for a symmetric product they must be (n, k) and (k, n)")


def run_triangle(
    alpha: complex, a: np.ndarray, b: np.ndarray, beta: complex, c: Any, lower: bool | None, symmetry: Symmetry
) -> None:
    """Compute C ← α·A·B + β·C for one triangle of C, or for both triangles if ``lower`` is None. Raises any error that
    ``syrk`` raises."""
    if lower is not None and not isinstance(lower, (bool, np.bool_)):
        raise UsageError(f"lower must be True, False or None, got {lower!r:.80}")
    *_, target = plan_gemm(alpha, a, b, beta, c)  # checks all of it
    if symmetry == "hermitian":
        for name, value in (("alpha", alpha), ("beta", beta)):
            if np.imag(value) != 0:
                raise UsageError(f"{name} is {value}: of a Hermitian matrix it must be real")
    if np.may_share_memory(target, a):
        a = a.copy()
    if np.may_share_memory(target, b):
        b = b.copy()
    if lower is False:
        a, b, target = b.T, a.T, target.T
    plan = host_plan(a.shape, b.shape, a.dtype, b.dtype, symmetry=symmetry)
    plain = lower is None and alpha == 1 and beta == 0 and target.dtype == plan.dtype == plan.working_dtype
    if plain and plan.problem.symmetry and can_write(target, plan.working_dtype, a, b):
        multiplied(plan, a, b, target)
        return
    with np.errstate(all="ignore"):
        _by_panels(alpha, a, b, beta, target, lower is None, symmetry)


def _by_panels(
    alpha: complex, a: np.ndarray, b: np.ndarray, beta: complex, c: np.ndarray, both: bool, symmetry: Symmetry
) -> None:
    n = len(c)
    count = max(1, math.ceil(n / _PANEL))
    edges = [n * i // count for i in range(count + 1)]
    for top, bottom in itertools.pairwise(edges):
        rows, left, block = slice(top, bottom), slice(0, top), c[top:bottom, top:bottom]
        if top:
            _gemm(alpha, a[rows], b[:, left], beta, c[rows, left])
            if both:
                beside = c[rows, left].T
                np.copyto(c[left, rows], beside.conj() if symmetry == "hermitian" else beside)
        whole = block.copy()
        _gemm(alpha, a[rows], b[:, rows], beta, whole)
        np.copyto(block, whole, where=np.tri(bottom - top, dtype=np.bool_))
        if both:
            mirror_lower(block, symmetry == "hermitian")
        elif symmetry == "hermitian" and c.dtype.kind == "c":
            make_diagonal_real(block)


def _gemm(alpha: complex, a: np.ndarray, b: np.ndarray, beta: complex, c: np.ndarray) -> None:
    plan, s, t, target = plan_gemm(alpha, a, b, beta, c)
    run_gemm(plan, s, t, a, b, target)
