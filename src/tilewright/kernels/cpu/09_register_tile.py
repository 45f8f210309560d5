"""A tile of C stays in registers for KC steps of k (rows S1.10, on AVX2, and S1.11, on AVX-512, of docs/sources.md).

The tile is four vectors wide and has as many rows as the registers allow. The tile needs mr·4 accumulators, a broadcast
element of A for each row, and one vector of B, so 5·mr + 1 must not exceed the number of registers. With 16 registers
the tile has 3 rows, and with 32 it has 6: the sources of S1.10 and S1.11 found these sizes by hand. Each step of k
makes mr + 4 loads for 4·mr fused multiply-adds: 10 loads for 24 multiply-adds if mr is 6.

Around the tile are the five loops that most fast libraries use. A and B are packed into slivers that the tile reads
sequentially, whatever the operands' strides are. A sliver of B has rows of NR elements, and a sliver of A has MR rows,
one after another. Packing does not transpose A. The rows of a sliver lie KC elements apart, and a constant offset in a
load costs nothing; so packing copies whole rows.

    for j0 in steps of NC          a panel of B, NC columns           → stays in the last cache
      for p0 in steps of KC        KC rows of the panel are packed
        for i0 in steps of MC      a block of A, MC × KC, is packed   → stays in L2
          for j in steps of NR     one sliver of B                    → is read from L2 for each tile
            for i in steps of MR   micro-kernel: MR × NR of C in registers, KC steps
"""

import math

from tilewright.cpu import codegen
from tilewright.host.machine import machine
from tilewright.kernels import kernel

BITS = machine().vector_bits or 128
NV = 4
MR = max(1, ((machine().vector_registers or 16) - 1) // (NV + 1))
# C is read and written k / KC times, which calls for a large KC; but 256 or 512 would put the MR rows of a sliver of A into
# the same sets of the first-level cache.
KC = 384
# Half of L2 for the block of A, sized for 8-byte elements; the rest is for B's slivers and C passing through.
MC = max(1, (machine().l2 or 256 * 1024) // 2 // (8 * KC) // MR) * MR
NC = 4096

micro = codegen.micro_kernel(MR, NV, BITS, a_stride=KC)


@codegen.njit(nogil=True)
def pack_a(a, packed):
    """Copy a block of A into slivers of MR rows, one sliver after another. The rows of a sliver begin KC elements
    apart; rows beyond the edge of A are zero."""
    mc, kc = a.shape
    unit_stride = a.strides[1] == a.itemsize
    for i in range(0, math.ceil(mc / MR) * MR):
        if i >= mc:
            packed[i * KC : i * KC + kc] = 0
        elif unit_stride:
            codegen.copy(codegen.offset(packed, i * KC), codegen.address(a, i, 0), kc)
        else:
            for p in range(kc):
                packed[i * KC + p] = a[i, p]


@codegen.njit(nogil=True)
def pack_b(b, nr, packed):
    """Copy a block of B into slivers of ``nr`` columns, one sliver after another. Each row of a sliver is ``nr``
    elements; columns beyond the edge of B are zero."""
    kc, nc = b.shape
    unit_stride = b.strides[1] == b.itemsize
    at = 0
    for j in range(0, nc, nr):
        columns = min(nr, nc - j)
        for p in range(kc):
            if unit_stride and columns == nr:
                codegen.copy(codegen.offset(packed, at), codegen.address(b, p, j), nr)
            else:
                for s in range(columns):
                    packed[at + s] = b[p, j + s]
                packed[at + columns : at + nr] = 0
            at += nr


@codegen.njit(nogil=True)
def add_corner(corner, nr, c, accumulate):
    """Write the part of a finished tile that lies inside C, or add it to C. Tiles at the edges of C need this function,
    and so do all tiles of a C without unit stride."""
    rows, columns = c.shape
    for r in range(rows):
        for s in range(columns):
            if accumulate:
                c[r, s] += corner[r * nr + s]
            else:
                c[r, s] = corner[r * nr + s]


@kernel(
    idea="Keep a tile of C in registers for KC steps of k; the machine's vector registers determine its shape.",
    row="S1.10, S1.11",
    parent="cpu/unrolled",
    shared="tiles",
    grain=(MR, NV * BITS // 32),
    strided=True,
    params={"mr": MR, "nv": NV, "vector_bits": BITS, "kc": KC, "mc": MC, "nc": NC},
    workspace=lambda m, n, k: KC * (min(m, MC) + min(n, NC)),
)
def register_tile(a, b, c):
    m, k = a.shape
    n = b.shape[1]
    nr = NV * (BITS // 8 // c.itemsize)
    unit_stride = c.strides[1] == c.itemsize
    ldc = c.strides[0] // c.itemsize
    packed_a = codegen.aligned_buffer((min(m, MC) + MR) * KC, c)
    packed_b = codegen.aligned_buffer((min(n, NC) + nr) * min(k, KC), c)
    corner = codegen.aligned_buffer(MR * nr, c)
    if k == 0:
        c[:] = 0
    for j0 in range(0, n, NC):
        nc = min(NC, n - j0)
        for p0 in range(0, k, KC):
            kc, accumulate = min(KC, k - p0), int(p0 > 0)
            pack_b(b[p0 : p0 + kc, j0 : j0 + nc], nr, packed_b)
            for i0 in range(0, m, MC):
                mc = min(MC, m - i0)
                pack_a(a[i0 : i0 + mc, p0 : p0 + kc], packed_a)
                for j in range(0, nc, nr):
                    b_sliver = codegen.offset(packed_b, j * kc)
                    for i in range(0, mc, MR):
                        a_sliver = codegen.offset(packed_a, i * KC)
                        if unit_stride and i + MR <= mc and j + nr <= nc:
                            micro(kc, a_sliver, b_sliver, codegen.address(c, i0 + i, j0 + j), ldc, accumulate)
                        else:
                            micro(kc, a_sliver, b_sliver, codegen.offset(corner, 0), nr, 0)
                            rows, columns = min(MR, mc - i), min(nr, nc - j)
                            inside = c[i0 + i : i0 + i + rows, j0 + j : j0 + j + columns]
                            add_corner(corner, nr, inside, accumulate)
