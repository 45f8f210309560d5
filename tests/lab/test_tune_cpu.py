"""The tuner of CPU kernels: what it tries, what it believes, what it keeps; and that nobody gets another blocking's code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.simulated_clock import SimulatedClock
from tilewright.__main__ import run_command_line as command
from tilewright.cpu.runtime import in_process
from tilewright.cpu.runtime.in_process import _generator
from tilewright.cpu.runtime.runner import runner
from tilewright.errors import UsageError
from tilewright.host import disk, sources
from tilewright.host.disk import safe_directory
from tilewright.host.machine import Cache, Machine, machine
from tilewright.kernels import Kernel, blocking
from tilewright.kernels.blocking import Blocking, analytic, store_blocking, stored_blocking, tallest, use_candidate
from tilewright.kernels.catalog import catalog, load_file, remade
from tilewright.lab.bench.cpu import Bench
from tilewright.lab.tune import cpu as tune_cpu
from tilewright.lab.tune import session as tune_session
from tilewright.lab.tune.cpu import TunedBlocking, candidates, tune_blocking
from tilewright.records.bench import BenchRecord, read_records

HERE = machine()
#: The cache of all tests, which ``_private`` hides.
CACHE = str(disk._user_cache())
ANALYTIC = analytic(HERE)
#: Another one that is sound on every machine.
OTHER = replace(ANALYTIC, mr=2, unroll=1, kc=48, kc_of_8_bytes=32, block_bytes=4000, panel_bytes=60_000)
FOUND = {"ratio": 1.25, "kernel": "cpu/packed", "dtype": "float32", "shape": (2048, 2048, 2048), "threads": 1}

#: Right or wrong, fast or slow, by what it was made for: no compiler is needed to try it.
SCRIPTED = """
import numpy as np
from tilewright.kernels import kernel
from tilewright.kernels.blocking import blocking
from tilewright.lab.bench.timing import time  # the simulated clock

CHOSEN = blocking()

@kernel(idea="For a test.", row="", dtypes=("float32", "float64"), compiled=False, blocking=CHOSEN)
def scripted(a, b, c):
    np.matmul(a, b, out=c)
    time.sleep(2e-4)
    if CHOSEN.unroll == 16:
        c[0, 0] += 1
        return
    if CHOSEN.mr != 2:
        time.sleep(2e-3)
    elif c.dtype == np.float64 and CHOSEN.kc == 48:
        time.sleep(6e-3)
    elif c.dtype == np.float64 and CHOSEN.kc == 64:
        c[0, 0] = np.nan
"""

#: C tells what its code was made for.
TELLS = """
from tilewright.kernels import kernel
from tilewright.kernels.blocking import blocking

CHOSEN = blocking()
KC = CHOSEN.kc

@kernel(idea="For a test.", row="", blocking=CHOSEN)
def tells(a, b, c):
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = KC
"""


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code comes from the cache of all tests; what is tuned still lies in the test's own."""
    monkeypatch.setattr(in_process, "private_directory", lambda *parts: safe_directory(CACHE, parts))


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    SimulatedClock.installed(monkeypatch)
    path = tmp_path / "scripted.py"
    path.write_text(SCRIPTED)
    return load_file(path)


def machine_of(bits: int, registers: int, l1d: int, l2: int, l3: int | None) -> Machine:
    sizes = [(1, "Data", l1d << 10), (2, "Unified", l2 << 10), (3, "Unified", l3 and l3 << 10)]
    caches = tuple(Cache(level, kind, size) for level, kind, size in sizes)
    return replace(HERE, vector_bits=bits, vector_registers=registers, caches=caches)


