"""Plans calls of ``gemm`` on the CPU, and runs the plans.

There are four ways in which ``gemm`` runs; it only scales C, it overwrites C, its kernel adds the product to C, or it
combines a separate product with C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..errors import DTypeError, ShapeError, UsageError
from ..product.epilogue import is_within
from ..product.operands import admit_out, can_write, is_masked, native, promoted
from ..product.plan import Rows
from ..product.problem import ProductShapes, combine_shapes
from .plan import HostPlan, adding_plan, host_plan, multiplied

#: The approximate size in bytes of a panel of rows of C, which is combined with a separate product.
PANEL_BYTES = 64 << 20

#: As ``c`` of a plan without an array: it stands for a C of the product's shape and dtype, disjoint from the operands.
ANY_C: Any = object()

Way = Literal["scale", "product", "add", "combine"]


@dataclass(frozen=True, eq=False, repr=False)
class GemmPlan(HostPlan):
    """The plan of one ``gemm``. ``way`` says what happens to C.

    With "scale" C is only scaled. With "product" the product overwrites C. With "add" the kernel adds the product to C
    in one pass. With "combine" α·A·B is computed into another array, ``panel`` rows at a time, and added to β·C."""

    way: Way = "product"
    panel: int = 0

    def rows(self) -> Rows:
        texts = {
            "scale": "it is scaled; A and B are not read",
            "product": "it is written, and not read",
            "add": "the product is added to it in one pass",
            "combine": f"it is combined with products of at most {self.panel} rows, each planned as this one",
        }
        return [*super().rows(), ("C", texts[self.way])]


def plan_gemm(
    alpha: complex, x: np.ndarray, y: np.ndarray, beta: complex, c: Any
) -> tuple[GemmPlan, np.ndarray, np.ndarray, np.ndarray]:
    """Return a tuple of the plan of ``gemm``, ``alpha`` and ``beta`` as arrays, and C as a plain array. The operands
    must have been checked.

    ``c`` may be ``ANY_C``.

    Raises any error that ``gemm`` raises.
    """
    for name, array in (("a", x), ("b", y)):
        if array.ndim != 2:
            raise ShapeError(f"{name} is {array.shape}: gemm takes matrices; matmul takes vectors and batches")
    shapes, dtype = combine_shapes(x.shape, y.shape), promoted(x.dtype, y.dtype)
    target = _any_c(shapes, dtype) if c is ANY_C else admit_out(c, shapes.result, dtype, "c", by_numpy=True)
    with np.errstate(all="ignore"):
        s, t = _factor("alpha", alpha, dtype, target), _factor("beta", beta, target.dtype, target)
    plan = host_plan(x.shape, y.shape, x.dtype, y.dtype)
    if s == 0 or shapes.k == 0:
        return _gemm_plan(plan, "scale"), s, t, target
    if s == 1 and t == 0:
        return _gemm_plan(plan, "product"), s, t, target
    if s == 1 and t == 1 and target.size:
        adding = adding_plan(x, y)
        if adding is not None and adding.dtype == adding.working_dtype and _can_add_to(adding, c, target, x, y):
            return _gemm_plan(adding, "add"), s, t, target
    rows = max(64, PANEL_BYTES // max(1, shapes.n * target.itemsize))
    panel = host_plan((min(rows, shapes.m), shapes.k), y.shape, x.dtype, y.dtype)
    return _gemm_plan(replace(panel, problem=plan.problem), "combine", rows), s, t, target


def runs_as_gemm(a: np.ndarray, b: np.ndarray, out: Any, alpha: float) -> bool:
    """Return whether ``matmul`` with only these arguments calls ``gemm``: the operands must be matrices, and the result
    must be computed in its own dtype."""
    dtype = promoted(a.dtype, b.dtype)
    own = dtype.name in ("float32", "float64", "complex64", "complex128")
    return out is not None and a.ndim == b.ndim == 2 and alpha != 0 and own and is_within(alpha, dtype)


def is_planned_as_gemm(a: np.ndarray, b: np.ndarray, out: Any, alpha: complex, beta: complex) -> bool:
    """Return whether the plan for these arguments is a plan of ``gemm``, because ``matmul`` would call ``gemm``, or
    because only ``gemm`` can compute the result."""
    if a.ndim != 2 or b.ndim != 2:
        return False
    dtype = promoted(a.dtype, b.dtype)
    refused = dtype.kind not in "fcV" or isinstance(alpha, complex) or isinstance(beta, complex)
    return (out is None and beta != 0) or (out is not None and alpha == 0) or refused or runs_as_gemm(a, b, out, 1.0)


def run_gemm(
    plan: GemmPlan,
    alpha: np.ndarray,
    beta: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
) -> None:
    """Run a plan that ``plan_gemm`` returned, on the same operands."""
    with np.errstate(all="ignore"):
        if plan.way == "scale":
            _scale(c, beta)
        elif plan.way == "product":
            multiplied(plan, a, b, c)
        elif plan.way == "add":
            plan.run(native(a, plan.working_dtype), native(b, plan.working_dtype), c)
        else:
            _combine(plan, alpha, a, b, beta, c)


def _scale(c: np.ndarray, beta: np.ndarray) -> None:
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        np.multiply(c, beta, out=c)


def _combine(plan: GemmPlan, alpha: np.ndarray, a: np.ndarray, b: np.ndarray, beta: np.ndarray, c: np.ndarray) -> None:
    """C ← α·A·B + β·C for so many rows of C at a time as the plan is for, so that the array that holds A·B stays small."""
    if np.may_share_memory(c, a):
        a = a.copy()
    if np.may_share_memory(c, b):
        b = b.copy()
    for row in range(0, c.shape[0], plan.panel):
        band, factor = c[row : row + plan.panel], a[row : row + plan.panel]
        is_whole = len(factor) == plan.layout.m
        each = plan if is_whole else host_plan(factor.shape, b.shape, a.dtype, b.dtype)
        product = multiplied(each, factor, b)
        if product.dtype.kind in "iu" and band.dtype.kind in "iu":  # NumPy would add uint64 and int64 as float64
            product = product.astype(band.dtype, copy=False)
        if alpha != 1:
            product = product * alpha
        if beta != 0:
            product = product + (band if beta == 1 else band * beta)
        np.copyto(band, product, casting="same_kind")


def _any_c(shapes: ProductShapes, dtype: np.dtype) -> np.ndarray:
    """An array of the product's shape whose elements are all one element in memory, for a plan that is not run: such a C
    is neither read nor written."""
    return np.broadcast_to(np.zeros((), dtype), shapes.result)


def _gemm_plan(plan: HostPlan, way: Way, panel: int = 0) -> GemmPlan:
    fields = {field: getattr(plan, field) for field in HostPlan.__dataclass_fields__}
    return GemmPlan(**fields, way=way, panel=panel)


def _can_add_to(plan: HostPlan, c: Any, target: np.ndarray, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the kernel can add the product to C in place."""
    if c is ANY_C:
        return True
    a, b = native(x, plan.working_dtype), native(y, plan.working_dtype)
    return target.dtype == plan.dtype and can_write(target, plan.working_dtype, a, b)


