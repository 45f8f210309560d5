"""The life of a cell on a GPU, with real kernels on a simulated one: what is done in which order, and what must not pass."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.simulated_gpu import BASE, NumpyCublas, SimulatedGpu
from tilewright.errors import LaunchError, UnavailableError
from tilewright.gpu.runtime.cublas import CUBLAS
from tilewright.gpu.runtime.nvrtc import compile_file
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.lab.bench import cuda, device
from tilewright.lab.bench import device as protocol
from tilewright.lab.bench.cells import Cell, Settings, cells
from tilewright.lab.bench.device import DeviceBench, MeasuredCell, device_peak_gflops

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

SHAPE = (9, 11, 6)

HEADER = """/*
idea = "For a test."
block = [32, 8]
grid = ["cdiv(n, 32)", "cdiv(m, 8)"]
{more}
*/
typedef {type} T;
extern "C" __global__ void {name}(T* a, T* b, T* c, int m, int n, int k)
{{
    const int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    if (row >= m || col >= n) return;
    double sum = 0;
    for (int p = 0; p < k; p++) sum += (double)a[row * k + p] * b[p * n + col];
    {body}
}}
"""


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    """cuBLAS played by NumPy, instruments without a GPU, and no more samples than asked for."""
    monkeypatch.setattr(protocol, "Cublas", NumpyCublas)
    monkeypatch.setattr(protocol, "Gauge", FakeGauge)
    monkeypatch.setattr(device, "LEAST_GUARD", 1024)
    monkeypatch.setattr(protocol, "LEAST_SAMPLES", 2)
    monkeypatch.setattr(protocol, "CHEAP_S", 0)


class FakeGauge:
    """Clocks that fall from reading to reading, and once a reason why."""

    def __init__(self, _pci_bus_id: str) -> None:
        self.clock = 2000

    def facts(self) -> dict[str, Any]:
        return {"driver": "1.2"}

    def read(self) -> dict[str, Any]:
        self.clock -= 10
        reasons = ["power limit"] if self.clock == 1970 else []
        return {
            "clock_mhz": self.clock, "memory_clock_mhz": 3201, "power_w": float(self.clock), "temperature_c": None,
            "throttled": reasons,
        }  # fmt: skip


def kernel(tmp_path: Path, body: str = "c[row * n + col] = sum;", name: str = "mine", **changes: str) -> Any:
    path = tmp_path / f"{name}.cu"
    path.write_text(HEADER.format(name=name, body=body, **{"more": "", "type": "float"} | changes))
    return load_cuda_file(path)


def bench_of(gpu: SimulatedGpu, *kernels: Any, **changes: Any) -> DeviceBench:
    asked = {"repeat": 1, "references": [], "sizes": [SHAPE], "dtypes": [], "threads": [1], "device": "cuda", "seed": 1}
    return DeviceBench(gpu, Settings(list(kernels), **asked | changes))  # type: ignore[arg-type]


def measured(*kernels: Any, gpu: SimulatedGpu | None = None, **changes: Any) -> list[MeasuredCell]:
    bench = bench_of(gpu or SimulatedGpu(), *kernels, **changes)
    return [bench.measure(cell) for cell in cells(bench.settings)]


def shared_tile() -> Any:
    return cuda_catalog()["cuda/shared_tile"]


# ---- what is measured


@pytest.mark.slow
def test_a_right_kernel_beside_cublas() -> None:
    ours, its = measured(shared_tile(), references=[CUBLAS], params={"TILE": [8]}, repeat=4)
    for one in (ours, its):
        assert one.outcome.verdict == "ok", one.outcome.reason
        assert one.outcome.error_over_bound < 1
        assert len(one.outcome.samples_s) == 4
        assert one.outcome.samples_s == pytest.approx([0.03] * len(one.outcome.samples_s))
        assert not one.lost
    assert len(ours.outcome.reference_samples_s) == len(ours.outcome.samples_s)
    assert its.outcome.reference_samples_s == []
    assert ours.once_s == pytest.approx(0.03)
    assert ours.about["arch"] == "sm_90a"
    assert ours.about["registers"] > 0
    assert ours.about["shared_bytes"] == 2 * 8 * 8 * 4
    assert ours.about["threads"] == 64
    assert 0 < ours.about["resident_warps"] <= ours.about["max_warps"] == 64
    m, n, k = SHAPE
    assert ours.about["formulas"]["global_load_sectors"] == m * n // 32 * k * 8 // 8


@pytest.mark.slow
@pytest.mark.parametrize(("name", "type_"), [("float32", "float"), ("float64", "double"), ("float16", "")])
def test_each_dtype(tmp_path, name: str, type_: str) -> None:
    if name == "float16":  # no arithmetic of its own in this text: the bits of zero, which are then not A·B
        mine = kernel(tmp_path, "c[row * n + col] = 0;", type="unsigned short", more=f'dtypes = ["{name}"]')
    else:
        mine = kernel(tmp_path, type=type_, more=f'dtypes = ["{name}"]')
    (one, *reference) = measured(mine, references=[CUBLAS])
    assert one.outcome.verdict == ("wrong" if name == "float16" else "ok"), one.outcome.reason
    if name == "float16":
        assert reference[0].outcome.verdict == "unsupported", "NumPy plays no cuBLAS in float16"


def test_outputs_are_poisoned_before_the_first_run_and_before_every_sample(tmp_path) -> None:
    gpu = SimulatedGpu()
    measured(kernel(tmp_path), gpu=gpu)
    outputs = {did[4] for did in gpu.did if did[:2] == ("launch", "mine")}
    assert len(outputs) == 1
    expected = ("fill", *outputs, 9 * 11 * 4, 0xFF)
    told = [did for did in gpu.did if did == expected or did[:2] == ("launch", "mine")]
    assert [did[0] for did in told[:2]] == ["fill", "launch"]
    assert all(before == expected for before, did in itertools.pairwise(told) if did[0] == "launch")


@pytest.mark.slow
def test_the_kernel_and_the_reference_take_turns_on_the_same_operands(tmp_path) -> None:
    gpu = SimulatedGpu()
    gpu.l2_bytes = 3 * 4 * (9 * 6 + 6 * 11 + 2 * 9 * 11) // 2  # type: ignore[misc]
    measured(kernel(tmp_path), gpu=gpu, references=[CUBLAS], repeat=4)
    launches = [did for did in gpu.did if did[0] == "launch" and did[1] in ("mine", "cublas")]
    until = max(i for i, did in enumerate(launches) if did[1] == "mine") + 2
    sampled = launches[until - 8 : until]
    assert [name for _, name, *_ in sampled] == ["mine", "cublas"] * 4
    assert all(one[2:4] == other[2:4] for one, other in zip(sampled[::2], sampled[1::2], strict=True)), (
        "the same A and B"
    )
    ours = [did for did in launches if did[1] == "mine"]
    assert len({did[2] for did in ours}) == 3, "three sets rotate"
    assert len({did[4] for did in ours}) == 3


@pytest.mark.slow
def test_a_sample_is_held_back_until_it_is_queued(tmp_path) -> None:
    gpu = SimulatedGpu(seconds=lambda entry: 2e-3)
    (one,) = measured(kernel(tmp_path), gpu=gpu, repeat=1)
    assert one.outcome.samples_s == pytest.approx([2e-3] * len(one.outcome.samples_s))
    names = [did[1] if did[0] == "launch" else did[0] for did in gpu.did]
    last = max(i for i, name in enumerate(names) if name == "start")
    assert names[last - 1] == "hold", "the clock starts when the GPU is let go"
    assert names[last + 1 : last + 5] == ["mine"] * 3 + ["stop"], "three of two milliseconds make a sample"


@pytest.mark.slow_cases("9")
@pytest.mark.parametrize("repeat", [1, 9])
def test_there_are_seven_samples_at_least(tmp_path, monkeypatch, repeat: int) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(protocol, "Gauge", FakeGauge)
    (one,) = measured(kernel(tmp_path), repeat=repeat)
    assert len(one.outcome.samples_s) == max(7, repeat)


def test_a_long_product_gets_as_many_as_were_asked_for(tmp_path) -> None:
    (one,) = measured(kernel(tmp_path), gpu=SimulatedGpu(seconds=lambda entry: 1.5), repeat=2)
    assert len(one.outcome.samples_s) == 2


def test_a_tuner_asks_for_one_sample(tmp_path) -> None:
    bench = bench_of(SimulatedGpu(), kernel(tmp_path), references=[CUBLAS])
    one = bench.measure(cells(bench.settings)[0], with_reference=False, repeat=1)
    assert (len(one.outcome.samples_s), one.outcome.reference_samples_s) == (1, [])


def test_given_operands_are_what_is_multiplied(tmp_path) -> None:
    a, b = np.arange(6, dtype=">f4").reshape(2, 3), np.asfortranarray(np.arange(12.0).reshape(3, 4))
    gpu = SimulatedGpu()
    bench = bench_of(gpu, kernel(tmp_path), operands=(a, b), sizes=[(2, 4, 3)])
    assert bench.measure(cells(bench.settings)[0]).outcome.verdict == "ok"
    assert bench._cached is not None
    assert np.array_equal(gpu.get(bench._cached[0].c[0], np.float32, (2, 4)), a @ b)


def test_the_instruments_are_read_between_samples(tmp_path) -> None:
    (one,) = measured(kernel(tmp_path), repeat=3)
    assert one.moment == {
        "clock_mhz_before": 1990,
        "clock_mhz_after": 1960,
        "memory_clock_mhz": 3201,
        "power_w": 1990.0,
        "temperature_c": None,
        "throttled": "power limit",
    }


def test_facts() -> None:
    facts = bench_of(SimulatedGpu(), shared_tile()).facts()
    assert facts["gpu"] == "Simulated GPU"
    assert facts["cublas"] == "0.0.0"
    assert facts["nvrtc"].startswith("NVRTC ")
    assert facts["driver"] == "1.2"


# ---- what must not pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "not written"),
        ("if (row + col) c[row * n + col] = sum;", "C[0, 0] is nan: not written"),
        ("if (row < m - 1 || col < n - 1) c[row * n + col] = sum;", "C[8, 10] is nan: not written"),
        ("c[row * n + col] = sum - a[row * k + k - 1] * b[(k - 1) * n + col];", "is off by"),
        ("c[row * n + col] = 0;", "is off by"),
        ("c[row * n + col] = rint(sum * 1024) / 1024;", "is off by"),
        ("c[row * n + col] = sum; if (row == 3 && col == 5) a[7] += 1;", "it changed A"),
        ("c[row * n + col] = sum; if (row == 3 && col == 5) b[k * n - 1] = 0;", "it changed B"),
        ("c[row * n + col] = sum; if (row == m - 1) c[m * n + col] = sum;", "it wrote memory behind C, byte 0"),
        ("c[row * n + col] = sum + 0 * a[m * k];", "nan: not written, or not a number"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_gets_no_time_and_harms_nobody(tmp_path, body: str, words: str) -> None:
    one, after = measured(kernel(tmp_path, body), kernel(tmp_path, name="right"))
    assert (one.outcome.verdict, one.outcome.samples_s) == ("wrong", [])
    assert words in one.outcome.reason
    assert not one.lost
    assert after.outcome.verdict == "ok", after.outcome.reason


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("in C", "C[0, 0] is off by"),
        ("in A", "it changed A"),
        ("in B", "it changed B"),
        ("before A", "it wrote memory before A, byte 1023"),
        ("behind C", "it wrote memory behind C, byte 4 of"),
        ("behind R", "it wrote memory behind the reference's C, byte 0 of"),
    ],
)
def test_a_kernel_that_goes_wrong_while_it_is_timed(tmp_path, place: str, words: str) -> None:
    """Right when it was verified first, wrong from its fourth run on."""
    gpu = SimulatedGpu()
    bench = bench_of(gpu, kernel(tmp_path))
    runs: list[int] = []

    def spoil(entry: str) -> None:
        runs.extend([1] if entry == "mine" else [])
        if entry == "mine" and len(runs) > 3:
            assert bench._cached is not None
            a, b, c, r = (
                x[0] for x in (bench._cached[0].a, bench._cached[0].b, bench._cached[0].c, bench._cached[0].reference_c)
            )
            at = {
                **{"in A": a.pointer + 3, "in B": b.pointer + 3, "in C": c.pointer + 3},
                **{"before A": a.pointer - 1, "behind C": c.pointer + c.nbytes + 4, "behind R": r.pointer + r.nbytes},
            }
            gpu.heap[at[place] - BASE] = 0

    gpu.after = spoil
    one = bench.measure(cells(bench.settings)[0])
    assert one.outcome.verdict == "wrong"
    assert words in one.outcome.reason
    assert one.outcome.samples_s == []


def test_an_illegal_address_loses_the_gpu(tmp_path) -> None:
    (one,) = measured(kernel(tmp_path, "c[row * n + col] = sum; c[1 << 28] = 0;"))
    assert one.outcome.verdict == "wrong"
    assert "memory that is not there" in one.outcome.reason
    assert one.lost


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"more": 'shared = "300000"'}, "too much shared memory"),
        ({"more": 'capability = "10.0a"'}, "needs exactly compute capability 10.0a"),
        ({"body": "this is no C++"}, "mine.cu(14): error: "),
        ({"more": 'dtypes = ["float64"]'}, "has no float32"),
    ],
)
def test_what_cannot_run_here_says_why(tmp_path, changes: dict[str, str], words: str) -> None:
    mine = kernel(tmp_path, **changes)
    one = bench_of(SimulatedGpu(), mine).measure(Cell(mine, SHAPE, "float32", 1, {}, "cuda"))
    assert one.outcome.verdict == "unsupported"
    assert words in one.outcome.reason


def test_a_parameter_it_cannot_take() -> None:
    one = bench_of(SimulatedGpu(), shared_tile()).measure(Cell(shared_tile(), SHAPE, "float32", 1, {"TILE": 7}, "cuda"))
    assert one.outcome.verdict == "unsupported"
    assert "TILE must be one of 8, 16, 32, got 7" in one.outcome.reason


def test_no_elements() -> None:
    (one,) = measured(shared_tile(), sizes=[(0, 5, 5)])
    assert (one.outcome.verdict, "no elements" in one.outcome.reason) == ("unsupported", True)


def test_k_of_nothing_is_a_product_too() -> None:
    (one,) = measured(shared_tile(), sizes=[(5, 6, 0)])
    assert one.outcome.verdict == "ok", one.outcome.reason


def test_over_the_limit(tmp_path) -> None:
    gpu = SimulatedGpu(seconds=lambda entry: 3.0)
    (one,) = measured(kernel(tmp_path), gpu=gpu, limit_s=2.0)
    assert (one.outcome.verdict, one.outcome.samples_s) == ("time_limit", [])
    assert one.outcome.reason == "took 3 s, the limit is 2 s"
    assert sum(did[:2] == ("launch", "mine") for did in gpu.did) == 1


@pytest.mark.parametrize(("n", "nbytes"), [(10**5, 1 << 22), (300, 1 << 20)])
def test_what_does_not_fit_is_found_out_before_it_is_made(tmp_path, monkeypatch, n: int, nbytes: int) -> None:
    monkeypatch.setattr(protocol, "random_values", None)
    (one,) = measured(kernel(tmp_path), gpu=SimulatedGpu(nbytes), sizes=[(n, n, n)])
    assert one.outcome.verdict == "out_of_memory"
    assert "with its verification" in one.outcome.reason


def test_memory_that_is_full_after_all(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "MEMORY_SHARE", 1000)
    (one,) = measured(kernel(tmp_path), gpu=SimulatedGpu(1 << 12))
    assert one.outcome.verdict == "out_of_memory"


@pytest.mark.slow
def test_memory_is_given_back_between_sizes(tmp_path) -> None:
    found = measured(kernel(tmp_path), gpu=SimulatedGpu(60_000), sizes=[(n, n, 4) for n in (30, 31, 32)])
    assert [one.outcome.verdict for one in found] == ["ok"] * 3


@pytest.mark.slow
def test_operands_serve_all_kernels_of_a_size(tmp_path, monkeypatch) -> None:
    made = []
    random_values = protocol.random_values
    monkeypatch.setattr(protocol, "random_values", lambda *args: (made.append(args[0]), random_values(*args))[1])
    measured(kernel(tmp_path), kernel(tmp_path, name="other"), sizes=[SHAPE, (8, 8, 8)])
    assert made == [SHAPE, (8, 8, 8)]


# ---- a library that is not there


@pytest.mark.slow
def test_without_cublas_kernels_are_measured_alone(tmp_path, monkeypatch) -> None:
    def absent(gpu: Any) -> Any:
        raise UnavailableError("cuBLAS is not here")

    monkeypatch.setattr(protocol, "Cublas", absent)
    ours, its = measured(kernel(tmp_path), references=[CUBLAS])
    assert (ours.outcome.verdict, ours.outcome.reference_samples_s) == ("ok", [])
    assert (its.outcome.verdict, its.outcome.reason) == ("unsupported", "cuBLAS is not here")
    assert bench_of(SimulatedGpu(), shared_tile()).facts()["cublas"] is None


@pytest.mark.slow
def test_a_size_that_cublas_refuses_is_no_fault_of_the_kernel(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(NumpyCublas, "fails", "cublasGemmEx: CUBLAS_STATUS_NOT_SUPPORTED")
    ours, its = measured(kernel(tmp_path), references=[CUBLAS])
    assert (ours.outcome.verdict, ours.outcome.reference_samples_s) == ("ok", [])
    assert its.outcome.verdict == "unsupported"
    assert "NOT_SUPPORTED" in its.outcome.reason


@pytest.mark.slow
def test_cublas_is_held_to_the_oracle_too(monkeypatch) -> None:
    gemm = NumpyCublas.gemm

    def spoilt(library: Any, a: Any, b: Any, c: Any, *rest: Any, **named: Any) -> Any:
        call = gemm(library, a, b, c, *rest, **named)
        return lambda: (call(), library.gpu.bytes_of(c)[-4:].fill(0))[0]

    monkeypatch.setattr(NumpyCublas, "gemm", spoilt)
    _, its = measured(shared_tile(), references=[CUBLAS])
    assert its.outcome.verdict == "wrong"
    assert "C[8, 10] is off by" in its.outcome.reason


# ---- cells


def test_a_kernel_is_measured_with_what_it_takes(tmp_path) -> None:
    one = kernel(tmp_path, name="one")
    two = kernel(tmp_path, name="two", type="double", more='dtypes = ["float64"]')
    both = kernel(tmp_path, name="both", more='dtypes = ["float64", "float32"]')

    def made(*dtypes: str) -> list[tuple[str, str]]:
        settings = Settings([one, two, both], [CUBLAS], [SHAPE], list(dtypes), [1], device="cuda")
        assert all((c.device, c.threads) == ("cuda", 1) for c in cells(settings))
        return [(c.kernel.name, c.dtype) for c in cells(settings)]

    f32 = [("my/one", "float32"), ("my/both", "float32"), ("ref/cublas", "float32")]
    assert made() == [*f32, ("my/two", "float64"), ("ref/cublas", "float64")]
    assert made("float32") == f32
    assert made("float64") == [("my/two", "float64"), ("my/both", "float64"), ("ref/cublas", "float64")]
    assert made("bfloat16") == []


def rounding(tmp_path: Path, name: str, precision: str) -> Any:
    """A kernel that rounds, and says so or not."""
    body = "c[row * n + col] = sum * (1 + 1.0 / 2048);"
    return kernel(tmp_path, body, name, more=f'precision = "{precision}"')


@pytest.mark.slow
def test_a_kernel_is_held_to_what_it_promises_and_set_beside_its_like(tmp_path) -> None:
    gpu = SimulatedGpu()
    promised, cheating = rounding(tmp_path, "promised", "tf32"), rounding(tmp_path, "cheating", "standard")
    bench = bench_of(gpu, cheating, promised, references=[CUBLAS])
    made = cells(bench.settings)
    assert [(c.kernel.name, c.precision) for c in made] == [
        ("my/cheating", "standard"), ("ref/cublas", "standard"), ("my/promised", "tf32"), ("ref/cublas", "tf32"),
    ]  # fmt: skip
    assert [bench.measure(c).outcome.verdict for c in made] == ["wrong", "ok", "ok", "ok"]
    launched = [did[-1] for did in gpu.did if did[:2] == ("launch", "cublas")]
    assert list(dict.fromkeys(launched)) == ["standard", "tf32"]
    assert made[2].record("ok").precision == "tf32"
    assert made[2].series != made[3].series != made[1].series


# ---- the process


class Line:
    """A connection whose other end asks these questions and then is gone."""

    def __init__(self, *questions: Any) -> None:
        self.questions, self.answers = list(questions), []  # type: ignore[var-annotated]

    def recv(self) -> Any:
        if not self.questions:
            raise EOFError
        return self.questions.pop(0)

    def send(self, answer: Any) -> None:
        self.answers.append(pickle.loads(pickle.dumps(answer)))  # it must be able to travel


@pytest.fixture
def serve(monkeypatch):
    """What the process answers, here in this one."""
    before = signal.getsignal(signal.SIGINT)

    def answers(settings: Settings, *questions: Any, gpu: Any = None) -> list[Any]:
        def opened() -> Any:
            if gpu is None:
                raise UnavailableError("no GPU")
            return gpu

        monkeypatch.setattr(cuda, "open_device", opened)
        line = Line(*pickle.loads(pickle.dumps(questions)))
        cuda.serve(line, settings)  # type: ignore[arg-type]
        return line.answers

    yield answers
    signal.signal(signal.SIGINT, before)


def test_the_process_says_what_it_has_and_does_before_it_answers(serve, monkeypatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    settings = Settings([shared_tile()], [], [SHAPE], [], [1], device="cuda", repeat=1)
    (cell,) = cells(settings)
    facts, *said, measured = serve(settings, ("measure", (cell,), {"repeat": 1}), gpu=SimulatedGpu())
    assert facts["gpu"] == "Simulated GPU"
    assert measured.outcome.verdict == "ok"
    assert [one.doing for one in said][:3] == ["compiling", protocol.FIRST, "the verification"]
    assert said[1].seconds == settings.limit_s + protocol.GRACE_S
    assert {one.doing for one in said[3:]} == {"warming up", "a sample", "the verification"}
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_process_answers_with_what_went_wrong(serve, monkeypatch) -> None:
    settings = Settings([shared_tile()], [], [SHAPE], [], [1], device="cuda")
    (error,) = serve(settings)
    assert isinstance(error, UnavailableError)

    def broken(*_: Any) -> Any:
        raise LaunchError("no peak")

    monkeypatch.setattr(protocol, "device_peak_gflops", broken)
    _, watch, error = serve(settings, ("peak", ("float32",), {}), gpu=SimulatedGpu())
    assert watch.doing == "measuring the peak"
    assert isinstance(error, LaunchError)


# ---- the roof


@pytest.mark.slow_cases("2097152")
@pytest.mark.parametrize(("dtype", "rate"), [("float32", 2 * 8 * 32 * 256), ("float64", 2 * 8 * 8 * 8 * 2048)])
def test_the_roof_counts_what_its_kernels_do(monkeypatch, dtype: str, rate: int) -> None:
    """A GPU of one multiprocessor that does a round of 8 blocks in a second."""
    gpu, rounds = SimulatedGpu(), []

    def prepare(compiled: Any, entry: str, grid: Any, block: Any, args: Any) -> Any:
        assert entry in compiled.entries
        assert (grid, block) == (8, 256)
        assert args[2].dtype == dtype

        def submit() -> None:
            rounds.append(args[1])
            gpu.clock_s += (
                args[1] if entry == {"float32": "multiply_add", "float64": "multiply_add_matrix"}[dtype] else 1e9
            )

        return submit

    monkeypatch.setattr(gpu, "prepare", prepare)
    assert device_peak_gflops(gpu, dtype) == pytest.approx(8 * rate / 1e9)  # type: ignore[arg-type]
    assert device_peak_gflops(gpu, "float16") is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "entry", "instruction", "each"),
    [
        ("FLOAT32", "multiply_add", "fma.rn.f32", 256),
        ("FLOAT64", "multiply_add", "fma.rn.f64", 256),
        ("FLOAT64", "multiply_add_matrix", "mma.sync.aligned.m16n8k16.row.col.f64", 64),
    ],
)
def test_a_round_is_that_many_instructions(dtype: str, entry: str, instruction: str, each: int) -> None:
    """The compiler left none out, and put rounds side by side at most."""
    ptx = compile_file(device.SOURCE, defines={f"DTYPE_{dtype}": 1}).ptx
    text = ptx.split(f".entry {entry}(")[1].split(".entry")[0]
    assert text.count(instruction) in (each, 2 * each, 3 * each)
