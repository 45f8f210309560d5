"""``multiply`` through whatever may happen to it: odd sizes, full disks, errors in the middle, resumption."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.interrupted import interrupted_after
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.errors import DTypeError, FileError, MemoryLimitError, ResumeError, ShapeError, UsageError
from tilewright.host.disk import CacheFile
from tilewright.large.files import open_matrix, positional, whole_matrix
from tilewright.large.files.array import ArraySource
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.places import places
from tilewright.large.streaming.places.place import Events, Place
from tilewright.large.streaming.places.places import HostPlace, Placement, parse_bytes
from tilewright.large.streaming.places.rates import read_rate
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.grid import ORDERS, Grid
from tilewright.large.streaming.plan.stream import Room, plan_again
from tilewright.large.streaming.run import job as job_module
from tilewright.large.streaming.run.job import open_job
from tilewright.large.streaming.run.journal import Journal, read_journal
from tilewright.product import precision as bounds
from tilewright.product.operands import dtype_of

#: Room for 16 tiles of C, 4×4, where m = n = k = N.
N, ROOM = 1000, 1_600_000


@dataclass(frozen=True)
class Known(Placement):
    """The CPU, at rates that nobody has to measure; ``count`` of them."""

    count: int = 1

    @property
    def names(self) -> list[str]:
        return [f"cpu:{number}" for number in range(self.count)]

    def rates(self, *_: Any) -> Rates:
        return Rates(1e11, 1e10, 1e9)

    def places(self, plan: Any, a: Any, b: Any, sink: Any, events: Events) -> Iterator[Place]:
        for name in self.names[: len(plan.regions)]:
            yield HostPlace(plan, a, b, sink, kernel=self.choice.kernel, threads=1, events=events.at(name))


Rooms = Callable[..., None]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Rooms:
    """Sets how many bytes blocks may take from now on, and in how many places."""

    def choose(place: int = ROOM, count: int = 1) -> None:
        def choice(sources: Any, dtype: np.dtype, *_: Any) -> Placement:
            return Known(choose_adding_cpu(dtype.name), Room(place), 2, 1 << 40, count=count)

        monkeypatch.setattr(job_module, "place_product", choice)

    choose()
    return choose


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rooms: Rooms) -> Path:
    """With a.npy and b.npy, and whole.npy, which is their product."""
    monkeypatch.chdir(tmp_path)
    remembered = tmp_path / "cache" / "finished"
    remembered.mkdir(parents=True)
    kept = CacheFile.path.fget
    assert kept is not None

    def path(file: CacheFile) -> Path | None:
        return remembered / file.name if file.folder == "finished" else kept(file)

    monkeypatch.setattr(CacheFile, "path", property(path))
    rng = np.random.default_rng(1)
    for name in "ab":
        np.save(f"{name}.npy", rng.uniform(-1, 1, (N, N)).astype(np.float32))
    tw.multiply("a.npy", "b.npy", "whole.npy")
    return tmp_path


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    kept = ("tilewright", "asyncio", "zarr")  # the engine's crew, and zarr's own
    assert not [each.name for each in set(threading.enumerate()) - before if not each.name.startswith(kept)]


def begin(out: str = "c.npy", tiles: int = 5, **options: Any) -> set[Any]:
    """Interrupt a · b after so many tiles; returns those that are finished."""
    with interrupted_after(tiles), pytest.raises(KeyboardInterrupt):
        tw.multiply("a.npy", "b.npy", out, **options)
    begun = read_journal(Path(f"{out.partition(':')[0]}.tilewright/journal"))
    assert begun is not None
    assert len(begun.finished) == tiles
    return set(begun.finished)


def computed(*arguments: Any, **more: Any) -> set[str]:
    """The tiles that a run computes, by the names of their events."""
    events = Events()
    tw.multiply(*arguments, events=events, **more)
    return {event.name.split(" step")[0] for event in events.events if event.track == "compute"}


def is_whole(path: str = "c.npy") -> bool:
    """Bit by bit, and nothing else is left."""
    same = Path(path).read_bytes() == Path("whole.npy").read_bytes()
    return same and not list(Path().glob("*.tilewright"))


# ---- products --------------------------------------------------------------------------------------------------------


def test_a_product_in_tiles_is_the_product(folder: Path) -> None:
    a, b, c = (np.load(f"{name}.npy").astype(np.float64) for name in ("a", "b", "whole"))
    assert np.abs(a @ b - c).max() < 1e-4
    assert not np.abs(a @ b - c.T).max() < 1e-4


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (300, 600, 0), (1, 1, 1), (1, 700, 1)])
def test_empty_and_least_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rooms: Rooms, shape: Any) -> None:
    monkeypatch.chdir(tmp_path)
    m, n, k = shape
    a, b = np.full((m, k), 2.0), np.full((k, n), 3.0)
    out = np.full((m, n), np.nan)
    assert tw.multiply(a, b, out) is out
    assert np.array_equal(out, a @ b)
    np.save("a.npy", a)
    np.save("b.npy", b)
    assert tw.multiply("a.npy", "b.npy", "c.npy") == "c.npy"
    assert np.array_equal(np.load("c.npy"), a @ b)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy"]


@pytest.mark.slow
def test_operands_may_be_one_file_and_the_result_replace_it(folder: Path) -> None:
    a = np.load("a.npy")
    tw.multiply("a.npy", "a.npy", "square.npy")
    tw.multiply("a.npy", "a.npy", "a.npy", overwrite=True)
    assert Path("a.npy").read_bytes() == Path("square.npy").read_bytes()
    assert np.abs(np.load("a.npy") - a.astype(float) @ a).max() < 1e-4


def test_a_result_in_memory_must_be_apart_from_the_operands(folder: Path) -> None:
    both = np.zeros((N, 2 * N), np.float32)
    a, c = both[:, :N], both[:, N:]
    tw.multiply(a, np.load("b.npy"), c)  # neighbours share none
    for out, x in ((a, a), (both[:, 1 : N + 1], a), (np.load("a.npy", mmap_mode="r+"), "a.npy")):
        with pytest.raises(UsageError, match="out shares memory with b"):
            tw.multiply(np.load("b.npy"), x, out)


def test_a_source_of_the_caller_stays_open(folder: Path) -> None:
    source = open_matrix("a.npy")
    tw.plan_multiply(source, "b.npy")
    tw.multiply(source, "b.npy", "c.npy")
    source.close()
    assert is_whole()


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (ShapeError, {"b": np.zeros((N + 1, 3))}),
        (DTypeError, {"dtype": "int32"}),
        (DTypeError, {"dtype": "flaot32"}),
        (DTypeError, {"b": np.zeros((N, 3), "M8[s]")}),
        (FileError, {"b": "absent.npy"}),
        (FileError, {"out": "absent/c.npy"}),
        (UsageError, {"out": "c.nyp"}),
    ],
)
def test_what_cannot_be_multiplied_is_refused_before_anything_is_written(folder: Path, kind: Any, wrong: Any) -> None:
    before = sorted(folder.iterdir())
    asked = {"a": "a.npy", "b": "b.npy", "out": "c.npy"} | wrong
    with pytest.raises(kind):
        tw.multiply(asked.pop("a"), asked.pop("b"), **asked)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": np.ones(N)}, "^a has 1 dimensions"),
        ({"b": np.zeros((N, 3), "M8[s]")}, r"^b is an array of dtype datetime64\[s\], which cannot be mul"),
        ({"out": np.zeros((N, N), int)}, "^out has dtype int64"),
        ({"out": np.zeros((N, 3), np.float32)}, r"^out is \(1000, 3\), the product is \(1000, 1000\)"),
    ],
)
def test_a_wrong_array_is_called_by_the_name_of_its_argument(folder: Path, wrong: Any, message: str) -> None:
    asked = {"a": "a.npy", "b": "b.npy", "out": "c.npy"} | wrong
    with pytest.raises((ShapeError, DTypeError), match=message):
        tw.multiply(asked.pop("a"), asked.pop("b"), **asked)


def test_what_cannot_fit_is_refused_before_anything_is_written(folder: Path, rooms: Rooms) -> None:
    before = sorted(folder.iterdir())
    rooms(100_000)
    with pytest.raises(MemoryLimitError, match="it needs at least 272 KiB"):
        tw.multiply("a.npy", "b.npy", "c.npy")
    assert sorted(folder.iterdir()) == before


def test_a_truncated_operand_is_refused(folder: Path) -> None:
    os.truncate("b.npy", 3_000_000)
    with pytest.raises(FileError, match="truncated"):
        tw.multiply("a.npy", "b.npy", "c.npy")


@pytest.mark.slow
def test_what_the_first_read_compiles_is_no_matter_of_rates() -> None:
    class SlowAtFirst(ArraySource):
        pause_s = 0.3

        def read(self, *arguments: Any) -> None:
            time.sleep(self.pause_s)
            self.pause_s = 0
            super().read(*arguments)

    assert read_rate(SlowAtFirst(np.zeros((N, N), np.float32)), "float32", 1, 1 << 30) > 1e8


# ---- stopped in the middle -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("boom")], ids=repr)
def test_an_error_in_a_source_stops_all_and_is_raised_once(folder: Path, error: BaseException) -> None:
    class Failing(ArraySource):
        reads = 0

        def read(self, *arguments: Any) -> None:
            self.reads += 1
            if self.reads == 7:
                raise error
            super().read(*arguments)

    source = Failing(np.load("b.npy"))
    with pytest.raises(type(error)) as raised:
        tw.multiply("a.npy", source, "c.npy")
    assert raised.value is error
    assert error.__context__ is None


@pytest.mark.slow
def test_a_thread_that_cannot_be_started_leaves_none_behind(folder: Path) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "_store":
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="the system starts no more threads"):
            tw.multiply("a.npy", "b.npy", "c.npy")


def test_ctrl_c_in_a_multiplication_keeps_what_is_finished(folder: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tw.multiply("a.npy", "b.npy", "c.npy", progress=interrupt)
    begun = read_journal(Path("c.npy.tilewright/journal"))
    assert begun is not None
    assert 4 <= len(begun.finished) <= 9
    tw.multiply("a.npy", "b.npy", "c.npy", resume=True)
    assert is_whole()


@pytest.mark.parametrize("call", ["move_rows", "journal"])
def test_a_disk_that_fills_up_keeps_every_finished_tile(folder: Path, call: str) -> None:
    """Where the result is written, or where its journal is."""
    calls, move_rows, write = [0], positional.move_rows, os.write

    def full(*arguments: Any) -> Any:
        writes = call == "journal" or arguments[0] == "pwrite"
        calls[0] += writes
        if writes and calls[0] > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return (write if call == "journal" else move_rows)(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*((os, "write", full) if call == "journal" else (positional, "move_rows", full)))
        with pytest.raises(FileError, match=r"c\.npy.* the disk is full .* free"):
            tw.multiply("a.npy", "b.npy", "c.npy")
    assert not Path("c.npy").exists()
    begun = read_journal(Path("c.npy.tilewright/journal"))
    assert begun is not None
    assert len(begun.finished) == (5 if call == "journal" else 6)
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True)) == 16 - len(begun.finished)
    assert is_whole()


@pytest.mark.slow
def test_operands_that_change_meanwhile_give_no_result(folder: Path) -> None:
    def change(done: int, total: int) -> None:
        if done > total / 2:
            os.utime("b.npy")

    with pytest.raises(ResumeError, match="b was changed while"):
        tw.multiply("a.npy", "b.npy", "c.npy", progress=change)
    assert not Path("c.npy").exists()
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True)) == 16


# ---- taken up again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_finished_tile_is_computed_again(folder: Path, rooms: Rooms, count: int) -> None:
    finished = begin()
    rooms(count=count)
    again = computed("a.npy", "b.npy", "c.npy", resume=True)
    assert again == {f"C[{i}, {j}]" for i in range(4) for j in range(4)} - {f"C[{i}, {j}]" for i, j in finished}
    assert is_whole()


@pytest.mark.slow_cases("c.zarr", "c.zarr:inside")
@pytest.mark.parametrize("out", ["c.raw", "c.safetensors", "c.h5", "c.h5:/deep/product", "c.zarr", "c.zarr:inside"])
def test_every_format_can_be_taken_up(folder: Path, out: str) -> None:
    begin(out)
    assert len(computed("a.npy", "b.npy", out, resume=True)) == 11
    stated = {"shape": (N, N), "dtype": np.float32} if out == "c.raw" else {}
    source, c = open_matrix(out, **stated), np.empty((N, N), np.float32)
    source.read(slice(0, N), slice(0, N), c)
    source.close()
    assert np.array_equal(c, np.load("whole.npy"))
    assert not list(folder.glob("*.tilewright"))


def test_another_name_in_the_same_file_is_another_result(folder: Path) -> None:
    begin("c.h5:/one")
    with pytest.raises(ResumeError, match="the result's name changed"):
        tw.multiply("a.npy", "b.npy", "c.h5:/other", resume=True)


@pytest.mark.parametrize("room", [1_320_000, 3_000_000, 50_000_000])
def test_with_other_memory_it_stays_cut_as_it_was(folder: Path, rooms: Rooms, room: int) -> None:
    begin()
    rooms(room)
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True)) == 11
    assert is_whole()


def test_a_cut_that_would_not_be_chosen_now_is_kept(folder: Path, rooms: Rooms) -> None:
    rooms(2_000_000)
    grid = Grid(N, N, N, 192, 192, 512)
    with pytest.MonkeyPatch.context() as patch:
        tiles = tuple(ORDERS["rows"](*grid.tiles))
        patch.setattr(
            job_module, "plan_stream", lambda problem, *known: plan_again(grid, problem.dtype, *known[:2], tiles)
        )
        begin()
    assert tw.plan_multiply("a.npy", "b.npy", "c.npy").grid != grid
    plan = tw.plan_multiply("a.npy", "b.npy", "c.npy", resume=True)
    assert (plan.grid, len(plan.tiles)) == (grid, 36 - 5)
    assert "tiles      6×6 of 192×192, as begun; k in 2 steps of 512" in str(plan)
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True)) == 36 - 5
    assert np.abs(np.load("c.npy") - np.load("whole.npy")).max() < 1e-4


def test_the_limit_that_an_error_names_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts what threads and buffers take: the caller's limit holds both."""
    monkeypatch.setattr(places, "LEAST_LIMIT", 1)
    operands = np.ones((N, N), np.float32), np.ones((N, N), np.float32)
    need = 1 << 20  # less than threads and buffers take
    for _ in range(2):
        with pytest.raises(MemoryLimitError, match=r"at least .*, of which threads and buffers take") as caught:
            tw.plan_multiply(*operands, device="cpu", memory=need - 4)
        need = int(str(caught.value).rsplit("(", 1)[1].split()[0])
    plan = tw.plan_multiply(*operands, device="cpu", memory=need)
    assert 0 < plan.place_bytes <= plan.room.place < need == plan.room.place + plan.room.reserved