# ---- the analytic choice -----------------------------------------------------------------------------------------------


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("here", "numbers"),
    [
        (machine_of(512, 32, 48, 1024, 32 << 10), [6, 4, 4, 512, 512, 84, 2048]),
        (machine_of(256, 16, 32, 512, 16 << 10), [4, 3, 4, 512, 512, 40, 1008]),
        (machine_of(128, 32, 64, 4096, None), [6, 4, 4, 1360, 672, 126, 192]),
    ],
    ids=["AVX-512", "AVX2", "NEON"],
)
def test_computed_from_registers_and_caches(here: Machine, numbers: list[int]) -> None:
    chosen = analytic(here)
    assert list(chosen.numbers.values()) == numbers
    assert chosen.sound(here)
    assert 8 * chosen.kc * chosen.mc(chosen.kc) <= here.l2 / 3


@pytest.mark.any_machine
def test_what_is_not_sound() -> None:
    wrong: list[dict[str, Any]] = [
        {"mr": tallest(HERE, ANALYTIC.nv) + 1},
        {"mr": 1},
        {"mr": 2.0},
        {"mr": "6"},
        {"nv": 1},
        {"nv": True},
    ]
    wrong += [{"unroll": 0}, {"unroll": 64}, {"vector_bits": 64}, {"kc": 24}, {"kc": ANALYTIC.kc + 1}, {"kc": 1 << 20}]
    wrong += [
        {"kc_of_8_bytes": ANALYTIC.kc + 16},
        {"block_bytes": 1 << 40},
        {"panel_bytes": 1 << 40},
        {"panel_bytes": -1},
    ]
    assert OTHER.sound(HERE)
    for change in wrong:
        assert not replace(ANALYTIC, **change).sound(HERE), change


def test_kernels_take_it_from_there() -> None:
    assert catalog()["cpu/packed"].blocking == blocking.in_force()
    with use_candidate(OTHER):
        assert blocking.blocking() == OTHER
        assert blocking.in_force() != OTHER, "what this process's kernels were made for stays"
    made = remade(catalog()["cpu/packed"], OTHER)
    assert made.name == "cpu/packed"
    assert (made.params["mr"], made.params["kc"]) == (2, 48)


# ---- what is tried -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.any_machine
@pytest.mark.parametrize(("itemsize", "name"), [(4, "kc"), (8, "kc_of_8_bytes")])
def test_candidates_nearest_first(itemsize: int, name: str) -> None:
    found = list(candidates(HERE, itemsize, OTHER))
    assert found[:2] == [ANALYTIC, OTHER]
    assert all(one.sound(HERE) for one in found)
    numbers = [tuple(one.numbers.values()) for one in found]
    assert len(set(numbers)) == len(numbers) > 100
    assert len({one.numbers[name] for one in found}) > 4
    # One change of the tile changes all that follows from it; others change one number, and what its block holds.
    single = [one for one in found[2:14] if (one.mr, one.nv) == (ANALYTIC.mr, ANALYTIC.nv)]
    changed = [
        sum(x != y for x, y in zip(asdict(one).values(), asdict(ANALYTIC).values(), strict=True)) for one in single
    ]
    assert changed
    assert max(changed) <= 2
    assert found != list(candidates(HERE, itemsize, OTHER, seed=2))
    assert [ANALYTIC, *found[2:]] == list(candidates(HERE, itemsize, ANALYTIC)), "each once"


# ---- what is found -----------------------------------------------------------------------------------------------------

FAST, WRONG = replace(ANALYTIC, mr=2), replace(ANALYTIC, mr=2, unroll=16)


def tuned(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, *chosen: Blocking, **options: Any) -> TunedBlocking:
    monkeypatch.setattr(tune_cpu, "candidates", lambda *_: iter([ANALYTIC, *chosen]))
    return tune_blocking(kernel, (40, 40, 40), "float32", budget_s=5, **options)


