"""What survives: journals that are torn, damaged or somebody else's, and processes that die at any moment."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.errors import FileError, ResumeError
from tilewright.large.streaming.plan.cuts import Room, cuts, may_be_cut
from tilewright.large.streaming.plan.grid import Grid, Tile
from tilewright.large.streaming.run import journal
from tilewright.large.streaming.run.journal import _BEGINS, BegunProduct, Journal, _digest, _signed, read_journal

SOURCE = Path(tilewright.__file__).parent.parent
SHAPE, ROOM = (600, 600, 600), Room(1 << 20)
GRID = Grid(*SHAPE, 256, 256, 256)
FACTS = {"a": "1", "b": "2"}


def written(path: Path, *tiles: Tile) -> bytes:
    begun = Journal(path)
    begun.begin(GRID, FACTS, 7)
    for tile in tiles:
        begun.add(tile)
    begun.close()
    return path.read_bytes()


def signed(*lines: Any) -> bytes:
    """A journal that says anything, with the right digests; text is taken as it is."""
    data, digest = b"", b""
    for line in lines:
        if isinstance(line, bytes):
            digest = _digest(line[:-1], digest)
            data += line[:-1] + b', "digest": "%s"}\n' % digest.hex().encode()
        else:
            text, digest = _signed(line, digest)
            data += text
    return data


def head(**changed: Any) -> dict[str, Any]:
    line = json.loads(signed({"journal": "multiply", "schema": 2, "run": "0"}))
    del line["digest"]
    grid = {name: getattr(GRID, name) for name in ("m", "n", "k", "bm", "bn", "bk", "kc")}
    return line | {"facts": FACTS, "grid": grid, "inode": 7} | changed


def cut(**changed: Any) -> dict[str, Any]:
    return head(grid=head()["grid"] | changed)


def refused(path: Path, data: bytes) -> str:
    """The one line by which a journal is refused, read and checked."""
    path.write_bytes(data)
    with pytest.raises(ResumeError) as caught:
        accepted(path, data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def accepted(path: Path, data: bytes) -> BegunProduct | None:
    path.write_bytes(data)
    begun = read_journal(path)
    if begun is not None:
        begun.check(FACTS, SHAPE, ROOM, path)
    return begun


def test_a_journal_tells_what_was_begun_and_finished(tmp_path: Path) -> None:
    written(tmp_path / "j", Tile(0, 1), Tile(2, 2))
    begun = read_journal(tmp_path / "j")
    assert begun is not None
    assert (begun.grid, begun.facts, begun.inode) == (GRID, FACTS, 7)
    assert begun.finished == {Tile(0, 1), Tile(2, 2)}
    assert not begun.complete
    begun.check(FACTS, SHAPE, ROOM, tmp_path / "j")


@settings(max_examples=40)
@given(st.data())
def test_of_a_torn_journal_only_whole_lines_count(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "j"
    whole = written(path, Tile(0, 0), Tile(1, 1), Tile(2, 2))
    kept = data.draw(st.integers(0, len(whole)))
    garbage = [b'{"tile": [1', b"\xff\xfe", b"x" * 500] if kept > len(_BEGINS) + 8 else []
    torn = whole[:kept] + data.draw(st.sampled_from([b"", b"\0" * 20, *garbage]))
    begun = accepted(path, torn)
    lines = whole[:kept].count(b"\n")
    if not lines:
        assert begun is None
        return
    assert begun is not None
    assert begun.finished == {Tile(x, x) for x in range(lines - 1)}
    taken_up = Journal(path)
    taken_up.take_up(begun)  # without whatever was torn
    taken_up.add(Tile(0, 2))
    taken_up.close()
    again = read_journal(path)
    assert again is not None
    assert again.finished == begun.finished | {Tile(0, 2)}


@pytest.mark.parametrize(
    "line",
    [
        *(b"null}", b"5}", b"[]}", b"{}", b"{1}", b'{"tile": [0, 1}', b'{"tile": [1e400, 0]}', b'{"tile": [0, NaN]}'),
        *({"tile": [0]}, {"tile": [3, 0]}, {"tile": ["0", 0]}, {"tile": [-1, 0]}, {"tile": [0, 1, 2]}, {"tile": None}),
        *({"tile": [1, 0]}, {"tile": [10**4000, 0]}, {"tile": [0.0, 1.0]}, {"tiles": [0, 0]}, head()),
        *(b'{"tile": ' + b"[" * 30_000 + b"}", b'{"tile": \xff\xfe}', b'{"tile": [' + b"9" * 5000 + b", 0]}"),
    ],
    ids=lambda line: str(line)[:30],
)
def test_a_line_that_names_no_tile_or_one_twice_is_refused(tmp_path: Path, line: Any) -> None:
    """Also where its digest is right."""
    assert accepted(tmp_path / "j", signed(head(), {"tile": [1, 0]}, {"tile": [2, 0]}))
    assert "changed or damaged at line 3" in refused(
        tmp_path / "j", signed(head(), {"tile": [1, 0]}, line, {"tile": [2, 0]})
    )


def tampered(lines: list[bytes]) -> dict[str, list[bytes]]:
    first, second = lines[1].replace(b"[0, 0]", b"[0, 2]"), lines[2].replace(b"1, 1", b"1, 2")
    return {
        "a field of the header": [lines[0].replace(b'"m": 600', b'"m": 512'), *lines[1:]],
        "a fact": [lines[0].replace(b'"a": "1"', b'"a": "3"'), *lines[1:]],
        "the inode": [lines[0].replace(b'"inode": 7', b'"inode": 8'), *lines[1:]],
        "a tile": [lines[0], first, *lines[2:]],
        "another tile": [*lines[:2], second, *lines[3:]],
        "two lines change places": [lines[0], lines[2], lines[1], *lines[3:]],
        "a line twice": [*lines[:2], lines[1], *lines[2:]],
        "a line is missing": [lines[0], *lines[2:]],
        "an empty line": [lines[0], b"\n", *lines[1:]],
        "a header again": [lines[0], *lines],
        "a line break": [lines[0], lines[1].replace(b"\n", b"\r\n"), *lines[2:]],
        "a digest in capitals": [lines[0], lines[1].upper(), *lines[2:]],
        "a field twice": [lines[0], lines[1].replace(b"{", b'{"tile": [0, 0], '), *lines[2:]],
    }


def test_what_was_tampered_with_is_found(tmp_path: Path) -> None:
    path = tmp_path / "j"
    lines = written(path, Tile(0, 0), Tile(1, 1), Tile(2, 2)).splitlines(keepends=True)
    other = written(tmp_path / "o", Tile(0, 0), Tile(1, 1), Tile(2, 2)).splitlines(keepends=True)
    for what, data in tampered(lines).items():
        assert data != lines, what
        assert "changed or damaged at line" in refused(path, b"".join(data)), what
    assert "line 2" in refused(path, b"".join([lines[0], *other[1:]])), "a tile of another run of the same product"
    assert "line 1" in refused(path, b"".join([other[0][:-3], *lines[1:]]))


def test_without_digests_it_would_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = written(tmp_path / "j", Tile(0, 0), Tile(1, 1), Tile(2, 2)).splitlines(keepends=True)
    monkeypatch.setattr(journal, "_checked", lambda line, _: (json.loads(line), b""))
    begun = accepted(tmp_path / "j", b"".join(tampered(lines)["a tile"]))
    assert begun is not None
    assert Tile(0, 2) in begun.finished


NUMBERS = [-1, 0, 1.0, True, None, "600", [600], 1 << 62, 10**4000, float("nan"), float("inf")]


@pytest.mark.parametrize("name", ["m", "n", "k", "bm", "bn", "bk", "kc"])
def test_no_number_of_a_header_is_trusted(tmp_path: Path, name: str) -> None:
    """Also where its digest is right: another product, tiles that no plan has, and what is no number."""
    for value in [*NUMBERS, 1, 16, 100, 599, 601, 1 << 40]:
        if type(value) is not int or value != getattr(GRID, name):
            words = refused(tmp_path / "j", signed(cut(**{name: value}), {"tile": [0, 0]}))
            assert "multiply without resume" in words, value


@pytest.mark.parametrize(
    "line",
    [
        *(head(grid=value) for value in (None, [], {}, {"m": 600}, head()["grid"] | {"more": 1}, [600] * 7)),
        *(head(facts=value) for value in (None, [], "a", {"a": 1, "b": 2}, {"a": None}, {"a": ["1"], "b": "2"})),
        *(head(inode=value) for value in (None, 1.5, "7", [7])),
        *(head(schema=value) for value in (None, "2", 2.5)),
        *(head(facts=FACTS | {"c": "3"}), head(facts={"a": "1"}), head(facts=FACTS | {"b": "3"})),
        {key: value for key, value in head().items() if key != "facts"},
        {"journal": "multiply", "schema": 2},
    ],
    ids=lambda line: str(line)[-70:],
)
def test_no_header_of_another_product_is_taken(tmp_path: Path, line: Any) -> None:
    assert "multiply without resume" in refused(tmp_path / "j", signed(line, {"tile": [0, 0]}))


def test_a_cut_that_no_plan_makes_is_refused(tmp_path: Path) -> None:
    """On a kernel that sums in parts, a step that is not whole parts would change the bits."""
    for grid, room, sound in (
        (Grid(1000, 1000, 1030, 256, 256, 344, 512), Room(0, kc=512), True),
        (Grid(1000, 1000, 1030, 256, 1000, 687, 512), Room(0, kc=512), True),
        (Grid(1000, 1000, 1030, 256, 256, 512, 512), Room(0, kc=512), False),
        (Grid(1000, 1000, 1030, 256, 256, 344, 512), Room(0, kc=384), False),
        (Grid(1000, 1000, 1030, 250, 256, 344, 512), Room(0, kc=512), False),
        (Grid(1000, 1000, 1030, 32, 64, 344, 512), Room(0, kc=512), False),
        (Grid(0, 5, 0, 1, 5, 1), Room(0), True),
    ):
        assert may_be_cut(grid, room) == sound, grid


@settings(max_examples=60)
@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000), st.sampled_from([1, 48, 384, 512]))
def test_every_cut_of_a_plan_is_taken(m: int, n: int, k: int, kc: int) -> None:
    for room in (Room(0, kc=kc), Room(0, grain=256)):
        assert all(may_be_cut(grid, room) for grid in cuts(m, n, k, room))


@pytest.mark.parametrize("data", [b"garbage\n", b"\n", b"{}", b'{"tile": [0, 0]}\n', b"\x93NUMPY\x01\x00", b"\xff" * 9])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, data: bytes) -> None:
    assert "is no journal of Tilewright: move it away" in refused(tmp_path / "j", data)


def test_what_is_no_file_is_no_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ResumeError, match="is no journal of Tilewright"):
            read_journal(tmp_path / name)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, _BEGINS[:9], _BEGINS[:9] + b"\0\0", signed(head())[:-1]])
def test_a_journal_without_a_whole_line_says_nothing(tmp_path: Path, data: bytes) -> None:
    assert accepted(tmp_path / "j", data) is None


@pytest.mark.parametrize(
    "data",
    [
        signed(head(schema=3), {"tile": [0, 0]}),
        signed(head(schema=1)),
        b'\n{"schema": 1, "facts": {"a": "1"}, "grid": {"m": 600}, "inode": 7}\n\n{"tile": [0, 0]}\n',
        _BEGINS + b"99, ",
    ],
)
def test_a_journal_of_another_version_is_refused(tmp_path: Path, data: bytes) -> None:
    assert "another version of Tilewright: multiply without resume" in refused(tmp_path / "j", data)


@pytest.mark.parametrize("kind", ["one line", "zeros", "lines"])
def test_little_of_a_huge_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / "j"
    path.write_bytes(signed(head()) + {"one line": b'{"tile": ', "zeros": b"", "lines": b"\n"}[kind])
    os.truncate(path, 1 << 30)  # without blocks on the disk
    nbytes = bytes_read(monkeypatch)
    tracemalloc.start()
    with pytest.raises(ResumeError, match="damaged at line 2"):
        read_journal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert sum(nbytes) < 1 << 20


def test_a_right_journal_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    written(path)
    nbytes = bytes_read(monkeypatch)
    read_journal(path)
    assert sum(nbytes) >= path.stat().st_size


def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each access to a journal that is read from now on."""
    counts: list[int] = []

    class CountedFile(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            counts.append(super().readinto(buffer))
            return counts[-1]

    monkeypatch.setattr(os, "fdopen", lambda handle, mode: io.BufferedReader(CountedFile(handle, mode)))
    return counts


def test_what_changed_is_named(tmp_path: Path) -> None:
    written(tmp_path / "j")
    begun = read_journal(tmp_path / "j")
    assert begun is not None
    with pytest.raises(ResumeError, match=r"j: b changed .*without resume"):
        begun.check(FACTS | {"b": "3"}, SHAPE, ROOM, tmp_path / "j")


def test_two_processes_cannot_write_one_result(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    with pytest.raises(FileError, match="another process"):
        Journal(tmp_path / "j")
    first.close()
    Journal(tmp_path / "j").close()
    assert not (tmp_path / "j").exists(), "an empty journal is none"


def test_a_journal_that_was_removed_takes_no_other_with_it(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    first.remove()
    second = Journal(tmp_path / "j")
    first.close()
    second.begin(GRID, FACTS, 7)
    second.close()
    assert read_journal(tmp_path / "j") is not None


# ---- processes that die ----------------------------------------------------------------------------------------------

#: Multiplies in children of its own, which begin at once because all is compiled here; says what became of each.
DYING = """
import functools, itertools, json, os, pathlib, random, shutil, signal, sys, threading
import numpy as np
from tilewright.large.files import plain
from tilewright.large.streaming.places import places
from tilewright.large import multiply as large
from tilewright.large.streaming.run import job
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.run.journal import Journal
from tilewright.large.streaming.plan.stream import Room

choice = places.choose_adding_cpu("float32")
places.host_rates = lambda *_: Rates(1e11, 1e10, 1e9)
job.place_product = lambda *_: places.Placement(choice, Room(1_600_000), 2, 1 << 30)
remove = Journal.remove

def kept(self):
    shutil.copy(self.path, "last.journal") if self.path.stat().st_size else None
    remove(self)

Journal.remove = kept

def work(resume):
    large.multiply("a.npy", "b.npy", "c.npy", resume=resume)

def child(function, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            function(*arguments)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return pid

def waited(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def dying(owner, name, number, after):
    "Let this process end at that call of a method, before or after its work."
    method, calls = getattr(owner, name), []
    @functools.wraps(method)
    def call(*arguments, **more):
        calls.append(1)
        if len(calls) == number and not after:
            os._exit(9)
        result = method(*arguments, **more)
        if len(calls) == number:
            os._exit(9)
        return result
    setattr(owner, name, call)

def lines():
    path = pathlib.Path("c.npy.tilewright/journal")
    return path.read_text() if path.exists() else ""
"""

KILLS = """
def counted(resume, last):
    "Kill this process at that call or return of a Python or C function, in whichever thread; say how many there were."
    events = itertools.count(1)
    def count(frame, event, argument):
        if next(events) == last:
            os.kill(os.getpid(), signal.SIGKILL)
    threading.setprofile(count)
    sys.setprofile(count)
    work(resume)
    sys.setprofile(None)
    pathlib.Path("events").write_text(str(next(events)))

work(False)
os.replace("c.npy", "whole.npy")
assert waited(child(counted, False, 0)) == 0
events = int(pathlib.Path("events").read_text())
os.remove("c.npy")
rng, kills, products = random.Random(1), 0, []
while kills < int(sys.argv[1]):
    if waited(child(counted, True, rng.randrange(1, events * 6 // 10))) == -signal.SIGKILL:
        kills += 1
    if os.path.exists("c.npy") and not lines():
        products.append(pathlib.Path("last.journal").read_text())
        same = open("c.npy", "rb").read() == open("whole.npy", "rb").read()
        os.remove("c.npy")
        assert same
assert waited(child(work, True)) == 0
products.append(pathlib.Path("last.journal").read_text())
assert open("c.npy", "rb").read() == open("whole.npy", "rb").read()
print(json.dumps({"events": events, "products": products}))
"""

AT_A_CALL = """
def one(resume, point):
    owner, name, number, after = point
    dying({"Journal": Journal, "PlainSink": plain.PlainSink, "job": job, "os": os}[owner], name, number, after)
    work(resume)

work(False)
os.replace("c.npy", "whole.npy")
points = json.loads(sys.argv[1])
for point in points:
    for resume in (False, True):
        assert waited(child(one, False, ["Journal", "add", 4, True])) == 9
        died = waited(child(one, resume, point))
        assert died == 9 or (died == 0 and resume and point[1] in ("clear", "begin")), (point, resume, died)
        assert waited(child(work, True)) == 0, (point, resume)
        assert open("c.npy", "rb").read() == open("whole.npy", "rb").read(), (point, resume)
        assert not os.path.exists("c.npy.tilewright"), (point, resume)
        tiles = [line for line in pathlib.Path("last.journal").read_text().splitlines() if "tile" in line]
        assert len(tiles) == len(set(tiles)), (point, resume, "a finished tile was computed again")
        os.remove("c.npy")
"""


def in_a_process(script: str, folder: Path, argument: str) -> str:
    rng = np.random.default_rng(0)
    for name in "ab":
        np.save(folder / f"{name}.npy", rng.uniform(-1, 1, (1000, 1000)).astype(np.float32))
    command = [sys.executable, "-W", "ignore", "-c", DYING + script, argument]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_kills_change_no_bit_and_repeat_no_tile(tmp_path: Path) -> None:
    """Ten, at calls that a seeded generator chooses; ``benchmarks/kills.py`` kills at random moments and at system calls."""
    told = json.loads(in_a_process(KILLS, tmp_path, "10"))
    assert told["events"] > 1000
    assert told["products"]
    for text in told["products"]:
        tiles = Counter(line for line in text.splitlines() if "tile" in line)
        assert len(tiles) == 16
        assert set(tiles.values()) == {1}, "a finished tile was computed again"


@pytest.mark.slow
def test_death_at_every_step_of_a_run_is_survived(tmp_path: Path) -> None:
    """Also of a run that begins anew where another was interrupted: what that had finished counts no more."""
    points = [
        *(("Journal", name, 1, after) for name in ("clear", "begin") for after in (False, True)),
        *(("PlainSink", name, 2, after) for name in ("write", "flush") for after in (False, True)),
        *(("job", "create_matrix", 1, after) for after in (False, True)),
        *(("PlainSink", "finish", 1, after) for after in (False, True)),
        ("Journal", "add", 2, False),
        ("Journal", "remove", 1, False),
    ]
    in_a_process(AT_A_CALL, tmp_path, json.dumps(points))
