"""A run from what was typed: what is chosen, what is kept of an earlier run, what progress says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import TilewrightError, UnavailableError, UsageError
from tilewright.host.machine import machine
from tilewright.kernels.catalog import find
from tilewright.lab.bench import cpu as protocol
from tilewright.lab.bench import operand_sets, session
from tilewright.lab.bench.cells import Settings, cells
from tilewright.lab.bench.cpu import Bench
from tilewright.lab.bench.session import BenchRequest
from tilewright.lab.inputs.environment import environment
from tilewright.records.bench import BenchRecord, read_records


@pytest.fixture(autouse=True)
def _known_peak(monkeypatch):
    monkeypatch.setattr(protocol, "peak_gflops", lambda *key, fresh: 10.0)


def request_of(**changes: Any) -> BenchRequest:
    return BenchRequest(**{"kernels": ["ikj"], "sizes": "8", "against": "none"} | changes)


def run(request: BenchRequest, path: Path | None = None, **options: Any) -> session.RunRecords:
    return session.run_bench(request, json_file=path, **options)


# ---- what is chosen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"dtypes": ["float32"], "threads": [machine().usable_cores], "limit_s": 10.0, "seed": 1}),
        ({"sizes": None}, {"sizes": [(n, n, n) for n in (64, 256, 512, 1000, 2048)]}),
        ({"dtype": "float64, float32,float64"}, {"dtypes": ["float64", "float32"]}),
        ({"threads": "1"}, {"threads": [1]}),
        ({"limit": "500ms"}, {"limit_s": 0.5}),
        ({"limit": "2 min"}, {"limit_s": 120.0}),
        ({"limit": "1.5"}, {"limit_s": 1.5}),
        ({"kernels": ["strassen"], "params": ["leaf=64"]}, {"params": {"leaf": [64]}}),
    ],
)
def test_options_mean_what_they_say(changes, expected) -> None:
    settings, _ = session._settings(request_of(**changes))
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["ikj"], ["cpu/ikj"]),
        (["cpu/ikj", "ikj", "naive"], ["cpu/ikj", "cpu/naive"]),
        (["ref/openblas"], ["ref/openblas"]),
    ],
)
def test_each_kernel_is_measured_once(names, expected) -> None:
    settings, _ = session._settings(request_of(kernels=names))
    assert [kernel.name for kernel in settings.kernels] == expected


def test_the_default_is_the_whole_ladder_beside_the_libraries_that_are_there(monkeypatch) -> None:
    def no_mkl(kernel: Any) -> None:
        if kernel.name == "ref/mkl":
            raise UnavailableError("no")

    monkeypatch.setattr(session, "_load_library", no_mkl)
    settings, _ = session._settings(request_of(kernels=[], against=None))
    assert [k.name for k in settings.kernels][:2] == ["cpu/naive", "cpu/transposed"]
    assert settings.references[0].name == "ref/openblas"
    assert "ref/mkl" not in [k.name for k in settings.references]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"device": "gpu"}, UsageError, "did you mean cpu"),
        ({"dtype": ""}, UsageError, "dtype ''"),
        ({"limit": "soon"}, UsageError, "'soon'"),
        ({"threads": "many"}, UsageError, "'many'"),
        ({"kernels": ["strassen"], "params": ["laef=64"]}, UsageError, "did you mean leaf"),
        ({"operands": (Path("a.npy"), Path("b.npy"))}, UsageError, "sizes '8'"),
        ({"distribution": "nromal"}, UsageError, "distribution 'nromal'"),
        ({"distribution": "nan"}, UsageError, "not finite"),
        ({"distribution": "normal", "dtype": "int8"}, UsageError, "got dtype int8"),
        ({"operands": (Path("a.npy"), Path("b.npy")), "sizes": None}, TilewrightError, "operands: a.npy"),
    ],
)
def test_errors_name_the_argument_and_what_was_given(changes, error, words) -> None:
    with pytest.raises(error, match=words):
        session._settings(request_of(**changes))


@pytest.mark.parametrize(
    ("largest_a", "largest_b", "dtype", "fits"),
    [
        (1e18, 1e18, "float32", True),
        (1e20, 1e20, "float32", False),
        (1e300, 0.0, "float32", False),
        (1e20, 1e20, "float64", True),
        (1e300, 1e300, "float64", False),
    ],
)
def test_operands_whose_product_overflows_are_refused(largest_a, largest_b, dtype, fits) -> None:
    a, b = np.full((2, 2), -largest_a), np.full((2, 2), largest_b)
    if fits:
        operand_sets.check_range(a, b, dtype)
    else:
        with pytest.raises(UsageError, match=f"operands: .*{dtype}"):
            operand_sets.check_range(a, b, dtype)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def kept_of(changes: dict[str, Any]) -> bool:
    """Whether a cell measured by cpu/ikj stands, after ``changes`` to its record."""
    settings = Settings(find(["ikj"]), [], [(8, 8, 8)], ["float32"], [1])
    bench = Bench(settings, environment(operands="uniform[-1,1)"))
    (cell,) = cells(settings)
    record = cell.record(
        "ok", seed=1, samples_s=[1.0], environment=bench.environment | {"kernel_source": cell.kernel.source_hash}
    )
    inside = {name: {**getattr(record, name), **value} for name, value in changes.items() if isinstance(value, dict)}
    return bool(session._valid_records([dataclasses.replace(record, **changes | inside)], [cell], bench))


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"environment": {"time": "then", "git": "other", "command": "other"}}, True),
        ({"verdict": "wrong", "samples_s": []}, True),
        ({"verdict": "time_limit", "samples_s": []}, False),
        ({"verdict": "out_of_memory", "samples_s": []}, False),
        ({"seed": 2}, False),
        ({"n": 9}, False),
        ({"threads": 2}, False),
        ({"reference": "ref/openblas"}, False),
        ({"environment": {"kernel_source": "edited"}}, False),
        ({"environment": {"operands": "a.npy b.npy"}}, False),
        ({"environment": {"processor": "another"}}, False),
        ({"environment": {"numba": "0.0"}}, False),
        ({"about": {"constants": {"KC": 1}}}, False),
    ],
)
def test_a_cell_stands_while_nothing_has_changed_that_shapes_it(changes, kept) -> None:
    assert kept_of(changes) is kept


@pytest.mark.slow
def test_of_a_cell_measured_twice_the_last_counts(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    for seed in (1, 2, 2):
        done = run(request_of(seed=seed), path, resume=True)
        assert [record.seed for record in done.records] == [seed]
    assert [record.seed for record in read_records(path)] == [1, 2]


@pytest.mark.slow
def test_predictions_go_on_from_what_was_kept(tmp_path, monkeypatch) -> None:
    path = tmp_path / "x.jsonl"
    run(request_of(sizes="64,128"), path)
    known: list[float | None] = []
    measure = Bench.measure

    def watching(bench: Bench, cell: Any) -> BenchRecord:
        known.append(bench.predicted_s(cell))
        return measure(bench, cell)

    monkeypatch.setattr(Bench, "measure", watching)
    run(request_of(sizes="64,128,256"), path, resume=True)
    before = read_records(path)[1].median_s
    assert before is not None
    assert known == [pytest.approx(8 * before)]


# ---- while it runs ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(tmp_path, monkeypatch) -> None:
    measure = Bench.measure

    def interrupted(bench: Bench, cell: Any) -> BenchRecord:
        if cell.shape[0] == 32:
            raise KeyboardInterrupt
        return measure(bench, cell)

    monkeypatch.setattr(Bench, "measure", interrupted)
    path, said = tmp_path / "x.jsonl", []
    done = run(request_of(sizes="8,16,32"), path, say=said.append)
    assert done.interrupted
    assert [record.n for record in read_records(path)] == [record.n for record in done.records] == [8, 16]
    assert said == [f"interrupted: 2 finished cells kept in {path}; --resume continues"]


@pytest.mark.slow
def test_each_cell_is_reported_before_it_is_measured() -> None:
    seen: list[tuple[str, int, int]] = []

    def begin(cell: Any, done: int, total: int, time_left: Any) -> None:
        assert 0 < time_left().seconds < 60
        seen.append((cell.label, done, total))

    run(request_of(sizes="8,16"), begin=begin)
    assert seen == [("cpu/ikj 8 float32", 0, 2), ("cpu/ikj 16 float32", 1, 2)]


@pytest.mark.slow
def test_a_mistake_costs_no_earlier_records(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    run(request_of(), path)
    before = path.read_bytes()
    with pytest.raises(UsageError):
        run(request_of(sizes="8:"), path)
    assert path.read_bytes() == before


def test_time_left_shrinks_and_knows_the_limit() -> None:
    settings = Settings(find(["ikj"]), [], [(8, 8, 8), (4096,) * 3, (10**6,) * 3], ["float32"], [1], limit_s=2)
    bench, todo = Bench(settings, {}), cells(settings)
    times = [bench.time_left(todo[index:]).seconds for index in range(4)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 0
    assert times[0] < 60, "what is over the limit is not waited for"


def test_time_left_counts_what_is_to_be_compiled_and_the_reference_at_its_own_rate() -> None:
    """Slow kernels run beside a fast reference; and a guess without any measurement is a least time."""
    kernel, openblas = find(["naive"])[0], find(["ref/openblas"])[0]
    settings = Settings([kernel], [openblas], [(64,) * 3, (512,) * 3], ["float32"], [1], repeat=4)
    bench, todo = Bench(settings, {}), cells(settings)
    first = bench.time_left(todo)
    assert not first.known
    assert first.seconds > 2, "two kernels are to be compiled, a second each"
    for cell in todo[:2]:
        bench.remember(cell, 1e-3 if cell.kernel is kernel else 1e-5)
        bench.prepared_s[cell.kernel.name, "float32"] = 3.0
    left = bench.time_left(todo[2:])
    assert left.known
    assert left.seconds == pytest.approx(6 * (0.512 + 0.01) + 6 * 2 * 0.01), "eight times the side, 512 times the time"
    assert bench.time_left([]).seconds == 0
    another = dataclasses.replace(todo[3], dtype="float64")
    assert bench.time_left([another]).seconds == pytest.approx(3 + 6 * 2 * 512**3 * 2 / bench.guessed_flops, rel=0.2)
    assert bench.measure(todo[0]).verdict == "ok"
    assert bench.prepared_s["cpu/naive", "float32"] == 3, "the first time counts"


def test_the_environment_says_where_and_how() -> None:
    found = environment(operands="uniform[-1,1)", command="tilewright bench")
    for key in ("processor", "cores", "caches", "python", "numpy", "numba", "blas", "thread_pools", "command", "time"):
        assert found[key], key
    assert found["operands"] == "uniform[-1,1)"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bench_of_another_distribution_says_so_and_verifies(dtype: str) -> None:
    asked = request_of(
        kernels=["blocked"], against="none", dtype=dtype, sizes="24", distribution="graded:40", limit="9s"
    )
    (record,) = session.run_bench(asked).records
    assert (record.verdict, record.environment["operands"]) == ("ok", "graded:40")
    settings, _ = session._settings(asked)
    a, b = settings.given((24, 24, 24), dtype)
    assert a.dtype == b.dtype == dtype
    assert abs(a).max() > 2**16
