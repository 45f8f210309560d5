"""C = A·B and a softmax, in Triton: the source of triton_gemm.ptx and triton_softmax.ptx.

To make them anew: ``python triton_kernels.py`` (needs triton, no GPU).
"""

import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def gemm(a, b, c, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for first in range(0, k, TILE_K):
        depth = first + tl.arange(0, TILE_K)
        a_tile = tl.load(a + rows[:, None] * k + depth[None, :], (rows[:, None] < m) & (depth[None, :] < k), 0.0)
        b_tile = tl.load(b + depth[:, None] * n + columns[None, :], (depth[:, None] < k) & (columns[None, :] < n), 0.0)
        total = tl.dot(a_tile, b_tile, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, (rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def softmax(x, y, n, WIDTH: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, WIDTH)
    inside = tl.arange(0, WIDTH) < n
    row = tl.load(x + at, inside, -float("inf"))
    power = tl.exp(row - tl.max(row, 0))
    tl.store(y + at, power / tl.sum(power, 0), inside)


def compile_kernel(kernel, pointers, integers, constants, **options):
    """PTX for sm_80, with all operands at multiples of 16 bytes and all integers multiples of 16."""
    signature = pointers | dict.fromkeys(integers, "i32") | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers) + len(integers))}
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
    text = re.sub(r'(\.file\s+\d+ )"[^"]*/', r'\1"', compiled.asm["ptx"])  # no folders of this machine
    Path(__file__).with_name(f"triton_{kernel.fn.__name__}.ptx").write_text(text)
    print(
        kernel.fn.__name__,
        "needs",
        compiled.metadata.shared,
        "bytes of shared memory,",
        compiled.metadata.num_warps * 32,
        "threads",
    )


if __name__ == "__main__":
    tiles = {"TILE_M": 64, "TILE_N": 32, "TILE_K": 32}
    compile_kernel(gemm, {"a": "*fp16", "b": "*fp16", "c": "*fp32"}, "mnk", tiles, num_warps=4, num_stages=3)
    compile_kernel(softmax, {"x": "*fp32", "y": "*fp32"}, "n", {"WIDTH": 512}, num_warps=4)
