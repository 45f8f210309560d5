"""What survives: journals that are torn, damaged or somebody else's, and processes that die at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.errors import FileError, ResumeError
from tilewright.schedule.grid import Grid, Tile
from tilewright.schedule.journal import Journal, read_journal

SOURCE = Path(tilewright.__file__).parent.parent
GRID = Grid(600, 600, 600, 256, 256, 256)
FACTS = {"a": "1", "b": "2"}


def written(path: Path, *tiles: Tile) -> bytes:
    journal = Journal(path)
    journal.begin(GRID, FACTS, 7)
    for tile in tiles:
        journal.add(tile)
    journal.close()
    return path.read_bytes()


def test_a_journal_tells_what_was_begun_and_finished(tmp_path: Path) -> None:
    written(tmp_path / "j", Tile(0, 1), Tile(2, 2))
    begun = read_journal(tmp_path / "j")
    assert begun is not None
    assert (begun.grid, begun.facts, begun.inode) == (GRID, FACTS, 7)
    assert begun.finished == {Tile(0, 1), Tile(2, 2)}
    assert not begun.complete


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_of_a_torn_journal_only_whole_lines_count(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "j"
    whole = written(path, Tile(0, 0), Tile(1, 1), Tile(2, 2))
    kept = data.draw(st.integers(0, len(whole)))
    torn = whole[:kept] + data.draw(st.sampled_from([b"", b"\0" * 20, b'{"tile": [1', b"\xff\xfe"]))
    path.write_bytes(torn)
    begun = read_journal(path)
    lines = [line for line in whole.split(b"\n") if line and line in torn.split(b"\n")]
    if not lines:
        assert begun is None
        return
    assert begun is not None
    assert begun.finished == {Tile(*json.loads(line)["tile"]) for line in lines[1:]}
    journal = Journal(path)
    journal.add(Tile(0, 2))  # after whatever was torn
    journal.close()
    again = read_journal(path)
    assert again is not None
    assert again.finished == begun.finished | {Tile(0, 2)}


@pytest.mark.parametrize(
    "line", [b"null", b"5", b"[]", b'{"tile": [0]}', b'{"tile": [9, 0]}', b'{"tile": ["0", 0]}', b'{"tile": [-1, 0]}']
)
def test_lines_that_name_no_tile_are_none(tmp_path: Path, line: bytes) -> None:
    whole = written(tmp_path / "j", Tile(1, 0))
    (tmp_path / "j").write_bytes(whole + line + b"\n")
    begun = read_journal(tmp_path / "j")
    assert begun is not None
    assert begun.finished == {Tile(1, 0)}


@pytest.mark.parametrize("head", [b"", b"\n", b"garbage\n", b'{"tile": [0, 0]}\n', b'{"grid": {}, "schema": 1}\n'])
def test_a_journal_without_its_head_says_nothing(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "j").write_bytes(head + b'{"tile": [0, 0]}\n')
    assert read_journal(tmp_path / "j") is None


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(written(tmp_path / "j").replace(b'"schema": 1', b'"schema": 99'))
    with pytest.raises(ResumeError, match="another version"):
        read_journal(tmp_path / "j")


def test_what_changed_is_named(tmp_path: Path) -> None:
    written(tmp_path / "j")
    begun = read_journal(tmp_path / "j")
    assert begun is not None
    begun.check(FACTS, tmp_path / "j")
    with pytest.raises(ResumeError, match=r"j: b changed .*without resume"):
        begun.check(FACTS | {"b": "3"}, tmp_path / "j")


def test_two_processes_cannot_write_one_result(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    with pytest.raises(FileError, match="another process"):
        Journal(tmp_path / "j")
    first.close()
    Journal(tmp_path / "j").close()
    assert not (tmp_path / "j").exists(), "an empty journal is none"


# ---- processes that die ----------------------------------------------------------------------------------------------

#: Multiplies in children of its own, which begin at once because all is compiled here; says what became of each.
DYING = """
import functools, json, os, pathlib, random, shutil, signal, sys, time
import numpy as np
from tilewright.files import plain
from tilewright.kernels import catalog
from tilewright.schedule import job, multiply, places
from tilewright.schedule.cost import Rates
from tilewright.schedule.journal import Journal
from tilewright.schedule.stream import Room

kernel = places.adding_kernel("float32")
places.host_rates = lambda *_: Rates(1e11, 1e10, 1e9)
multiply.choose_place = lambda *_: places.Choice(kernel, Room(1_600_000), 2, 1 << 30)
remove = Journal.remove

def kept(self):
    shutil.copy(self.path, "last.journal") if self.path.stat().st_size else None
    remove(self)

Journal.remove = kept

def work(resume):
    multiply.multiply("a.npy", "b.npy", "c.npy", resume=resume)

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

RANDOM_KILLS = """
work(False)
os.replace("c.npy", "whole.npy")
begun = time.perf_counter()
assert waited(child(work, False)) == 0
seconds = time.perf_counter() - begun
os.remove("c.npy")
rng, kills, products = random.Random(int(sys.argv[1])), 0, []
while kills < 20:
    pid = child(work, True)
    time.sleep(rng.uniform(0, seconds * 0.6))
    os.kill(pid, signal.SIGKILL)
    if waited(pid) == -signal.SIGKILL:
        kills += 1
    if os.path.exists("c.npy") and not lines():
        products.append(pathlib.Path("last.journal").read_text())
        same = open("c.npy", "rb").read() == open("whole.npy", "rb").read()
        os.remove("c.npy")
        assert same
assert waited(child(work, True)) == 0
products.append(pathlib.Path("last.journal").read_text())
assert open("c.npy", "rb").read() == open("whole.npy", "rb").read()
print(json.dumps({"seconds": seconds, "products": products}))
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


def test_twenty_kills_at_random_moments_change_no_bit_and_repeat_no_tile(tmp_path: Path) -> None:
    seed = np.random.default_rng().integers(1 << 30)
    print("seed", seed)
    told = json.loads(in_a_process(RANDOM_KILLS, tmp_path, str(seed)))
    assert told["products"]
    for text in told["products"]:
        tiles = Counter(line for line in text.splitlines() if "tile" in line)
        assert len(tiles) == 16
        assert set(tiles.values()) == {1}, "a finished tile was computed again"


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
