"""How a plan on the CPU runs: operands in the dtype in which it multiplies, the result in that of the product."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..cpu.runtime.narrowed import multiply_narrowed
from ..product.operands import can_write, native
from .choice import INVARIANT
from .host import HostPlan

#: ``run(plan, a, b, c)``: multiplies arrays of its ``working_dtype`` into ``c``.
Run = Callable[[HostPlan, np.ndarray, np.ndarray, np.ndarray], None]


def multiplied(
    plan: HostPlan, x: np.ndarray, y: np.ndarray, target: np.ndarray | None = None, run: Run | None = None
) -> np.ndarray:
    """The product of operands that ``plan`` was made for: in ``target``, which it casts to, or in a new array. ``run``: what
    multiplies, if not the plan itself."""
    run = run or HostPlan.run
    if plan.narrows:
        x, y = native(x, plan.dtype), native(y, plan.dtype)
        part = functools.partial(run, plan)
        narrow = multiply_narrowed(part, x, y, plan.working_dtype, plan.layout.result, target)
        if narrow is not None:
            return narrow
        plan = plan.unnarrowed
    x, y = native(x, plan.working_dtype), native(y, plan.working_dtype)
    direct = target is not None and plan.dtype == plan.stored_dtype and can_write(target, plan.stored_dtype, x, y)
    if direct and target is not None and plan.problem.precision == INVARIANT:
        # Cᵀ = Bᵀ·Aᵀ, as which other layouts are computed, adds the terms of complex products in another order.
        direct = target.strides[-1:] == (target.itemsize,)
    c = target if direct and target is not None else np.empty(plan.layout.result, plan.made_dtype)
    run(plan, x, y, c)
    if target is None:
        return _rounded(c, plan.dtype)
    if not direct:
        with np.errstate(all="ignore"):  # a narrower dtype may overflow to infinity
            np.copyto(target, _rounded(c, plan.dtype), casting="same_kind")
    return target


def _rounded(c: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if c.dtype == dtype:
        return c
    if dtype.kind == "b":
        return c != 0
    with np.errstate(over="ignore"):  # a float16 product may overflow to infinity, as with NumPy
        return c.astype(dtype)
