"""float16 and bfloat16 are multiplied as float32: widened while they are packed, and C is rounded once, at the end.

Between phases of k, C stands in the workspace as float32; the last phase rounds each tile while it is in the cache. So no
operand is copied whole, and an element is the float32 product's, rounded: to nearest, to infinity beyond the largest.

Numba knows neither dtype: compiled code sees float16 as unsigned and bfloat16 as signed 16-bit integers.
"""

import numba as nb
import numpy as np

from tilewright import codegen
from tilewright.engine import jobs
from tilewright.kernels import kernel

convert, widen = codegen.row_converter(jobs.BITS), codegen.converting_packer(jobs.BITS)


@nb.njit(nogil=True, inline="always")
def write(kc, a, b, c, top, rows, left, columns, vectors, accumulate, ends, corner):
    """Into the wide C; from there, when it is complete, into the caller's."""
    narrow, wide = c
    inside = rows >= jobs.MR - 1
    width = vectors * (jobs.BITS // 8 // codegen.itemsize(corner))
    where = codegen.address(wide, top, left) if inside else codegen.offset(corner, 0)
    ldc = wide.shape[1] if inside else width
    old = accumulate if inside else 0
    jobs.tile(kc, a, b, where, ldc, old, rows if inside else jobs.MR, vectors, columns if inside else width)
    for r in range(rows):
        row = codegen.address(wide, top + r, left)
        if not inside:
            for s in range(columns):
                before = wide[top + r, left + s] if accumulate else np.float32(0)
                wide[top + r, left + s] = before + corner[r * width + s]
        if ends:
            convert(row, wide.itemsize, codegen.address(narrow, top + r, left), narrow.strides[1], columns)


product = jobs.team_product(*jobs.packers(widen), write)


@kernel(
    order=20,
    idea="Multiply float16 and bfloat16 as float32: widened while packing, rounded once while writing.",
    row="S1.11",
    parent="cpu/packed",
    dtypes=("float16", "bfloat16"),
    shared="team",
    grain=(jobs.MR, jobs.NR),
    strided=True,
    params={"mr": jobs.MR, "nv": jobs.NV, "vector_bits": jobs.BITS, "kc": jobs.KC, "mc": jobs.MC, "nc": jobs.NC},
    workspace=lambda m, n, k: 2 * (jobs.space_needed(m, n, k) + m * n),
    counters=jobs.counters_needed,
    suits=lambda m, n, k: True,
)
def half_floats(a, b, c, space, counters):
    (m, k), n = a.shape, b.shape[1]
    if k == 0:
        c[:] = 0
    floats = space.view(np.float32)
    wide = floats[floats.size - m * n :].reshape(m, n)
    product(a, b, (c, wide), m, n, k, floats[: floats.size - m * n], counters)