@pytest.mark.slow
def test_the_best_is_proved_better(monkeypatch: pytest.MonkeyPatch, scripted: Kernel) -> None:
    told: list[BenchRecord] = []
    slow = [replace(ANALYTIC, unroll=unroll) for unroll in (3, 5, 6)]
    found = tuned(monkeypatch, scripted, FAST, *slow, tell=told.append)
    assert found.winner is not None
    assert found.winner.blocking == found.finalists[0].blocking == FAST
    assert found.winner.interval[0] > 2
    assert [one.blocking for one in found.finalists].count(ANALYTIC) == 1, "measured against itself"
    assert (found.tried, found.failed) == (5, [])
    best = found.winner.record
    assert best.params == FAST.numbers
    assert len(best.samples_s) == len(best.reference_samples_s) >= tune_cpu.FEWEST_ROUNDS * tune_cpu.PAIRS
    assert {record.dtype for record in told} == {"float32", "float64"}, "the other floats were asked too"
    assert len(found.finalists[-1].record.samples_s) < len(best.samples_s), "the slower half dropped out"


@pytest.mark.slow
def test_a_wrong_product_is_rejected_and_never_kept(monkeypatch: pytest.MonkeyPatch, scripted: Kernel) -> None:
    found = tuned(monkeypatch, scripted, WRONG)
    assert [record.params for record in found.failed] == [WRONG.numbers]
    assert found.failed[0].verdict == "wrong"
    assert WRONG not in [one.blocking for one in found.finalists]
    assert found.winner is None


@pytest.mark.slow
def test_one_that_goes_wrong_in_the_rounds(monkeypatch: pytest.MonkeyPatch, scripted: Kernel) -> None:
    calls, measure = [], tune_cpu.Search.measure

    def wrong_in_the_end(self: Any, chosen: Blocking, before: Any = None) -> Any:
        calls.append(chosen)
        if chosen == FAST and calls.count(FAST) > 2:
            self._kernels[FAST] = remade(self.kernel, WRONG)
        return measure(self, chosen, before)

    monkeypatch.setattr(tune_cpu.Search, "measure", wrong_in_the_end)
    found = tuned(monkeypatch, scripted, FAST)
    assert found.winner is None
    assert [(one.blocking, one.record.verdict) for one in found.finalists] == [(ANALYTIC, "ok"), (FAST, "wrong")]
    assert found.finalists[1].record.samples_s == []


@pytest.mark.slow
def test_what_is_no_faster_is_not_kept(monkeypatch: pytest.MonkeyPatch, scripted: Kernel) -> None:
    found = tuned(monkeypatch, scripted, replace(ANALYTIC, unroll=3))
    assert found.winner is None
    assert "by more than the noise" in found.why


@pytest.mark.slow
@pytest.mark.parametrize(("kc", "words"), [(48, "slower with float64"), (64, "failed with float64")])
def test_the_other_floats_must_not_lose(monkeypatch: pytest.MonkeyPatch, scripted: Kernel, kc: int, words: str) -> None:
    chosen = replace(FAST, kc=kc, kc_of_8_bytes=32)
    found = tuned(monkeypatch, scripted, chosen)
    assert found.finalists[0].blocking == chosen
    assert found.winner is None
    assert words in found.why


def test_what_cannot_be_tuned(scripted: Kernel) -> None:
    with pytest.raises(UsageError, match=r"cpu/ikj cannot be tuned: .*; can be: cpu/packed"):
        tune_blocking(catalog()["cpu/ikj"], (64, 64, 64), "float32")
    with pytest.raises(UsageError, match="my/scripted has no int8"):
        tune_blocking(scripted, (64, 64, 64), "int8")


# ---- what is kept ------------------------------------------------------------------------------------------------------


def test_kept_for_the_processes_to_come() -> None:
    assert stored_blocking() is None
    path = store_blocking(OTHER, FOUND)
    assert path is not None
    found = stored_blocking()
    assert found is not None
    assert found.blocking == OTHER
    assert found.found["ratio"] == 1.25
    assert list(path.parent.iterdir()) == [path], "no draft is left"
    assert blocking.forget_blocking()
    assert stored_blocking() is None
    assert not blocking.forget_blocking()


