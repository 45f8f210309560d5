"""Packing: copies part of a matrix of any strides to consecutive rows, with vector instructions.

Where neighbours in memory are neighbours in a row (forwards or backwards), rows are copied; where they are neighbours in
a column, squares are transposed in registers. A matrix that has neither is gathered element by element.
"""

from __future__ import annotations

from collections.abc import Callable

import numba as nb
import numpy as np

from .memory import address, offset
from .transpose import square_transpose, strided_copy, vector_copy


def packer(vector_bits: int) -> Callable[..., None]:
    """A compiled function ``pack(source, top, rows, left, columns, target, at, ld)``.

    It writes ``target[at + r·ld + s] = source[top + r, left + s]`` for all ``rows`` and ``columns``: ``source`` is a matrix
    of any strides, ``target`` a contiguous array of the same dtype. If ``ld`` exceeds the number of columns, the elements
    between the rows are not written.
    """
    transpose = square_transpose(vector_bits)
    gather = strided_copy(vector_bits)
    forwards, backwards = vector_copy(vector_bits), vector_copy(vector_bits, backwards=True)

    @nb.njit(nogil=True)
    def pack(
        source: np.ndarray, top: int, rows: int, left: int, columns: int, target: np.ndarray, at: int, ld: int
    ) -> None:
        down, along = source.strides
        item = source.itemsize
        lanes = vector_bits // 8 // item
        high, wide = 0, 0  # rows and columns that vectors copy
        if along == item or along == -item:
            high, wide = rows, columns // lanes * lanes
            for r in range(rows):
                if along > 0:
                    for s in range(0, wide, lanes):
                        forwards(address(source, top + r, left + s), offset(target, at + r * ld + s))
                else:
                    for s in range(0, wide, lanes):
                        backwards(address(source, top + r, left + s), offset(target, at + r * ld + s))
        elif down == item or down == -item:
            high, wide = rows // lanes * lanes, columns // lanes * lanes
            first, step = (0, ld) if down > 0 else (lanes - 1, -ld)  # a negative stride reverses the rows
            for s in range(0, wide, lanes):
                for r in range(first, high, lanes):
                    transpose(address(source, top + r, left + s), along, offset(target, at + r * ld + s), step)
        else:
            high, wide = rows, columns // lanes * lanes
            for r in range(rows):
                for s in range(0, wide, lanes):
                    gather(address(source, top + r, left + s), along, offset(target, at + r * ld + s))
        for r in range(rows):
            for s in range(wide if r < high else 0, columns):
                target[at + r * ld + s] = source[top + r, left + s]

    return pack
