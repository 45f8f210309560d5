"""Registers that warps take and give back, launches that no GPU takes, and what the compiler says: as findings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.asynchronous_kernels import KERNELS
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import RunOptions, compiled_launch, simulate
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.program import link
from tilewright.simulator.findings import LAUNCH, REGISTERS, SERIALISED, Finding

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")

#: One warp group gives registers back, two take them: 128·40 + 256·232 = 64,512 = 384·168.
GIVES = """
extern "C" __global__ void __launch_bounds__(384, 1) k(int* out) {
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        out[threadIdx.x] = 1;
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        out[threadIdx.x] = 2;
    }
}"""
#: 1,024 threads that keep 96 numbers each.
HEAVY = """
extern "C" __global__ void k(float* x) {
    float a[96], sum = 0;
    for (int i = 0; i < 96; i++) a[i] = x[i * blockDim.x + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int j = 0; j < 3; j++) for (int i = 0; i < 96; i++) sum += a[i] * a[(i * 7 + j) % 96];
    x[threadIdx.x] = sum;
}"""
SHARED = """
extern "C" __global__ void k(float* x) {
    extern __shared__ float s[];
    s[threadIdx.x] = 1;
    x[threadIdx.x] = s[threadIdx.x];
}"""


def findings(source: str, block: int, size: int, **given: Any) -> list[Finding]:
    try:
        return tw.microscope(source, "k", given.pop("grid", 1), block, [np.zeros(size, np.float32)], **given).findings
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")


def test_registers_that_the_block_has_are_silent() -> None:
    assert findings(GIVES, 384, 384) == []


@pytest.mark.parametrize(
    ("old", "new", "lines", "says"),
    [
        ("232", "240", [7], "would hold 66,560 registers, and a block of 384 threads has 64,512 (168 a thread)"),
        ("u32 40", "u32 96", [7], "would hold 71,680 registers"),
        ("< 128", "< 96", [4, 7], "executed by 3 of the 4 warps of a warp group"),
        ("__launch_bounds__(384, 1)", "", [4], "'setmaxnreg' ignored; unable to determine register count at entry"),
    ],
)
def test_registers_that_the_block_does_not_have(old: str, new: str, lines: list[int], says: str) -> None:
    found = findings(GIVES.replace(old, new), 384, 384)
    assert [(f.kind, f.line) for f in found] == [(REGISTERS, line) for line in lines]
    assert says in found[0].text


def test_without_the_binary_the_directives_say_how_many_registers_there_are() -> None:
    try:
        ptx = compile_source(GIVES.replace("232", "240"), name="test.cu", arch="sm_90a").ptx
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    run = simulate(ptx, "k", 1, 384, [np.zeros(384, np.int32)])
    assert [f.kind for f in run.findings] == [REGISTERS]
    assert simulate(ptx, "k", 1, 384, [np.zeros(384, np.int32)], RunOptions(registers=240)).findings == []


def test_more_registers_than_a_block_may_have() -> None:
    found = findings(HEAVY, 1024, 96 * 1024)
    assert [f.kind for f in found] == [LAUNCH]
    assert "registers a block (1,024 threads of " in found[0].text
    assert "of 65,536 at most" in found[0].text
    assert findings(HEAVY, 256, 96 * 1024) == []


def test_more_shared_memory_than_the_architecture_has() -> None:
    found = findings(SHARED, 32, 32, arch="sm_80", shared_bytes=200 << 10)
    assert [f.kind for f in found] == [LAUNCH]
    assert "204,800 bytes of shared memory a block, of 166,912 at most" in found[0].text
    assert findings(SHARED, 32, 32, arch="sm_90", shared_bytes=200 << 10) == []


def test_clusters_on_a_gpu_without_them() -> None:
    found = findings(SHARED, 32, 32, arch="sm_80", shared_bytes=128, cluster=2, grid=2)
    assert [f.kind for f in found if f.kind == LAUNCH] == [LAUNCH]
    assert compiled_launch.cluster_notes((16, 1, 1)) != []
    assert compiled_launch.cluster_notes((8, 1, 1)) == []


def test_wgmma_that_the_compiler_serialises_is_named_with_its_line() -> None:
    kernel = KERNELS["product bf16"]
    text = kernel.path.read_text(encoding="utf-8")
    changed = text.replace(
        "        Sum d[64];\n", "        Sum d[64];\n        for (int i = 0; i < 64; i++) d[i] = i;\n"
    )
    changed = changed.replace("step > 0 || q > 0)", "1)")
    for source, kinds in ((text, []), (changed, [SERIALISED])):
        try:
            compiled = compile_source(source, name=str(kernel.path), arch="sm_90a", defines=kernel.defines)
        except UnavailableError as error:
            pytest.skip(f"no CUDA compiler: {error}")
        found = list(compiled_launch.compiler_findings(compiled, link(parse_ptx(compiled.ptx), kernel.entry)))
        assert [f.kind for f in found] == kinds
        assert all(f.line and "wgmma.mma_async instructions are serialized" in f.text for f in found)
