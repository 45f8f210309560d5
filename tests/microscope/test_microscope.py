"""The public call: any kernel, as text or file, CUDA or PTX; what it counts, what it says, and how it prints."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError, OperandError, UnavailableError, UsageError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.kernels.catalog import cuda_catalog
from tilewright.records import source_rows
from tilewright.records.explanation import Access
from tilewright.simulator import microscope as module
from tilewright.simulator.microscope import Observation, sample_blocks

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

ROOT = Path(__file__).parents[2]
TRANSPOSE = """
__device__ float half(float x) { return x / 2; }

extern "C" __global__ void transpose(const float* x, float* y, int n)
{
    __shared__ float tile[32][32];
    const int i = threadIdx.x, j = threadIdx.y;
    tile[j][i] = x[j * n + i];
    BARRIER;
    y[i * n + j] = half(tile[j][i]);
}"""
LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORES = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"


def square(n: int) -> np.ndarray:
    return np.random.default_rng(n).random((n, n), np.float32)


def transposed(barrier: str = "__syncthreads()", **options: object) -> tuple[np.ndarray, Observation]:
    x = square(32)
    args = [x, np.full_like(x, np.nan), 32]
    return x, tw.microscope(
        TRANSPOSE, "transpose", 1, (32, 32), args, outputs=[1], defines={"BARRIER": barrier}, **options
    )


@pytest.mark.slow
def test_results_counters_and_lines() -> None:
    x, seen = transposed()
    np.testing.assert_array_equal(seen.arrays[1], x.T / 2)
    assert seen.arrays[2] is None
    assert seen.ok
    assert seen.exact
    assert seen.counters[LOADS] == 128
    assert seen.counters[STORES] == 1024
    by_line = {(a.line, a.space): a for a in seen.accesses}
    store = by_line[10, "global"]
    assert (store.requests, store.sectors, store.least) == (32, 1024, 128)
    assert store.lanes == [128 * lane for lane in range(32)]
    assert by_line[8, "global"].least == by_line[8, "global"].sectors == 128


@pytest.mark.slow
def test_a_race_is_found_and_its_twin_is_silent() -> None:
    crossed = TRANSPOSE.replace("half(tile[j][i])", "half(tile[i][j])").replace("y[i * n + j]", "y[j * n + i]")
    args = [square(32), np.zeros((32, 32), np.float32), 32]

    def kinds(barrier: str) -> set[tuple[str, int]]:
        seen = tw.microscope(crossed, "transpose", 1, (32, 32), args, defines={"BARRIER": barrier})
        assert seen.ok == (not seen.findings)
        return {(f.kind, f.line) for f in seen.findings}

    assert kinds("(void)0") == {("race", 10)}
    assert kinds("__syncthreads()") == set()


@pytest.mark.slow
def test_text_file_and_ptx_are_the_same_kernel(tmp_path: Path) -> None:
    _, seen = transposed()
    source = TRANSPOSE.replace("BARRIER", "__syncthreads()")
    (tmp_path / "mine.cu").write_text(source)
    ptx = compile_source(source, arch="sm_90a").ptx
    (tmp_path / "mine.ptx").write_text(ptx)
    for given in (source, tmp_path / "mine.cu", str(tmp_path / "mine.cu"), ptx, tmp_path / "mine.ptx"):
        other = tw.microscope(given, None, 1, (32, 32), [square(32), square(32), 32])
        assert other.counters == seen.counters
        assert other.resources.shared_bytes == seen.resources.shared_bytes == 4096


def test_it_prints_in_80_columns() -> None:
    _, seen = transposed()
    lines = str(seen).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "transpose: no defect found; the block was run"
    assert any(line.split()[:3] == ["1,024", "8.0", "32"] for line in lines)
    assert not any("return x / 2" in line for line in lines), "a line that touches no memory is left out"
    assert repr(seen) == "<Observation of transpose: no defect found; the block was run>"


@pytest.mark.slow
def test_findings_stand_below_their_lines() -> None:
    source = 'extern "C" __global__ void k(float* x) {\n    x[threadIdx.x] = 1;\n}'
    text = str(tw.microscope(source, None, 1, 64, [np.zeros(40, np.float32)])).splitlines()
    at = next(i for i, line in enumerate(text) if "x[threadIdx.x] = 1" in line)
    assert text[at + 1].startswith("  ^ out of bounds")


def test_each_memory_has_its_own_ratio() -> None:
    accesses = [
        Access(1, "global", "ld", 4, 1, 128, sectors=32, least=4),
        Access(1, "shared", "st", 4, 1, 128, wavefronts=3, least=2),
        Access(2, "shared", "ld", 4, 1, 128, wavefronts=1, least=1),
    ]
    first, second = source_rows.source_rows("x\ny\n", accesses, [])
    assert source_rows.margin(first) == ("32", "8.0", "3", "1.5")
    assert source_rows.margin(second) == ("", "", "1", "")


@pytest.mark.slow
def test_a_kernel_is_called_as_its_source_calls_it() -> None:
    seen = tw.microscope("__global__ void hi(float* x) { x[9] = 1; }", "hi", 1, 1, [np.zeros(3, np.float32)])
    assert seen.kernel == "hi"
    assert "out of bounds in hi, block" in str(seen.findings[0])


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, _: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_a_notebook_shows_it_whatever_the_source_says() -> None:
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1 < 2; /* <b>"&" */ }'
    page = tw.microscope(source, None, 1, 32, [np.zeros(16, np.float32)])._repr_html_()
    parser = _Balanced()
    parser.feed(page)
    assert not parser.open
    assert '/* <b>"&" */' in parser.text
    assert "out of bounds" in parser.text


# ---- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(1, 1, 1), (4, 3, 1), (5, 1, 1), (1, 7, 1), (100, 50, 1), (6, 5, 7), (2**20, 1, 1)])
def test_a_sample_stands_for_the_whole_grid(grid: tuple[int, int, int]) -> None:
    some = sample_blocks(grid)
    assert some.total == np.prod(grid)
    assert [weights.sum() for weights in some.weights] == [some.total] * 2
    assert (np.diff(some.blocks) > 0).all()
    assert some.blocks[0] == 0
    assert some.blocks[-1] == some.total - 1
    assert (some.weights[0] + some.weights[1] > 0).all()


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("name", ["cuda/uncoalesced", "cuda/coalesced", "cuda/shared_tile"])
@pytest.mark.parametrize("n", [192, 200])
def test_a_sample_counts_what_the_whole_run_counts(name: str, n: int) -> None:
    kernel = cuda_catalog()[name]
    launch = kernel.launch(n, n, n)
    args = [square(n), square(n), np.full((n, n), np.nan, np.float32), n, n, n]
    whole, some = (
        tw.microscope(kernel.path, None, launch.grid, launch.block, args, defines=kernel.params, sampled=sampled)
        for sampled in (False, True)
    )
    assert some.run.blocks_run == 28 < whole.run.blocks_run == some.run.blocks_total
    assert some.exact
    assert some.counters == whole.counters
    assert [(a.line, a.least, a.requests) for a in some.accesses] == [
        (a.line, a.least, a.requests) for a in whole.accesses
    ]


@pytest.mark.slow
def test_a_sample_of_blocks_that_differ_says_so() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
        for (int i = 0; i < blockIdx.x; i++) y[blockIdx.x * 32 + threadIdx.x] += x[threadIdx.x];
    }"""
    args = [np.ones(32, np.float32), np.zeros(32 * 40, np.float32)]
    seen = tw.microscope(source, None, 40, 32, args, sampled=True)
    assert not seen.exact
    assert "may be off by 76.1%" in seen.words


