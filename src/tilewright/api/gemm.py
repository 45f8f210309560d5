"""``gemm``: C ← α·A·B + β·C in place, as in BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..cpu.gemm import plan_gemm, run_gemm
from ..gpu.arrays.host_libraries import host_library
from ..product.operands import admit

if TYPE_CHECKING:
    from ..product.array_types import ArrayT, Operand


def gemm(alpha: complex, a: Operand, b: Operand, beta: complex, c: ArrayT) -> ArrayT:
    """C ← α·A·B + β·C in place, as in BLAS.

    Parameters
    ----------
    alpha : number
        The factor α, which is converted to the dtype of A·B. For integers and bool, α must be a number that the dtype
        can represent, so 0.5 is refused. If α is 0, the operands are not read.
    a : array of shape (m, k)
        The left operand: a NumPy array, or a PyTorch tensor on the host.
    b : array of shape (k, n)
        The right operand.
    beta : number
        The factor β, which is converted to the dtype of C. If β is 0, C is not read, and NaN in C is overwritten.
    c : array of shape (m, n)
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned. ``c`` may overlap the operands, and
        must be a PyTorch tensor if the operands are tensors.

    Returns
    -------
    array of shape (m, n)
        ``c`` itself. NaN and infinity propagate without a warning.

    Raises
    ------
    ShapeError
        The operands differ in k, or ``c`` has another shape.
    DTypeError
        A dtype that cannot be multiplied, or that cannot be cast to the dtype of ``c``.
    OperandError
        An operand is not a usable matrix, or ``c`` is read-only.
    UsageError
        ``alpha`` or ``beta`` is not a number.

    See Also
    --------
    matmul : Returns the product as a new array.
    gemmt : Computes only one triangle of C.
    syrk : Multiplies a matrix by its transpose.

    Examples
    --------
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
