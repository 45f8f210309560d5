"""``gemm``: C ← α·A·B + β·C in place, as BLAS means it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cpu.gemm import plan_gemm, run_gemm
from ..gpu.arrays.host_libraries import host_library
from ..product.operands import admit


def gemm(alpha: complex, a: Any, b: Any, beta: complex, c: Any) -> Any:
    """C ← α·A·B + β·C in place, as BLAS means it; returns ``c``.

    ``a`` is (m, k), ``b`` is (k, n), ``c`` a writeable (m, n) array of a dtype that the product casts to by the
    ``same_kind`` rule, or a tensor of PyTorch on the host beside two others. With ``beta`` 0 C is not read: NaN in it is
    overwritten. With ``alpha`` or k 0 A and B are not read. Otherwise NaN and infinity propagate, without a warning.
    ``c`` may overlap the operands. ``alpha`` is converted to the dtype of A·B and ``beta`` to that of C; integers and bool
    take only factors that they can represent, so not 0.5.

    Raises ShapeError, DTypeError, OperandError, UsageError (``alpha`` or ``beta`` is not a number).

    >>> import numpy as np, tilewright as tw
    >>> c = np.ones((2, 2))
    >>> tw.gemm(2.0, np.eye(2), np.eye(2), 1.0, c)
    array([[3., 1.],
           [1., 3.]])
    """
    if type(c) is not np.ndarray and (library := host_library(c)) is not None:
        for name, value in {"a": a, "b": b, "c": c}.items():
            library.refuse_recorded(value, name)
        target = library.target(c, "c")
        gemm(alpha, *library.operands(a, b, "standard"), beta, target)
        library.written(c, target)
        return c
    x, y = admit(a, "a", by_numpy=True), admit(b, "b", by_numpy=True)
    plan, s, t, target = plan_gemm(alpha, x, y, beta, c)
    run_gemm(plan, s, t, x, y, target)
    return c
