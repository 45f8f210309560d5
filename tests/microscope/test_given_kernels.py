"""Kernels of other libraries: PTX of any compiler is assembled, hidden arguments and shared memory come by themselves."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import OperandError, UnavailableError, UsageError
from tilewright.gpu.runtime import assembler
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator.given_kernels import given_kernel

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

DATA = Path(__file__).parents[1] / "data"
TWICE = 'extern "C" __global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'


def text(name: str) -> str:
    return (DATA / f"{name}.ptx").read_text(encoding="utf-8")


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(list(shape)).integers(-3, 4, shape).astype(dtype)


def triton_gemm(**metadata: Any) -> Any:
    """What ``triton.compile`` returned for ``triton_kernels.gemm``."""
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    signature = types | dict.fromkeys(("TILE_M", "TILE_N", "TILE_K"), "constexpr")
    facts = SimpleNamespace(name="gemm", shared=12288, global_scratch_size=0, tensordesc_meta=None, **metadata)
    return SimpleNamespace(asm={"ptx": text("triton_gemm")}, metadata=facts, src=SimpleNamespace(signature=signature))


@pytest.mark.parametrize("constants", [(), (64, 32, 32)], ids=["without constants", "as it is called"])
def test_a_compiled_kernel_of_triton(constants: tuple[int, ...]) -> None:
    """It brings shared memory, threads, and two pointers that nobody passes; its counts stand at Python lines."""
    a, b, c = (
        numbers(64, 64, dtype=np.float16),
        numbers(64, 32, dtype=np.float16),
        np.full((64, 32), np.nan, np.float32),
    )
    seen = tw.microscope(triton_gemm(), grid=(1, 1), args=[a, b, c, 64, 32, 64, *constants], outputs=[2])
    np.testing.assert_array_equal(seen.arrays[2], a.astype(float) @ b.astype(float))
    assert len(seen.arrays) == 6 + len(constants)
    assert (seen.findings, seen.block, seen.shared_bytes) == ([], (128, 1, 1), 12288)
    assert seen.resources is not None
    assert {Path(access.file).name for access in seen.accesses} == {"triton_kernels.py"}
    loads = [
        n for n, row in enumerate((DATA / "triton_kernels.py").read_text().splitlines(), 1) if "tl.load(a +" in row
    ]
    assert loads[0] in {access.line for access in seen.accesses if access.kind == "cp.async"}


def test_a_kernel_inside_what_torch_compile_keeps() -> None:
    kernel = triton_gemm()
    for around in (SimpleNamespace(kernel=kernel), SimpleNamespace(compile_results=[SimpleNamespace(kernel=kernel)])):
        assert given_kernel(around).kernel == "gemm"
    with pytest.raises(UsageError, match="2 compiled kernels: give one of its compile_results"):
        given_kernel(SimpleNamespace(compile_results=[kernel, kernel]))


def test_triton_passes_a_descriptor_as_map_shape_and_strides() -> None:
    described = {"swizzle": 3, "block_size": [8, 64]}
    kernel = given_kernel(triton_gemm())
    kernel = type(kernel)(
        text("triton_gemm"), "k.ptx", types=("tensordesc<fp16[8, 64]>", "i32"), descriptors=(described,)
    )
    entry: Any = SimpleNamespace(params=[None] * 6)
    passed = kernel.passed([np.zeros((32, 64), np.float16), 7], entry, 1)
    assert repr(passed.values[0]) == "TensorMap(float16, shape (32, 64), box (8, 64), swizzle 128)"
    assert (passed.values[1:], passed.places) == ([32, 64, 64, 1, 7], [0, 5])


def test_arrays_of_numba_are_spread() -> None:
    a, b, c = numbers(16, 20), numbers(20, 16), np.full((16, 16), np.nan, np.float32)
    seen = tw.microscope(text("numba_gemm"), grid=1, block=(16, 16), args=[a, b, c], outputs=[2])
    np.testing.assert_array_equal(seen.arrays[2], a.astype(float) @ b)
    assert seen.findings == []
    found = tw.microscope(text("numba_gemm"), grid=1, block=(16, 16), args=[a, b, c[:8]], outputs=[2])
    assert found.findings == []  # its shape is passed, too, so that it ends where the array does
    with pytest.raises(UsageError, match="takes 27 arguments, given 2"):
        tw.microscope(text("numba_gemm"), grid=1, block=(16, 16), args=[a, b])


def test_a_finding_names_the_argument_of_the_caller() -> None:
    values, counts = np.zeros(64, np.int32), np.zeros(40, np.int32)
    seen = tw.microscope(
        text("numba_histogram"), grid=1, block=32, args=[values, counts[:1]], shared_bytes=160, outputs=[1]
    )
    assert seen.findings == []
    passed = given_kernel(text("numba_histogram")).passed([values, counts], SimpleNamespace(params=[None] * 14), 1)  # type: ignore[arg-type]
    assert passed.renumbered("byte 4 of argument 11, before argument 4") == "byte 4 of argument 1, before argument 0"
    assert passed.positions([1]) == [11]


def test_source_or_ptx_of_an_object() -> None:
    x = np.arange(32, dtype=np.float32)
    ptx = compile_source(TWICE).ptx
    for given in (
        SimpleNamespace(code=TWICE, name="twice"),  # CuPy's RawKernel
        SimpleNamespace(__ptx__=ptx),
        SimpleNamespace(ptx=ptx.encode()),
        SimpleNamespace(inspect_asm=lambda: {("float32",): ptx}),
        ptx.encode(),
    ):
        assert (tw.microscope(given, args=[x, np.zeros_like(x)]).arrays[1] == 2 * x).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            SimpleNamespace(),
            "must be CUDA C.. or PTX, a path, or a compiled kernel that has its PTX, given types.Simple",
        ),
        (SimpleNamespace(asm={"amdgcn": ""}), "compiled kernel that has its PTX"),
        (SimpleNamespace(inspect_asm=lambda: {1: "", 2: ""}), "2 specialisations: give the PTX of one"),
        (b"\x7fELF\x02", "is machine code, which is not run here: give its PTX"),
        (3, "given builtins.int"),
    ],
)
def test_what_is_no_kernel_is_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tw.microscope(given)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.cubin"
    path.write_bytes(b"\x7fELF\x02\x01")
    with pytest.raises(UsageError, match=r"k\.cubin: is machine code.*cuobjdump -ptx"):
        tw.microscope(path)


# ---- PTX is assembled ------------------------------------------------------------------------------------------------

FOUR_LOADS = """
extern "C" __global__ void sums(const float* x, float* y)
{
    __shared__ float row[512];
    for (int i = threadIdx.x; i < 512; i += 32) row[i] = x[i];
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) sum += row[threadIdx.x * 16 + i];
    y[threadIdx.x] = sum;
}
"""


def four_loads() -> tuple[str, list[np.ndarray]]:
    return compile_source(FOUR_LOADS).ptx, [numbers(512), np.zeros(32, np.float32)]


def stand_in(binary: Path, tool: Path) -> str:
    """A program in place of ptxas, which writes a binary; it exits with 1 if it is called for another architecture."""
    tool.write_text(
        f"#!{sys.executable}\nimport pathlib, sys\nassert sys.argv[1:3] == ['-lineinfo', '-arch=sm_90a'], sys.argv\n"
        f"pathlib.Path(sys.argv[-1]).write_bytes(pathlib.Path({str(binary)!r}).read_bytes())\n"
    )
    tool.chmod(0o755)
    return str(tool)


def test_ptx_has_the_counts_of_its_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sixteen neighbouring loads become four of 16 bytes, which only the binary says."""
    ptx, args = four_loads()
    (tmp_path / "made").write_bytes(compile_source(FOUR_LOADS).cubin)
    tool = stand_in(tmp_path / "made", tmp_path / "ptxas")
    monkeypatch.setattr(assembler, "_ptxas", lambda: [tool])
    seen, source = tw.microscope(ptx, args=args), tw.microscope(FOUR_LOADS, args=args)
    assert seen.counters == source.counters
    assert seen.counters["smsp__inst_executed_op_shared_ld.sum"] == 4
    assert (seen.exact, seen.notes, seen.resources) == (True, [], source.resources)


