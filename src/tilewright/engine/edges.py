"""Tiles for every edge of C: the generated micro-kernel in the four sizes that any C is cut into."""

from __future__ import annotations

from collections.abc import Callable

import numba as nb

from .. import codegen
from .cuts import PackedBlocks


def compiled_tile(blocks: PackedBlocks) -> Callable[..., None]:
    """A compiled function ``tile(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns)``.

    It computes one tile of MR or MR − 1 rows and NV or NV − 1 vectors, of which ``columns`` elements lie inside C. These
    four tiles serve every edge: heights and widths that differ by one make up any C from 20 rows and 6 vectors on.
    """
    chosen = blocks.chosen
    mr, nv, bits, unroll = chosen.mr, chosen.nv, chosen.vector_bits, chosen.unroll
    full = codegen.edge_kernel(mr, nv, bits, unroll=unroll)
    low = codegen.edge_kernel(mr - 1, nv, bits, unroll=unroll)
    narrow = codegen.edge_kernel(mr, nv - 1, bits, unroll=unroll)
    low_narrow = codegen.edge_kernel(mr - 1, nv - 1, bits, unroll=unroll)

    @nb.njit(nogil=True)
    def tile(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns):
        if vectors == nv:
            if rows == mr:
                full(kc, a, a_stride, b, c, ldc, accumulate, columns)
            else:
                low(kc, a, a_stride, b, c, ldc, accumulate, columns)
        elif rows == mr:
            narrow(kc, a, a_stride, b, c, ldc, accumulate, columns)
        else:
            low_narrow(kc, a, a_stride, b, c, ldc, accumulate, columns)

    return tile