BROKEN: list[Any] = ["", "[]", "{}", "7", "[" * 100_000, {"made_for": "others"}, {"blocking": {"mr": 6}}, {"found": {}}]
BROKEN += [{"blocking": asdict(replace(OTHER, **{name: bad}))} for name, bad in [("mr", 99), ("kc", 0), ("nv", "4")]]  # type: ignore[arg-type]
BROKEN += [{"blocking": asdict(OTHER) | {"more": 1}}, {"found": {"ratio": "fast"}}, {"blocking": [1, 2]}]


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: str(change)[:60])
def test_a_broken_file_is_ignored(change: Any) -> None:
    path = store_blocking(OTHER, FOUND)
    assert path is not None
    assert stored_blocking() is not None
    text = change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change)
    path.write_text(text)
    assert stored_blocking() is None


def test_what_is_of_another_machine_or_other_sources_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = store_blocking(OTHER, FOUND)
    assert path is not None
    elsewhere = replace(HERE, processor="Another processor")
    with monkeypatch.context() as patch:
        patch.setattr(blocking, "machine", lambda: elsewhere)
        assert stored_blocking() is None
        assert blocking._kept_in().write(path.read_bytes())
        assert stored_blocking() is None, "nor under that machine's own name"
    assert stored_blocking() is not None
    changed = tmp_path / "cpu" / "codegen" / "tile.py"
    changed.parent.mkdir(parents=True)
    changed.write_text("another generator")
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    assert stored_blocking() is None


def test_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "private_directory", lambda *parts: None)
    assert store_blocking(OTHER, FOUND) is None
    assert stored_blocking() is None
    assert not blocking.forget_blocking()


#: Every kernel that takes its blocks from there, each with a dtype of its own, on edges of every block.
IN_FORCE = """
import json, numpy as np
from tilewright.kernels.catalog import catalog
from tilewright.kernels import blocking
from tilewright.cpu.runtime import in_process
from tilewright.cpu.runtime.in_process import _generator
from tilewright.cpu.runtime.runner import runner
rng = np.random.default_rng(0)
MADE = {"packed": "float32", "complex": "complex64", "narrow_integers": "int8", "half_floats": "float16"}
for name, dtype in MADE.items():
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((67, 131), (131, 201)))
    for threads in (1, 3):
        c = np.empty((67, 201), dtype)
        runner(catalog()["cpu/" + name], dtype, threads=threads)(a, b, c)
        exact = (a.astype(complex) @ b).real
        right = exact.astype(np.int64).astype(dtype) if dtype == "int8" else exact.astype(dtype)
        assert np.array_equal(c, right), (name, dtype)
numbers = [catalog()["cpu/packed"].params, catalog()["cpu/narrow_integers"].params["kc"]]
print(json.dumps([*numbers, blocking.describe(), _generator()]))
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_what_is_kept_is_in_force_in_the_next_process(tmp_path: Path) -> None:
    own = _generator()
    store_blocking(OTHER, FOUND)
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_FORCE], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    params, kc_of_8_bytes, words, key = json.loads(answer.stdout)
    assert (params["mr"], params["nv"], params["kc"], kc_of_8_bytes) == (2, OTHER.nv, 48, 32)
    assert (params["mc"], params["nc"]) == (OTHER.mc(48), OTHER.nc(48, OTHER.nv * OTHER.vector_bits // 32))
    assert words.startswith(f"2 rows × {OTHER.nv} vectors, KC 48")
    assert words.endswith("tuned here: 1.250 times as fast as the analytic choice")
    assert key != own, "machine code of either is not the other's"


def test_in_words_without_a_search() -> None:
    assert blocking.describe().endswith("computed from the caches, not tuned")


# ---- machine code ------------------------------------------------------------------------------------------------------

#: Makes a kernel for several blockings; what each computes, and whether its code came from disk.
MADE = """
import json, sys, numpy as np
from dataclasses import replace
from tilewright.kernels.catalog import load_file
from tilewright.kernels.blocking import in_force
from tilewright.kernels.catalog import remade
from tilewright.cpu.runtime.runner import compiled, runner
said = []
for kc in map(int, sys.argv[2:]):
    kernel = remade(load_file(sys.argv[1]), replace(in_force(), kc=kc))
    c = np.ones((3, 3))
    runner(kernel, c.dtype)(c.copy(), c.copy(), c)
    said.append([c[0, 0], sum(compiled(kernel, c.dtype).dispatcher.stats.cache_hits.values())])
