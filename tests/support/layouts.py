"""Arrays on a simulated GPU that lie in memory as a test wants them to."""

from __future__ import annotations

from typing import Any

import numpy as np


def laid(kind: Any, gpu: Any, values: np.ndarray, layout: str) -> Any:
    """``values`` as an array of a fake library's class ``kind`` that lies as its last two axes are said to.

    "rows" and "columns" follow each other in memory; "wider": rows at odd addresses; "strided": every other column of a
    wider array; "reversed": from the last element to the first; "neither": gaps between rows and between columns.
    """
    if values.ndim < 2 or layout == "rows":
        return kind.of(gpu, values)
    if layout == "columns":
        x = kind.of(gpu, np.ascontiguousarray(values.swapaxes(-1, -2)))
        return x.like(x.view.swapaxes(-1, -2))
    if layout == "reversed":
        x = kind.of(gpu, np.ascontiguousarray(values[..., ::-1, ::-1]))
        return x.like(x.view[..., ::-1, ::-1])
    if layout == "neither":
        x = kind.of(gpu, np.repeat(np.repeat(values, 2, -1), 3, -2))
        return x.like(x.view[..., ::3, ::2])
    *outer, columns = values.shape
    width, inside = {
        "wider": (columns + 9, slice(1, 1 + columns)),
        "strided": (2 * columns + 3, slice(1, 1 + 2 * columns, 2)),
    }[layout]
    wider = np.zeros((*outer, width), values.dtype)
    wider[..., inside] = values
    x = kind.of(gpu, wider)
    return x.like(x.view[..., inside])