# ---- alpha and beta --------------------------------------------------------------------------------------------------


def _factor(name: str, value: Any, scaled: np.dtype, c: np.ndarray) -> np.ndarray:
    """The argument ``name``, alpha or beta, as a 0-D array of the dtype to which NumPy promotes it and ``scaled``.

    Raises DTypeError where that dtype does not cast to that of C, UsageError where ``value`` is not a number.
    """
    number = _number(name, value)
    if scaled.kind in "biu" and isinstance(number, float) and number.is_integer() and abs(number) < 2**63:
        number = int(number)  # 2.0 is taken as 2
    if scaled.kind == "b" and number in (0, 1):
        number = bool(number)
    dtype = np.result_type(scaled, number)
    if not np.can_cast(dtype, c.dtype, casting="same_kind"):
        raise DTypeError(
            f"{name} is {number}: the result is {dtype}, which does not cast to c, {c.dtype}, by same_kind"
        )
    exact = np.asarray(value) if isinstance(value, (np.longdouble, np.clongdouble)) else np.asarray(number)
    return exact.astype(dtype)


def _number(name: str, value: Any) -> complex:
    """``value`` as an int, a float or a complex; a whole number of more than 64 bits as a float."""
    try:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            value = float(value)
        array = np.asarray(value)
    except Exception:  # a foreign object may raise anything
        array = np.asarray(None)
    kind = {"b": int, "i": int, "u": int, "f": float, "c": complex}.get(array.dtype.kind)
    if kind is None or array.shape or is_masked(value):
        raise UsageError(f"{name} must be a number, got {type(value).__name__}")
    return kind(array)
