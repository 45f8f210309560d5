"""C = A·B and a sum, in Numba: the source of numba_kernels.ptx. To make that anew: ``python numba_kernels.py``.

Needs numba-cuda and nvidia-cuda-nvcc-cu12, no GPU.
"""

import re
from pathlib import Path

from numba import cuda, float32, int32

TILE = 16


def gemm(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for first in range(0, a.shape[1], TILE):
        inside = row < a.shape[0] and first + x < a.shape[1]
        a_tile[y, x] = a[row, first + x] if inside else float32(0)
        inside = first + y < b.shape[0] and column < b.shape[1]
        b_tile[y, x] = b[first + y, column] if inside else float32(0)
        cuda.syncthreads()
        for i in range(TILE):
            total += a_tile[y, i] * b_tile[i, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def histogram(values, counts):
    held = cuda.shared.array(0, int32)
    for i in range(cuda.threadIdx.x, counts.size, cuda.blockDim.x):
        held[i] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        cuda.atomic.add(held, values[i] % counts.size, 1)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, counts.size, cuda.blockDim.x):
        cuda.atomic.add(counts, i, held[i])


if __name__ == "__main__":
    matrix = float32[:, ::1]
    for function, types in ((gemm, (matrix, matrix, matrix)), (histogram, (int32[::1], int32[::1]))):
        text, _ = cuda.compile_ptx(function, types, cc=(8, 0), lineinfo=True)
        text = re.sub(r'(\.file\s+\d+ )"[^"]*/', r'\1"', text)  # no folders of this machine
        # Numba names a kernel after all of its types: long, and another name in another version.
        name = re.search(r"\.visible \.entry (\w+)", text)[1]
        Path(__file__).with_name(f"numba_{function.__name__}.ptx").write_text(text.replace(name, function.__name__))