def test_a_binary_of_nvjitlink_leaves_shared_accesses_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx, args = four_loads()
    monkeypatch.setattr(assembler, "_ptxas", list)
    seen = tw.microscope(ptx, args=args)
    assert not seen.exact
    assert {access.space for access in seen.accesses if not access.exact} == {"shared"}
    assert {access.space for access in seen.accesses if access.exact} == {"global"}
    assert any("nvJitLink may fuse fewer accesses than ptxas" in note for note in seen.notes)
    assert seen.resources is not None
    assert seen.resources.shared_bytes == 2048
    without = tw.microscope(compile_source(TWICE).ptx, args=args[:1] * 2)
    assert without.exact


def test_ptx_that_is_not_assembled_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx, args = four_loads()
    seen = tw.microscope(re.sub(r"\.version [\d.]+", ".version 99.0", ptx), args=args)
    assert not seen.exact
    assert set(seen.counters) == seen.approximate
    assert not any(access.exact for access in seen.accesses)
    assert seen.resources is None
    assert seen.counters["smsp__inst_executed_op_shared_ld.sum"] == 16
    assert re.search(r"it cannot be assembled: nvJitLink .*\.version", seen.notes[0])


def test_without_an_assembler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"")
    tool = stand_in(tmp_path / "made", tmp_path / "ptxas")
    monkeypatch.setattr(assembler, "_nvjitlink", lambda: None)
    monkeypatch.setattr(assembler, "_ptxas", lambda: [tool])
    with pytest.raises(UnavailableError, match="ptxas refuses it"):
        assembler.assemble(".version 8.0\n.target sm_80\n", "k.ptx")
    monkeypatch.setattr(assembler, "_ptxas", list)
    with pytest.raises(UnavailableError, match="neither ptxas nor nvJitLink is found"):
        assembler.assemble(".version 8.0\n.target sm_80\n", "k.ptx")


