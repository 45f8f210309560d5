"""Products of the matrices of two lists, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ShapeError
from ..gpu.arrays.libraries import is_on_gpu


def is_list_of_matrices(value: Any) -> bool:
    """Whether it is a list, not empty, of arrays with at least two axes.

    >>> import numpy as np
    >>> is_list_of_matrices([np.eye(2), np.eye(3)]), is_list_of_matrices([[1, 2], [3, 4]])
    (True, False)
    """
    return isinstance(value, list) and bool(value) and all(len(getattr(x, "shape", ())) > 1 for x in value)


def multiply_lists(
    product: Callable[..., Any],
    a: list[Any],
    b: list[Any],
    out: Any,
    precision: str | float,
    algorithm: str,
    device: str | None,
    out_dtype: Any,
) -> list[Any]:
    """The ``product`` of each pair of arrays. Raises ShapeError for lists of unequal lengths."""
    if len(a) != len(b) or (out is not None and not (isinstance(out, list) and len(out) == len(a))):
        given = "" if out is None else f", out is {f'one of {len(out)}' if isinstance(out, list) else 'no list'}"
        raise ShapeError(f"a is a list of {len(a)} arrays, b one of {len(b)}{given}: they must be as many")

    def one(x: Any, y: Any, c: Any = None) -> Any:
        return product(x, y, c, precision=precision, algorithm=algorithm, device=device, out_dtype=out_dtype)

    if out is None and device is None and is_on_gpu(*a, *b):
        from ..gpu.arrays.lists import matmul_lists_on_gpu  # imported only here: products on the host do not need it

        return matmul_lists_on_gpu(a, b, precision, algorithm, out_dtype, one)
    return [one(x, y, c) for x, y, c in zip(a, b, [None] * len(a) if out is None else out, strict=True)]
