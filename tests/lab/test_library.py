"""The library call on the bench, and what its first call costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.cpu.runtime import peaks
from tilewright.errors import UnavailableError, UsageError
from tilewright.kernels.catalog import catalog
from tilewright.lab.bench import library, session
from tilewright.lab.bench.cells import Cell, Settings, cells
from tilewright.lab.bench.cpu import Bench
from tilewright.lab.bench.library import LIBRARY, FirstCall, known_first_call, measure_first_call


def bench(kernels: list[str], **options: str) -> session.RunRecords:
    request = session.BenchRequest(kernels=kernels, limit="5s", repeat=1, **options)
    return session.run_bench(request)


# ---- on the bench ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("few_operand_sets")
@pytest.mark.parametrize("name", ["matmul", "tilewright/matmul"])
def test_the_library_call_is_measured_beside_kernels_and_references(name: str) -> None:
    done = bench(["ikj", name], sizes="8,33", dtype="float64", threads="1", against="openblas")
    assert {(r.kernel, r.m, r.verdict) for r in done.records} == {
        (kernel, n, "ok") for kernel in ("cpu/ikj", "tilewright/matmul", "ref/openblas") for n in (8, 33)
    }
    (mine,) = (r for r in done.records if r.kernel == "tilewright/matmul" and r.m == 33)
    assert mine.ratio is not None
    assert mine.environment["kernel_source"] == LIBRARY.source_hash


def test_the_default_is_the_ladder_the_library_call_and_what_the_shape_suits() -> None:
    rungs = [kernel.name for kernel in catalog().values() if kernel.is_rung]
    assert LIBRARY.name not in catalog()
    for size, beside in (("4", []), ("1x2000x2000", ["cpu/vector"])):
        settings, _ = session._settings(session.BenchRequest(sizes=size, against="none", threads="2"))
        measured = [cell.kernel.name for cell in cells(settings)]
        assert list(dict.fromkeys(measured)) == [*rungs, LIBRARY.name, *beside]
    with pytest.raises(UsageError, match="kernel 'matmull' is not known"):
        bench(["matmull"])


@pytest.mark.slow
def test_the_bench_says_how_many_threads_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()

    def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        seen.add(tw.get_threads())
        np.matmul(a, b, out=out)

    monkeypatch.setattr(library, "matmul", multiply)
    settings = Settings(kernels=[LIBRARY], references=[], sizes=[(9, 9, 9)], dtypes=["float32"], threads=[3])
    record = Bench(settings, {}).measure(Cell(LIBRARY, (9, 9, 9), "float32", 3, {}))
    assert record.verdict == "ok"
    assert seen == {3}


def test_its_source_is_that_of_all_it_runs_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu" / "codegen").mkdir(parents=True)
    (tmp_path / "lab").mkdir()
    monkeypatch.setattr(library.sources, "PACKAGE", tmp_path)

    def source() -> str:
        return library._with_every_source(
            library.kernel(idea="", row="", name="my/x")(test_a_torn_file_is_no_measurement)
        ).source_hash

    seen = [source()]
    for name, counts in (("cpu/codegen/tile.py", True), ("torch.py", True), ("lab/bench.py", False)):
        (tmp_path / name).write_text("pass")
        seen.append(source())
        assert (seen[-1] != seen[-2]) == counts, name


# ---- the first call --------------------------------------------------------------------------------------------------


def test_the_first_call_is_measured_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process has an empty cache, the others what the first has left there; the best counts."""
    answers = iter([[0.5, 9.0], [0.003, 1.75], [0.006, 1.25]])

    def start(cache: str) -> list[float]:
        found.append(len(list(Path(cache).iterdir())))
        (Path(cache) / f"machine code {len(found)}").touch()
        return next(answers)

    found: list[int] = []
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "_start", start)
    monkeypatch.setattr(library, "_start_on_gpu", lambda cache: [])
    assert known_first_call() is None
    assert measure_first_call() == known_first_call() == FirstCall(import_s=0.003, product_s=1.25)
    assert found == [0, 1, 2]
    monkeypatch.setattr(library, "LIBRARY", SimpleNamespace(source_hash="another"))
    assert known_first_call() is None, "other sources start at another speed"


@pytest.mark.slow
def test_a_process_of_its_own_is_timed(tmp_path: Path) -> None:
    imported_s, product_s = library._start(str(tmp_path))
    assert imported_s > 0
    assert product_s > 0


def test_a_torn_file_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    for text in ("", "[1]", '{"product_s": 1}', '{"product_s": "x", "import_s": 1}'):
        library._cache_file().write(text.encode())
        assert known_first_call() is None


def test_a_process_that_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_SCRIPT", "raise SystemExit('no numpy for size {n}')")
    with pytest.raises(UnavailableError, match=r"the process that measures it failed: no numpy for size 512$"):
        measure_first_call()


@pytest.mark.slow
def test_info_shows_the_roofs_and_the_first_call() -> None:
    """In a process of its own, with what is cached for this machine."""
    command = [sys.executable, "-m", "tilewright", "info"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"FMA peak, float32, 1 thread +[\d.]+ GFLOPS", said)
    assert re.search(r"memory triad, 1 thread +[\d.]+ GB/s", said)
    assert "first product" in said


@pytest.mark.slow
def test_info_shows_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(peaks, "roofs", lambda *, fresh: [])
    monkeypatch.setattr(library, "_start", lambda cache: [0.0012, 1.5])
    on_gpu = iter([[], [3.5, 0.011], [0.3, 0.012], [0.4, 0.013], [0.5, 0.014]])
    monkeypatch.setattr(library, "_start_on_gpu", lambda cache: next(on_gpu))

    def info() -> str:
        return cli("info").out

    assert re.search(r"first product +not measured here yet", info())
    assert measure_first_call() == FirstCall(0.0012, 1.5)
    said = info()
    assert re.search(r"import, after NumPy +1\.2 ms\s", said)
    assert re.search(r"first product +1500 ms\s", said)
    assert re.search(r"\nthreads +\d+ \(", said)
    assert "GPU" not in said
    assert measure_first_call() == known_first_call() == FirstCall(0.0012, 1.5, 3.5, 0.3, 0.012)
    said = info()
    assert re.search(r"first GPU product, compiled +3\.50 s\s", said)
    assert re.search(r"first GPU product, from disk +0\.30 s; later ones 12 ms\s", said)