def test_ptx_for_an_old_gpu_is_assembled_for_the_oldest_known() -> None:
    ptx = compile_source(TWICE, arch="sm_75").ptx.replace("sm_75", "sm_52")
    assert assembler.assemble(ptx, "k.ptx")[0].arch == "sm_75"
    with pytest.raises(UnavailableError, match=r"names no \.target"):
        assembler.assemble(".version 8.0\n", "k.ptx")


def test_threads_are_those_that_it_was_compiled_for() -> None:
    source = 'extern "C" __global__ void __launch_bounds__(64) k(float* x) { x[threadIdx.x] = 1; }'
    assert tw.microscope(source, args=[np.zeros(32, np.float32)]).block == (32, 1, 1)
    fixed = text("triton_softmax")
    x = np.ones((1, 512), np.float32)
    assert tw.microscope(fixed, args=[x, x.copy(), 512], shared_bytes=16).block == (128, 1, 1)
    with pytest.raises(OperandError, match="argument 2"):
        tw.microscope(fixed, args=[x, x.copy(), "512"])


@pytest.mark.slow
def test_a_lock_that_whole_blocks_wait_for() -> None:
    """As Triton compiles a spin lock: all threads meet at a barrier in each round, so that the owner must have a turn."""
    source = """
extern "C" __global__ void add(int* lock, float* sum)
{
    __shared__ int taken;
    do {
        __syncthreads();
        asm volatile("{ .reg .pred first; .reg .b32 old; setp.eq.u32 first, %0, 0; mov.u32 old, 0;"
                     "@first atom.global.acq_rel.gpu.cas.b32 old, [%1], 0, 1; @first st.shared.b32 [%2], old; }" ::
                     "r"(threadIdx.x), "l"(lock), "r"((unsigned)__cvta_generic_to_shared(&taken)) : "memory");
        __syncthreads();
    } while (taken);
    __threadfence();
    sum[threadIdx.x] += 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(lock, 0);
}
"""
    seen = tw.microscope(
        source, grid=6, block=64, args=[np.zeros(1, np.int32), np.zeros(64, np.float32)], max_steps=20_000
    )
    assert seen.run.complete
    assert (seen.arrays[1] == 6).all()