def test_with_too_little_memory_nothing_is_lost(folder: Path, rooms: Rooms) -> None:
    begin()
    rooms(1_000_000)
    with pytest.raises(MemoryLimitError, match=r"with which this product was begun, need 1\.\d MiB"):
        tw.multiply("a.npy", "b.npy", "c.npy", resume=True)
    rooms()
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True)) == 11
    assert is_whole()


@pytest.mark.slow
def test_changed_operands_are_refused_and_named(folder: Path) -> None:
    finished = begin()
    status = Path("a.npy").stat()
    os.utime("a.npy", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(ResumeError, match=r"c\.npy\.tilewright/journal: a changed .*without resume"):
        tw.multiply("a.npy", "b.npy", "c.npy", resume=True)
    os.utime("a.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
    with Path("b.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    with pytest.raises(ResumeError, match="b changed"):
        tw.plan_multiply("a.npy", "b.npy", "c.npy", resume=True)
    with pytest.raises(ResumeError, match="b and the dtype changed"):
        tw.multiply("a.npy", "b.npy", "c.npy", dtype="float64", resume=True)
    begun = read_journal(Path("c.npy.tilewright/journal"))
    assert begun is not None
    assert begun.finished == finished, "a refusal loses nothing"
    assert len(computed("a.npy", "b.npy", "c.npy")) == 16


@pytest.mark.parametrize("lost", ["c.npy.tilewright/data", "c.npy.tilewright/journal", "both"])
def test_a_journal_or_a_file_alone_is_begun_anew(folder: Path, lost: str) -> None:
    begin()
    for name in ("c.npy.tilewright/data", "c.npy.tilewright/journal"):
        if lost in (name, "both"):
            Path(name).unlink()
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True)) == 16
    assert is_whole()


def test_of_another_file_in_its_place_no_tile_counts(folder: Path) -> None:
    begin()
    Path("other").write_bytes(Path("c.npy.tilewright/data").read_bytes())
    Path("other").replace("c.npy.tilewright/data")
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True)) == 16