print(json.dumps(said))
"""


@pytest.mark.slow
def test_machine_code_of_two_blockings_does_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "tells.py"
    path.write_text(TELLS)

    def made(*kc: int) -> list[list[float]]:
        arguments = [sys.executable, "-W", "error", "-c", MADE, str(path), *map(str, kc)]
        return json.loads(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)

    assert made(512, 256) == [[512, 0], [256, 0]]
    assert made(256, 128, 512) == [[256, 1], [128, 0], [512, 1]]


#: Multiplies by cpu/packed with several blockings, whose code may be on disk. Its tiles come from a module that they share.
MULTIPLIED = """
import sys, numpy as np
from dataclasses import replace
from tilewright.kernels.catalog import catalog, remade
from tilewright.kernels.blocking import in_force
from tilewright.cpu.runtime.runner import compiled, runner
a, b = np.ones((40, 600), np.float32), np.ones((600, 40), np.float32)
for kc in map(int, sys.argv[1:]):
    kernel = remade(catalog()["cpu/packed"], replace(in_force(), kc=kc))
    c = np.zeros((40, 40), np.float32)
    runner(kernel, c.dtype)(a, b, c)
    assert (c == 600).all(), (kc, c)
    print(sum(compiled(kernel, c.dtype).dispatcher.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_tiles_compiled_by_two_processes_do_not_mix() -> None:
    def hits(*kc: int) -> list[int]:
        arguments = [sys.executable, "-W", "error", "-c", MULTIPLIED, *map(str, kc)]
        return [
            int(line) for line in subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
        ]

    assert hits(512) == hits(256) == [0]
    assert hits(512, 256) == [1, 1]


@pytest.mark.slow
def test_code_is_compiled_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tune_cpu, "machine", lambda: replace(HERE, usable_cores=2))
    path = tmp_path / "tells.py"
    path.write_text(TELLS)
    wanted = [ANALYTIC, OTHER, replace(OTHER, kc=64)]
    with tune_cpu.compiled_first(load_file(path), "float64", iter(wanted)) as ready:
        assert next(ready) == ANALYTIC
        assert not list((tmp_path / "cache").rglob("*.nbc"))
        assert next(ready) == OTHER
        assert len(list((tmp_path / "cache").rglob("*.nbc"))) == 2
        assert list(ready) == wanted[2:]


# ---- the command -------------------------------------------------------------------------------------------------------


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["tilewright", "tune", *arguments])
    code = command()
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_before")
def test_from_the_command_line(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    records = tmp_path / "tuned.jsonl"
    arguments = ("packed", "--size", "300", "--budget", "0.1s", "--json", str(records))
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert "analytic" in out.splitlines()[1]
    assert "1 blockings tried, 1 measured and verified." in out
    assert "The budget was too short for any other blocking: raise --budget." in " ".join(out.split())
    first, last = read_records(records)
    assert first.params == last.params == ANALYTIC.numbers
    assert first.reference == "cpu/packed"
    assert stored_blocking() is None


@pytest.mark.slow
def test_the_winner_is_kept_marked_and_can_be_forgotten(monkeypatch: Any, capsys: Any, scripted: Kernel) -> None:
    monkeypatch.setattr(tune_cpu, "candidates", lambda *_: iter([ANALYTIC, FAST]))
    arguments = (str(scripted.path), "--size", "40", "--budget", "3s")
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert [line.split()[-1] for line in out.splitlines()[1:3]][1] == "analytic"
    found = stored_blocking()
    assert found is not None
    assert found.blocking == FAST
    assert found.found["kernel"] == "my/scripted"
    assert "The best one is faster than the analytic choice" in out
    _, out, _ = call(monkeypatch, capsys, str(scripted.path), "--reset")
    assert out == "Forgotten: tile and blocks are computed again.\n"
    assert stored_blocking() is None
    assert call(monkeypatch, capsys, "cpu/packed", "--reset")[1] == "Nothing was cached for this machine.\n"


@pytest.mark.slow
def test_wrong_results_are_an_exit_code_and_leave_what_was_kept(
    monkeypatch: Any, capsys: Any, scripted: Kernel
) -> None:
    store_blocking(OTHER, FOUND)
    monkeypatch.setattr(tune_cpu, "candidates", lambda *_: iter([ANALYTIC, WRONG]))
    code, out, _ = call(monkeypatch, capsys, str(scripted.path), "--size", "40", "--budget", "3s")
    assert code == 1
    assert "1 wrong result, such as mr=2" in out
    found = stored_blocking()
    assert found is not None
    assert found.blocking == OTHER


@pytest.mark.slow
def test_ctrl_c_loses_nothing_of_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scripted: Kernel, tmp_path: Path
) -> None:
    path = store_blocking(OTHER, FOUND)
    assert path is not None
    before, measured, measure = path.read_bytes(), [], Bench.measure

    def interrupted(self: Bench, cell: Any) -> Any:
        measured.append(cell)
        if len(measured) == 4:
            raise KeyboardInterrupt
        return measure(self, cell)

    monkeypatch.setattr(Bench, "measure", interrupted)
    request = tune_session.TuneRequest(str(scripted.path), "40", budget="20s")
    with pytest.raises(KeyboardInterrupt):
        tune_session.run_on_cpu(request, json_file=tmp_path / "t.jsonl")
    assert path.read_bytes() == before
    assert len(read_records(tmp_path / "t.jsonl")) == 3
    measured.clear()
    answer = call(monkeypatch, capsys, str(scripted.path), "--size", "40")
    assert answer == (130, "", "interrupted: nothing was cached\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cpu/ikj"], "cpu/ikj cannot be tuned"),
        (["cpu/nothing"], "kernel 'cpu/nothing' is not known"),
        (["nosuch"], "kernel 'nosuch' is not known: known: cpu/packed, cuda/async_copy"),
        (["packd"], "kernel 'packd' is not known: did you mean cpu/packed?"),
        (["shared_tle"], "kernel 'shared_tle' is not known: did you mean cuda/shared_tile"),
        (["cuda/packd"], "kernel 'cuda/packd' is not known: did you mean cpu/packed"),
        (["naive"], "can be: cpu/packed, cuda/"),
        (["packed", "--size", "64,128"], "give one size"),
        (["packed", "--dtype", "float17"], "cpu/packed has no float17"),
        (["packed", "--threads", "0"], "threads must be at least 1, got 0"),
        (["packed", "--seed", "-1"], "seed must not be negative"),
        (["packed", "--budget", "soon"], "budget must be a time"),
        (["cuda/shared_tile", "--threads", "2"], "threads: cuda/shared_tile runs on a GPU"),
        (["cuda/shared_tile", "--reset"], "reset: the cached parameters of cuda/shared_tile are for a GPU"),
    ],
)
def test_errors_name_the_argument(monkeypatch: Any, capsys: Any, arguments: list[str], words: str) -> None:
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert words in err


@pytest.mark.slow
def test_a_product_by_another_blocking_is_right() -> None:
    made = remade(catalog()["cpu/packed"], OTHER)
    rng = np.random.default_rng(0)
    for m, n, k in ((1, 1, 1), (65, 139, 97), (5, 400, 50), (300, 7, 3)):
        a, b = (rng.integers(-4, 5, shape).astype(np.float64) for shape in ((m, k), (k, n)))
        c = np.empty((m, n))
        runner(made, "float64", threads=2)(a, b, c)
        assert np.array_equal(c, a @ b)
