"""Products into memory that another library has allocated. The library passes buffers with NumPy's or DLPack's
interface and a stream, as a compiled JAX program does."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...cpu.plan import host_plan, multiplied
from ...product.operands import admit, native
from .gpu_array import CUDA, read_capsule
from .matmul import multiply_views


def multiply_buffers(context: Any, out: Any, a: Any, b: Any, precision: str | float) -> None:
    """Write the product of ``a`` and ``b`` to ``out``, which shares no memory with ``a`` and ``b`` and has the
    product's shape and dtype.

    On a GPU the work is submitted to ``context.stream``, and the buffers must exist until it is done. Raises any error
    of ``matmul``.
    """
    if out.__dlpack_device__()[0] == CUDA:
        x, y, target = (read_capsule(each.__dlpack__()) for each in (a, b, out))
        multiply_views(x, y, target, int(context.stream), precision)
        return
    with np.errstate(over="ignore"):  # a float16 product may overflow to infinity
        np.asarray(out)[...] = host_product(admit(np.asarray(a), "a"), admit(np.asarray(b), "b"), precision)


def host_product(a: np.ndarray, b: np.ndarray, precision: str | float) -> np.ndarray:
    """The product of two arrays on the host, in the dtype in which it was computed. The caller rounds the product to
    the dtype of a and b."""
    plan = host_plan(a.shape, b.shape, a.dtype, b.dtype, precision, "classical")
    if plan.narrows:  # if magnitudes allow it
        return multiplied(plan, a, b)
    c = np.empty(plan.layout.result, plan.made_dtype)
    plan.run(native(a, plan.working_dtype), native(b, plan.working_dtype), c)
    return c