def test_a_result_that_lacks_only_the_journals_removal_is_not_computed_again(folder: Path) -> None:
    def interrupted(journal: Journal) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tw.multiply("a.npy", "b.npy", "c.npy")
    assert Path("c.npy.tilewright/journal").exists()
    assert computed("a.npy", "b.npy", "c.npy", resume=True) == set()
    assert is_whole()


def asked_again(**more: Any) -> set[str]:
    return computed("a.npy", "b.npy", "c.npy", resume=True, **more)


@pytest.fixture
def done(folder: Path) -> bytes:
    """c.npy, the product of a.npy and b.npy; its status must stay."""
    tw.multiply("a.npy", "b.npy", "c.npy")
    return Path("c.npy").read_bytes()


@pytest.mark.slow
def test_a_complete_result_of_these_operands_is_left_as_it_is(folder: Path, rooms: Rooms, done: bytes) -> None:
    before, seen = Path("c.npy").stat(), []
    rooms(50_000_000, count=2)
    assert asked_again(progress=lambda *told: seen.append(told)) == set()
    now = Path("c.npy").stat()
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert seen == [(2 * N**3, 2 * N**3)]
    with open_job("a.npy", "b.npy", "c.npy", Options(resume=True)) as again:
        told = json.loads(json.dumps(again.as_dict(), allow_nan=False))
    assert told["already_complete"]
    assert (told["measured"]["before"], told["measured"]["finished"]) == (told["measured"]["tiles"], 0)
    plan = tw.plan_multiply("a.npy", "b.npy", "c.npy", resume=True)
    assert (plan.tiles, str(plan).splitlines()[1:]) == ((), ["  nothing is left to do"])
    assert is_whole()
    assert computed("a.npy", "b.npy", "c.npy", overwrite=True), "without resume it begins anew"


