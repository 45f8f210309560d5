"""Products of warpgroups under way: every kind of finding on wgmma, and nothing on the intact kernel.

The kernel copies tiles with ordinary stores; ``asynchronous`` has kernels that use the copy engine.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.tensor_core_cases import CASES
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import Run, RunOptions, simulate

M, N, K = 128, 64, 128
SUMS = ", ".join(f"%{i}" for i in range(32))
OUTPUTS = ", ".join(f'"+f"(d[{i}])' for i in range(32))
SOURCE = f"""
__device__ unsigned swizzled(unsigned o) {{ return o ^ (o >> 3 & 0x70); }}
__device__ unsigned long long tile(unsigned at) {{ return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at & 0x3FFFF) >> 4; }}
extern "C" __global__ void __launch_bounds__(256) product(const unsigned short* a, const unsigned short* b, float* c) {{
    __shared__ __align__(1024) unsigned char room[192 * 128];
    unsigned base = (unsigned)__cvta_generic_to_shared(room), t = threadIdx.x, group = t / 128;
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = 0;
    for (int k = 0; k < {K}; k += 64) {{
        for (int i = t; i < 192 * 8; i += 256) {{
            const unsigned short* row = i < 1024 ? a + i / 8 * {K} : b + (i / 8 - 128) * {K};
            *(int4*)(room + swizzled(16 * i)) = *(const int4*)(row + k + i % 8 * 8);
        }}
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int q = 0; q < 4; q++)
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{SUMS}}}, %32, %33, 1, 1, 1, 0, 0;"
                         : {OUTPUTS} : "l"(tile(base + group * 8192 + q * 32)), "l"(tile(base + 16384 + q * 32)));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();  // the tiles are read
    }}
    for (int i = 0; i < 32; i++) {{
        int row = group * 64 + t % 128 / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), col = 8 * (i / 4) + 2 * (t % 4) + i % 2;
        c[row * {N} + col] = d[i];
    }}
}}
"""
FENCE, PROXY = ('        asm volatile("wgmma.fence', '        asm volatile("fence.proxy')
COMMIT, WAIT = ('        asm volatile("wgmma.commit', '        asm volatile("wgmma.wait')
SET = '        asm volatile("mov.f32 %0, 0f3F800000;" : "+f"(d[3]));'
FLIGHT = "accumulator in flight"
STORE, WRITE, MULTIPLY = "= d[i]", "*(int4*)(room", "wgmma.mma_async"

#: What is changed in the source, the kind to be found, words of its line, and words of the text.
DEFECTS = {
    "no fence of the proxy": (PROXY, f"//{PROXY}", "missing fence", MULTIPLY, "no fence.proxy.async after it"),
    "no wgmma.fence": (FENCE, f"//{FENCE}", "missing fence", MULTIPLY, "no wgmma.fence after it"),
    "a fence before the sums are changed": (
        "        for (int q", "        d[0] += 1;\n        for (int q", "missing fence", MULTIPLY, "no wgmma.fence after it",
    ),
    "no commit": (COMMIT, f"//{COMMIT}", FLIGHT, STORE, "wgmma.commit_group and a wgmma.wait_group"),
    "no wait": (WAIT, f"//{WAIT}", FLIGHT, STORE, "which has not completed"),
    "waits for all but one": ("wait_group.sync.aligned 0", "wait_group.sync.aligned 1", FLIGHT, STORE, "reads"),
    "changes a sum under way": (WAIT, f"{SET}\n{WAIT}", FLIGHT, "0f3F800000", "writes"),
    "overwrites a tile under way": (WAIT, f"//{WAIT}", "race", WRITE, "still reads (wgmma.wait_group first)"),
    "overwrites what the other group reads": (
        "__syncthreads();  // the tiles", "// the tiles", "race", WRITE, "with no barrier between",
    ),
    "multiplies before all have written": ("        __syncthreads();\n", "", "race", MULTIPLY, "with no barrier between"),
    "half a warpgroup": (
        "        for (int q = 0", "        if (t % 128 < 64) for (int q = 0", "divergent barrier", MULTIPLY, "128 threads",
    ),
}  # fmt: skip


def run(source: str) -> tuple[Run, np.ndarray]:
    """The kernel's run on small whole numbers, and the right result."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((M, K), (N, K)))
    bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    try:
        ptx = compile_source(source, name="product.cu").ptx
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    return simulate(ptx, "product", 1, 256, [*bits, np.zeros((M, N), np.float32)], RunOptions(outputs=[2])), a @ b.T


def test_the_intact_kernel_is_right_and_silent() -> None:
    made, right = run(SOURCE)
    assert made.findings == []
    np.testing.assert_array_equal(made.arrays[2], right)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_at_its_line(name: str) -> None:
    old, new, kind, line, text = DEFECTS[name]
    assert SOURCE.count(old) == 1
    source = SOURCE.replace(old, new)
    made, _ = run(source)
    lines = source.splitlines()
    found = [f for f in made.findings if f.kind == kind and line in lines[f.line - 1]]
    assert any(text in f.text for f in found), [str(f) for f in made.findings]


def test_copies_of_sums_that_the_compiler_places_are_no_accesses() -> None:
    """A ``mov`` of an accumulator between two products, from and to registers that the next product uses."""
    moved = '        asm volatile("{ .reg .f32 x; mov.f32 x, %0; mov.f32 %0, x; }" : "+f"(d[0]));\n'
    made, right = run(SOURCE.replace(WAIT, moved + WAIT))
    assert made.findings == []
    np.testing.assert_array_equal(made.arrays[2], right)


@pytest.mark.parametrize("name", [n for n in CASES if ".near.a-1-48-1040-" in n or ".near.b-1-16-1024-0-128-0" in n])
def test_descriptors_that_are_no_whole_patterns_are_found(name: str) -> None:
    """The GPU multiplies what they describe, and so does the microscope; it is hardly what was meant."""
    case = CASES[name]
    made = simulate(case.ptx, "k", case.grid, case.block, list(case.arguments))
    assert [finding.kind for finding in made.findings] == ["descriptor"]
