"""Copies that all threads of a team make together before they share a product."""

from __future__ import annotations

import numba as nb
import numpy as np

from .atomics import fetch_add, wait_for

#: Columns that one thread copies at a time.
_BLOCK = 1024


@nb.njit(nogil=True)
def copy_together(source: np.ndarray, target: np.ndarray, counters: np.ndarray, first: int) -> None:
    """Copy ``source`` (rows × columns, any strides) to the 1-D ``target`` in row-major order; return when all is copied.

    Every thread of the team calls it. It uses the counters ``first`` and ``first + 1``, which must be 0 before.
    """
    rows, columns = source.shape
    blocks = (columns + _BLOCK - 1) // _BLOCK
    while True:
        block = fetch_add(counters, first, 1)
        if block >= blocks:
            break
        for j in range(block * _BLOCK, min(columns, (block + 1) * _BLOCK)):
            for i in range(rows):
                target[i * columns + j] = source[i, j]
        fetch_add(counters, first + 1, 1)
    wait_for(counters, first + 1, blocks)