def test_a_complete_result_needs_no_memory_and_no_rates(
    folder: Path, rooms: Rooms, done: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms(1000)
    monkeypatch.setattr(Known, "rates", None)
    assert asked_again() == set()


@pytest.mark.slow_cases("d.zarr", "d.zarr:inside", "d.h5:/deep/product")
@pytest.mark.parametrize("out", ["d.raw", "d.safetensors", "d.h5", "d.h5:/deep/product", "d.zarr", "d.zarr:inside"])
def test_complete_results_of_every_format_are_known(folder: Path, out: str) -> None:
    tw.multiply("a.npy", "b.npy", out)
    assert computed("a.npy", "b.npy", out, resume=True) == set()
    os.utime("b.npy")
    with pytest.raises(ResumeError, match="is complete, but b changed since it was made: give overwrite=True"):
        tw.multiply("a.npy", "b.npy", out, resume=True)


def rewritten() -> None:
    np.save("c.npy", np.load("c.npy") + 1)


def of_another_shape() -> None:
    np.save("c.npy", np.zeros((N, N - 1), np.float32))


def of_another_dtype() -> None:
    np.save("c.npy", np.zeros((N, N), np.float64))


def emptied() -> None:
    Path("c.npy").write_bytes(b"")


def forgotten() -> None:
    for record in Path("cache/finished").iterdir():
        record.unlink()


def recorded_wrongly() -> None:
    for record in Path("cache/finished").iterdir():
        record.write_bytes(b'{"result": 5, "facts": ' + b"[" * 100_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: os.utime("a.npy"), "complete, but a changed since"),
        (lambda: np.save("b.npy", np.ones((N, N), np.float32)), "complete, but b changed since"),
        (rewritten, "what it was made from is not known"),
        (of_another_shape, r"is not \(1000, 1000\) float32"),
        (of_another_dtype, r"is not \(1000, 1000\) float32"),
        (emptied, r"is not \(1000, 1000\) float32"),
        (forgotten, "what it was made from is not known"),
        (recorded_wrongly, "what it was made from is not known"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_resume_replaces_no_other_result_and_takes_none_for_this(
    folder: Path, done: bytes, change: Callable[[], Any], says: str
) -> None:
    change()
    before = Path("c.npy").read_bytes()
    for call in (tw.multiply, tw.plan_multiply):
        with pytest.raises(ResumeError, match=f"{says}.*give overwrite=True \\(--overwrite\\) to replace it"):
            call("a.npy", "b.npy", "c.npy", resume=True)
    assert Path("c.npy").read_bytes() == before
    assert not list(folder.glob("*.tilewright"))
    tw.multiply("a.npy", "b.npy", "c.npy", overwrite=True)
    assert asked_again() == set()


@pytest.mark.slow
def test_an_interrupted_product_goes_on_though_an_older_result_has_its_name(folder: Path, done: bytes) -> None:
    """That it is to be overwritten is in the journal: what was begun needs no new permission."""
    np.save("c.npy", np.ones((3, 4)))
    begin(overwrite=True)
    assert tw.plan_multiply("a.npy", "b.npy", "c.npy", resume=True).tiles
    assert len(asked_again()) == 11
    assert is_whole()


def test_an_interrupted_product_replaces_no_file_that_appeared_since(folder: Path) -> None:
    begin()
    np.save("c.npy", np.ones((3, 4)))
    before = Path("c.npy").read_bytes()
    for call in (tw.multiply, tw.plan_multiply):
        with pytest.raises(FileError, match=r"c\.npy exists: choose another name, or replace it with --overwrite"):
            call("a.npy", "b.npy", "c.npy", resume=True)
    assert Path("c.npy").read_bytes() == before
    assert len(computed("a.npy", "b.npy", "c.npy", resume=True, overwrite=True)) == 11
    assert is_whole()


def test_only_so_many_results_are_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "MOST", 3)
    for number in range(5):
        tw.multiply(np.ones((2, 3)), np.ones((3, 2)), f"d{number}.npy")
        os.utime(max(Path("cache/finished").iterdir(), key=os.path.getmtime), (number + 1e9, number + 1e9))
    assert len(list(Path("cache/finished").iterdir())) == 3


@pytest.mark.slow
def test_where_no_record_can_be_kept_the_product_is_made_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CacheFile, "write", lambda self, content: None)
    tw.multiply("a.npy", "b.npy", "c.npy")
    assert is_whole()
    with pytest.raises(ResumeError, match="is not known"):
        tw.multiply("a.npy", "b.npy", "c.npy", resume=True)


