"""Tiles for every edge of C: the generated micro-kernel in four sizes of tiles, into which any C can be cut."""

from __future__ import annotations

from collections.abc import Callable

from ...host.machine import machine
from .. import codegen
from .cuts import PackedBlocks
from .jobs import FAR

#: Whether tiles leave out prefetches where they can: where the last cache is far away, and where vectors are so short that
#: a step has few multiply-adds to hide them behind (1 to 4 % of the time of products from 1,000 on, on Zen 3).
LEAN = codegen.setting("lean", FAR or (machine().vector_bits or 128) <= 256)


@codegen.register_jitable
def line_of_tile(x: int, lines: int) -> int:
    """Return which line of B tile ``x`` prefetches for the next sliver, of the ``lines`` lines that an iteration reads.
    Lines of different pairs are prefetched first, because L2 fetches lines in pairs.

    >>> [line_of_tile(x, 8) for x in range(9)]
    [0, 2, 4, 6, 1, 3, 5, 7, 0]
    """
    line = 2 * (x % lines)
    return line % lines + line // lines


def compiled_tile(blocks: PackedBlocks, *, lean: Callable[[], int] = LEAN) -> Callable[..., None]:
    """Return a compiled function ``tile(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns, x, near)`` that
    computes one tile.

    The tile has MR or MR − 1 rows and NV or NV − 1 vectors, of which ``columns`` elements are inside C. Two heights and
    two widths of tiles serve every edge: any C of at least 20 rows and 6 vectors can be cut into them.

    ``x`` is the tile's number in its band, and ``near`` is a ``jobs.Near``. If tiles are ``lean``, the first tile of a
    band prefetches the sliver of B, so the sliver is in L2 for the other tiles. If rows of A are in L2, too, the other
    tiles prefetch neither A nor the sliver of B.

    Without the prefetches of A and of the sliver, products of float64 take 2 to 5 % less time on a Xeon whose cores
    each run another program as well. Instead, each iteration of a tile that prefetches neither A nor its sliver
    prefetches a line of the next sliver, if there is one. Prefetching the next sliver instead of A and the present
    sliver makes products from 768³ on take 5 to 9 % less time on one thread of a Xeon with 2 MB of L2, and up to 3 %
    more on Zen 4.
    """
    chosen = blocks.chosen
    mr, nv, bits, unroll = chosen.mr, chosen.nv, chosen.vector_bits, chosen.unroll
    vector_bytes = bits // 8
    lines = unroll * nv * bits // (8 * codegen.ALIGNMENT)
    full = codegen.edge_kernel(mr, nv, bits, unroll=unroll)
    plain = codegen.edge_kernel(mr, nv, bits, unroll=unroll, near=True)
    leading = codegen.edge_kernel(mr, nv, bits, unroll=unroll, near=True, follow=True)
    low = codegen.edge_kernel(mr - 1, nv, bits, unroll=unroll)
    narrow = codegen.edge_kernel(mr, nv - 1, bits, unroll=unroll)
    low_narrow = codegen.edge_kernel(mr - 1, nv - 1, bits, unroll=unroll)
    # What the diagonal of a symmetric C leaves of a tile is computed by as few vectors.
    one, two, three = (
        codegen.edge_kernel(mr, min(few, nv - 1), bits, unroll=unroll, near=True, pitch=nv) for few in (1, 2, 3)
    )

    @codegen.njit(nogil=True)
    def tile(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns, x, near):
        ahead = near.ahead
        if vectors == nv:
            if rows == mr:
                lanes = vector_bytes // codegen.itemsize(c)
                few = (columns + lanes - 1) // lanes
                if few < nv:
                    if few == 1:
                        one(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)
                    elif few == 2:
                        two(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)
                    else:
                        three(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)
                elif not lean() or not near.cached or x == 0:
                    full(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)
                elif ahead:
                    ahead += line_of_tile(x - 1, lines) * (codegen.ALIGNMENT // codegen.itemsize(b))
                    leading(kc, a, a_stride, b, c, ldc, accumulate, columns, ahead)
                else:
                    plain(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)
            else:
                low(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)
        elif rows == mr:
            narrow(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)
        else:
            low_narrow(kc, a, a_stride, b, c, ldc, accumulate, columns, 0)

    return tile
