"""Products in Triton for Blackwell: the source of triton_scaled.ptx and triton_descriptors.ptx.

The first multiplies e2m1 with a scale for each 32 numbers of K; the second reads its operands by tensor maps, which
the kernel makes itself. To make them anew: ``python triton_blackwell.py`` (needs triton, no GPU).
"""

import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def scaled(a, of_a, b, of_b, c, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for first in range(0, k, TILE_K):
        pairs = first // 2 + tl.arange(0, TILE_K // 2)
        blocks = first // 32 + tl.arange(0, TILE_K // 32)
        a_tile = tl.load(a + rows[:, None] * (k // 2) + pairs[None, :])
        b_tile = tl.load(b + columns[:, None] * (k // 2) + pairs[None, :])
        a_scales = tl.load(of_a + rows[:, None] * (k // 32) + blocks[None, :])
        b_scales = tl.load(of_b + columns[:, None] * (k // 32) + blocks[None, :])
        total = tl.dot_scaled(a_tile, a_scales, "e2m1", b_tile.T, b_scales, "e2m1", total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def descriptors(a, b, c, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    a_map = tl.make_tensor_descriptor(a, [m, k], [k, 1], [TILE_M, TILE_K])
    b_map = tl.make_tensor_descriptor(b, [n, k], [k, 1], [TILE_N, TILE_K])
    top, left = tl.program_id(0) * TILE_M, tl.program_id(1) * TILE_N
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for first in range(0, k, TILE_K):
        total = tl.dot(a_map.load([top, first]), b_map.load([left, first]).T, total)
    rows, columns = top + tl.arange(0, TILE_M), left + tl.arange(0, TILE_N)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


def compile_kernel(kernel, pointers, tiles):
    """PTX for sm_100a, with all operands at multiples of 16 bytes and all integers multiples of 16."""
    constants = dict(zip(("TILE_M", "TILE_N", "TILE_K"), tiles, strict=True))
    signature = pointers | dict.fromkeys("mnk", "i32") | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers) + 3)}
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 100, 32), options={"num_warps": 4})
    ptx = re.sub(r'(\.file\s+1\s+)"[^"]*"', r'\1"triton_blackwell.py"', compiled.asm["ptx"])
    print(
        kernel.fn.__name__,
        compiled.metadata.shared,
        "bytes of shared memory",
        compiled.metadata.global_scratch_size,
        "of scratch",
    )
    return re.sub(r"\.section\s+\.debug.*", "", ptx, flags=re.S)


if __name__ == "__main__":
    here = Path(__file__).parent
    four_bits = {"a": "*u8", "of_a": "*u8", "b": "*u8", "of_b": "*u8", "c": "*fp32"}
    (here / "triton_scaled.ptx").write_text(compile_kernel(scaled, four_bits, (128, 32, 128)))
    (here / "triton_descriptors.ptx").write_text(
        compile_kernel(descriptors, {"a": "*fp16", "b": "*fp16", "c": "*fp32"}, (128, 32, 64))
    )