def tampered(**changed: int) -> None:
    """Of the journal that was begun, as by an editor."""
    path = Path("c.npy.tilewright/journal")
    text = path.read_text()
    for name, value in changed.items():
        text = re.sub(rf'"{name}": \d+', f'"{name}": {value}', text)
    path.write_text(text)


@pytest.mark.slow_cases("m", "n", "bk", "huge", "inode")
@pytest.mark.parametrize(
    "changed",
    [{"m": 512}, {"bm": 0}, {"n": 1 << 50}, {"bk": 1}, {"inode": 5}, {"k": 10**4000}],
    ids=["m", "bm", "n", "bk", "inode", "huge"],
)
def test_a_tampered_journal_is_refused_and_loses_nothing(folder: Path, changed: dict[str, int]) -> None:
    begin()
    before = Path("c.npy.tilewright/journal").read_bytes()
    tampered(**changed)
    with pytest.raises(ResumeError, match="changed or damaged at line 1: multiply without resume to begin anew"):
        tw.multiply("a.npy", "b.npy", "c.npy", resume=True)
    Path("c.npy.tilewright/journal").write_bytes(before)
    assert len(asked_again()) == 11
    assert is_whole()


@pytest.mark.slow
def test_progress_counts_what_was_finished_before(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    tw.multiply("a.npy", "b.npy", "whole.npy", overwrite=True, progress=lambda *told: seen.append(told))
    assert seen[0] == (0, 2 * N**3)
    begin()
    again: list[tuple[int, int]] = []
    tw.multiply("a.npy", "b.npy", "c.npy", resume=True, progress=lambda *told: again.append(told))
    assert 0.2 < again[0][0] / again[0][1] < 0.4
    for told in (seen, again):
        assert told == sorted(told)
        assert told[-1] == (2 * N**3, 2 * N**3)


def test_a_job_tells_what_it_planned_and_measured(folder: Path) -> None:
    begin()
    with open_job("a.npy", "b.npy", "c.npy", Options(resume=True)) as taken_up:
        taken_up.run()
    told = json.loads(json.dumps(taken_up.as_dict(), allow_nan=False))
    assert told["measured"]["before"] == 5
    assert told["measured"]["finished"] == 11
    assert told["measured"]["read_bytes"] == told["plan"]["read_bytes"] == told["plan"]["in_bytes"]
    assert told["measured"]["written_bytes"] == told["plan"]["out_bytes"]


def test_an_unknown_partition_is_refused() -> None:
    with pytest.raises(UsageError, match="partition 'stripes': did you mean strips"):
        tw.multiply(np.ones((4, 4)), np.ones((4, 4)), partition="stripes")


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["rectangles", "strips"])
def test_several_places_share_the_product(rooms: Rooms, partition: str) -> None:
    rooms(8 << 20, count=3)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (3000, 1000)).astype(float), rng.integers(-9, 9, (1000, 3000)).astype(float)
    plan = tw.plan_multiply(a, b, partition=partition)
    assert len(plan.regions) == 3
    rows = [{tile.i for tile in part} for part in plan.regions]
    assert (partition == "strips") <= all(not x & y for x, y in itertools.combinations(rows, 2))
    np.testing.assert_array_equal(tw.multiply(a, b, partition=partition), a @ b)


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "memory", [1e9, np.int64(10**9), np.float32(2**30), "1e9", "1000000000", " 1 GB", "0.9313e0GiB"]
)
def test_a_whole_number_of_any_type_is_a_memory(memory: Any) -> None:
    assert 0.99e9 < parse_bytes("memory", memory) < 1.1e9
    a = np.eye(4)
    assert (tw.multiply(a, a, device="cpu", memory=memory) == a).all()