@pytest.mark.slow
def test_a_run_that_is_stopped_is_not_exact() -> None:
    source = 'extern "C" __global__ void k(volatile float* x) { while (x[0] < 1) x[1] += 1; }'
    seen = tw.microscope(source, None, 1, 1, [np.zeros(2, np.float32)], max_steps=1000)
    assert [f.kind for f in seen.findings] == ["step limit"]
    assert not seen.exact
    assert not seen.ok
    assert "stopped" in seen.words


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_errors_name_what_was_given(tmp_path: Path) -> None:
    two = 'extern "C" __global__ void f() {}\nextern "C" __global__ void g() {}'
    with pytest.raises(UsageError, match=r"kernel: must be named, kernel\.cu has f, g"):
        tw.microscope(two)
    with pytest.raises(UsageError, match="h is not one of its kernels: f, g"):
        tw.microscope(two, "h")
    with pytest.raises(UsageError, match=r"must be named, kernel\.cu has f, hi$"):
        tw.microscope("__global__ void f(int x) {} __global__ void hi(int x) {}")
    with pytest.raises(CompileError, match=r'kernel.cu\(1\): error: identifier "y" is undefined'):
        tw.microscope('extern "C" __global__ void f(float* x) { x[0] = y; }')
    with pytest.raises(UsageError, match=r"nothing\.cu: cannot be read"):
        tw.microscope(tmp_path / "nothing.cu")
    with pytest.raises(UsageError, match="takes 0 arguments, given 1"):
        tw.microscope(two, "f", 1, 1, [3])
    with pytest.raises(OperandError, match="argument 0"):
        tw.microscope('extern "C" __global__ void f(float* x) {}', "f", 1, 1, ["text"])


def test_without_a_disassembler_the_counts_are_the_ptx_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(cubin: bytes) -> str:
        raise UnavailableError("nvdisasm: not found")

    monkeypatch.setattr(module, "disassemble", missing)
    _, seen = transposed()
    assert not seen.exact
    assert set(seen.counters) == seen.approximate
    assert not any(access.exact for access in seen.accesses)
    assert seen.notes == [
        "≈ all counts are those of the PTX; the binary may fuse, guard or remove accesses (nvdisasm: not found)"
    ]


@pytest.mark.slow
def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    x = square(64)
    kernel = cuda_catalog()["cuda/coalesced"]
    launch = kernel.launch(64, 64, 64)
    args = [x, x, np.zeros_like(x), 64, 64, 64]
    tw.microscope(kernel.path, None, launch.grid, launch.block, args, defines=kernel.params,
                  progress=lambda done, total: told.append((done, total)))  # fmt: skip
    assert told[-1] == (4, 4)