@pytest.mark.parametrize(
    "memory",
    [*(0, -1, 0.5, 1.5, float("nan"), float("inf"), -1e9, True, np.True_, [1], 1j, b"4GiB", np.ones(2), 10**400)]
    + ["", "0", "-4GiB", "4 potatoes", "1e400", "9" * 5000, "1e9e9", "half", "GiB"],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_memory_is_refused_with_what_is(memory: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^device_memory .*(above 0, or text such as '4GiB'|number of bytes such as)"
    ) as no:
        parse_bytes("device_memory", memory)
    assert "\n" not in str(no.value)
    assert len(str(no.value)) < 250


def test_progress_is_a_function() -> None:
    a = np.eye(4)
    for nonsense in (True, "yes", 3, [print]):
        with pytest.raises(
            UsageError, match=r"progress must be a function .*, got .*: pass for example lambda done, all: pri"
        ):
            tw.multiply(a, a, device="cpu", progress=nonsense)
    assert (tw.multiply(a, a, device="cpu", progress=False) == a).all()
    seen: list[Any] = []
    tw.multiply(a, a, device="cpu", progress=lambda done, all: seen.append((done, all)))
    assert seen[-1] == (128, 128)


# ---- dtypes ----------------------------------------------------------------------------------------------------------

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
ALL = ["bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install ml_dtypes")
    return dtype_of(name, "a")


def numbers(shape: tuple[int, int], name: str, seed: int) -> np.ndarray:
    """Integers of all sizes, so that sums of products wrap around."""
    rng, kind = np.random.default_rng(seed), dtype(name)
    if kind.kind == "b":
        return rng.random(shape) < 0.05
    if kind.kind in "iu":
        return rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
    parts = rng.uniform(-1, 1, (2, *shape))
    return (parts[0] + 1j * parts[1] if kind.kind == "c" else parts[0]).astype(kind)


def least_memory(a: Any, b: Any) -> int:
    """Bytes with which blocks of A, B and C are cut in every direction."""
    with pytest.raises(MemoryLimitError) as refused:
        tw.plan_multiply(a, b, device="cpu", memory=1)
    return int(re.findall(r"at least [^(]*\((\d+) bytes\)", str(refused.value))[0])


#: The others take minutes to compile.
FEW = ("float16", "float32", "int32", "complex64")


def marked(names: list[str], *few: str) -> list[Any]:
    return [name if name in few else pytest.param(name, marks=pytest.mark.further) for name in names]


@pytest.mark.parametrize("name", marked(ALL, *FEW))
def test_a_product_of_files_has_the_dtype_and_the_elements_of_matmul(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "LEAST_LIMIT", 1)
    a, b = numbers((130, 2500), name, 1), numbers((2500, 150), name, 2)
    for array, file in ((a, "a.raw"), (b, "b.raw")):
        array.tofile(file)
    files = [open_matrix(file, shape=x.shape, dtype=name) for x, file in ((a, "a.raw"), (b, "b.raw"))]
    memory = least_memory(*files)
    plan = tw.plan_multiply(*files, device="cpu", memory=memory)
    assert plan.grid.steps > 1
    tw.multiply(*files, "c.raw", device="cpu", memory=memory)
    for file in files:
        file.close()
    c = np.fromfile("c.raw", dtype(name)).reshape(130, 150)
    expected = tw.matmul(a, b)
    assert expected.dtype == dtype(name)
    if expected.dtype.kind in "biu":
        assert np.array_equal(c, expected)
        assert np.array_equal(c, a @ b), "and of NumPy"
        assert plan.error_bound == 0
        assert "error      none: products of" in str(plan)
    else:
        wide = "complex128" if expected.dtype.kind == "c" else "float64"
        magnitude = np.abs(a.astype(wide)) @ np.abs(b.astype(wide))
        exact = a.astype(wide) @ b.astype(wide)
        assert 0 < plan.error_bound < 0.01
        assert (np.abs(c.astype(wide) - exact) <= 1.01 * plan.error_bound * magnitude).all()
        # Much less than the bound of float16 sums: these are made in float32 and rounded once.
        assert np.abs(c.astype(wide) - exact).max() <= 40 * bounds.UNIT[name] * np.abs(exact).max()


@pytest.mark.parametrize("x", marked(ALL, "float16"))
def test_operands_of_two_dtypes_are_promoted_as_matmul_promotes_them(x: str) -> None:
    for y in ALL:
        a, b = numbers((9, 8), x, 1), numbers((8, 7), y, 2)
        try:
            expected = tw.matmul(a, b)
        except DTypeError as refused:
            with pytest.raises(DTypeError, match=re.escape(str(refused))):
                tw.multiply(a, b, device="cpu")
            continue
        c = tw.multiply(a, b, device="cpu")
        assert c.dtype == expected.dtype
        if c.dtype.kind in "biu":
            assert np.array_equal(c, expected)
        else:
            wide = "complex128" if c.dtype.kind == "c" else "float64"
            scale = np.abs(a.astype(wide)) @ np.abs(b.astype(wide))
            unit = 20 * bounds.UNIT[c.dtype.name]
            assert (np.abs(c.astype(wide) - expected.astype(wide)) <= unit * scale).all()


@pytest.mark.parametrize(
    ("x", "wanted", "made"),
    [
        *[
            ("int8", "int32", "int32"),
            ("int8", np.float32, "float32"),
            ("uint8", ">f8", "float64"),
            pytest.param("bool", int, "int64", marks=pytest.mark.further),
        ],
        *[("float64", "float32", "float32"), ("float32", "float16", "float16"), ("float32", "bfloat16", "bfloat16")],
        *[("float32", "complex64", "complex64"), ("complex128", complex, "complex128"), ("int32", "int8", "int8")],
    ],
)
def test_a_dtype_that_is_asked_for_is_that_of_the_product(x: str, wanted: Any, made: str) -> None:
    a, b = numbers((9, 80), x, 1), numbers((80, 7), x, 2)
    c = tw.multiply(a, b, device="cpu", dtype=wanted)
    assert (c.dtype, c.dtype.isnative) == (dtype(made), True)
    if c.dtype.kind in "iu":
        assert np.array_equal(c, a.astype(made) @ b.astype(made))
    else:
        wide = "complex128" if c.dtype.kind == "c" else "float64"
        exact = a.astype(wide) @ b.astype(wide)
        assert np.abs(c.astype(wide) - exact).max() <= 80 * bounds.UNIT[made] * np.abs(exact).max()


@pytest.mark.parametrize(
    ("x", "wanted", "words"),
    [
        (
            "complex64",
            "float32",
            "dtype float32: a has dtype complex64, which does not cast to it by the same_kind rule",
        ),
        ("float32", "int8", "dtype int8: a has dtype float32, which does not cast"),
        ("int8", "bool", "dtype bool: a has dtype int8, which does not cast"),
        *(
            ("float32", wanted, "is not a dtype: give one, or its name")
            for wanted in ("float99", "(" * 500, 5, [[]], {"names": 3})
        ),
        *(
            ("float32", wanted, "must be bool, int8, .*complex128 or bfloat16")
            for wanted in ("O", "U8", "f4,f4", "M8[s]", "float8_e5m2")
        ),
    ],
    ids=repr,
)
def test_a_dtype_that_a_product_cannot_have_is_refused_in_one_line(x: str, wanted: Any, words: str) -> None:
    a = numbers((3, 3), x, 1)
    for call in (tw.multiply, tw.plan_multiply):
        with pytest.raises(DTypeError, match=words) as refused:
            call(a, a, device="cpu", dtype=wanted)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400


def test_highest_sums_in_the_widest_dtype() -> None:
    for name, compute in (("float16", "float64"), ("int32", "int32"), ("bool", "float32")):
        a, b = numbers((9, 800), name, 1), numbers((800, 7), name, 2)
        plan = tw.plan_multiply(a, b, device="cpu", precision="highest")
        assert plan.compute == compute
        c = tw.multiply(a, b, device="cpu", precision="highest")
        wide = {"f": "float64", "c": "complex128"}.get(c.dtype.kind, name)
        assert np.array_equal(c, (a.astype(wide) @ b.astype(wide)).astype(name)), name


def test_a_number_as_precision_chooses_for_every_dtype() -> None:
    for name, limit, compute in (
        *[("complex64", 1e-3, "complex64"), ("complex64", 1e-7, "complex128"), ("float16", 1e-3, "float32")],
        *[("int16", 1e-30, "int16"), ("bool", 1e-30, "float32")],
    ):
        a, b = numbers((9, 800), name, 1), numbers((800, 7), name, 2)
        plan = tw.plan_multiply(a, b, device="cpu", precision=limit)
        assert (plan.compute, plan.error_bound <= limit) == (compute, True)
    with pytest.raises(UsageError, match=r"best bound for C of float16 is 0\.0004"):
        tw.plan_multiply(numbers((9, 800), "float16", 1), numbers((800, 7), "float16", 2), device="cpu", precision=1e-6)


def test_gpus_that_are_named_multiply_no_integers_and_no_complex_numbers() -> None:
    for name, hint in (("int8", "or dtype='float64'"), ("complex64", "give device='cpu'$")):
        a = numbers((9, 9), name, 1)
        with pytest.raises(DTypeError, match=rf"device 'cuda': GPUs multiply no blocks of {name}; .*{hint}"):
            tw.multiply(a, a, device="cuda")
        assert tw.plan_multiply(a, a).compute == name, "without a name they are multiplied on the CPU"


def test_an_out_of_another_dtype_receives_the_product_by_the_same_kind_rule() -> None:
    a, b = numbers((9, 80), "int8", 1), numbers((80, 7), "int8", 2)
    out = np.empty((9, 7), np.float64)
    assert (tw.multiply(a, b, out, device="cpu") == a @ b).all(), "wrapped around before it is converted, as in matmul"
    with pytest.raises(DTypeError, match="same_kind"):
        tw.multiply(a * 1j, b, out, device="cpu")


@pytest.mark.parametrize("name", ["c.npy", "c.h5", "c.zarr", "c.raw", "c.safetensors"])
@pytest.mark.parametrize("kind", ["complex64", "complex128", "int8", "bool", "float16", "bfloat16"])
def test_every_format_holds_every_dtype_or_says_which_does(name: str, kind: str, tmp_path: Path) -> None:
    module = {"c.h5": "h5py", "c.zarr": "zarr"}.get(name)
    if module is not None:
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'tilewright[files]'")
    a, out = numbers((40, 30), kind, 1), str(tmp_path / name)
    unit = np.eye(30).astype(dtype(kind))
    if (name, kind) == ("c.safetensors", "complex128"):
        with pytest.raises(
            DTypeError, match="safetensors has no complex128: write it with dtype='complex64', or to anoth"
        ):
            tw.multiply(a, unit, out, device="cpu")
        return
    if kind == "bfloat16" and name in ("c.npy", "c.h5", "c.zarr"):
        with pytest.raises(
            DTypeError, match=r"has no bfloat16: write it with dtype='float32' \(--dtype float32\), or to"
        ):
            tw.multiply(a, unit, out, device="cpu")
        assert not list(tmp_path.iterdir())
        return
    tw.multiply(a, unit, out, device="cpu")
    with contextlib.closing(open_matrix(out, shape=(40, 30), dtype=kind)) as c:
        assert c.dtype == a.dtype
        assert np.array_equal(whole_matrix(c), a)
        assert np.array_equal(tw.multiply(c, unit, device="cpu"), a)
    tw.multiply(a, unit, out, device="cpu", resume=True)
