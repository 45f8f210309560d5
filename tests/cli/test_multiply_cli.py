"""``tilewright multiply`` as a person meets it: plan, progress, records, interruption; and the memory that it takes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.command_line import COMMAND, Answer, environment, is_one_line, started
from tilewright.host.machine import machine
from tilewright.large.streaming.run.job import Job
from tilewright.large.streaming.run.journal import Journal

N = 900


@pytest.fixture
def typed(cli, tmp_path: Path):
    """Runs ``tilewright multiply`` on the CPU, where a.npy and b.npy lie."""
    rng = np.random.default_rng(1)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.uniform(-1, 1, (N, N)).astype(np.float32))

    def call(*arguments: str) -> Answer:
        return cli("multiply", *arguments, "--device", "cpu")

    return call


def is_the_product(path: str) -> bool:
    return bool(np.abs(np.load(path) - np.load("a.npy").astype(np.float64) @ np.load("b.npy")).max() < 1e-3)


@pytest.mark.slow
def test_it_says_the_plan_and_what_became_of_it(typed) -> None:
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--memory", "64MiB", "--json", "r.json", "--timeline", "t.jsonl")
    assert (answer.code, answer.err) == (0, "")
    assert is_the_product("c.npy")
    for word in ("in blocks", "predicted", "c.npy: (900, 900) float32", "GFLOPS", "written 3.1 MiB"):
        assert word in answer.out
    assert all(len(line.rstrip()) <= 80 for line in answer.out.splitlines())
    record = json.loads(Path("r.json").read_text())
    assert (record["kind"], record["schema"], record["m"], record["device"]) == ("multiply", 1, N, ["cpu"])
    assert record["measured"]["gflops"] > 0 < record["plan"]["total_s"]
    assert record["environment"]["command"].startswith("tilewright multiply a.npy b.npy")
    head, *events = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert (head["kind"], head["predicted"]) == ("timeline", False)
    assert {event["track"] for event in events} == {"copy in", "compute", "copy out"}
    assert all(list(event) == ["place", "track", "name", "start_s", "end_s"] for event in events)
    assert all(0 <= event["start_s"] <= event["end_s"] for event in events)


def test_a_dry_run_writes_nothing(typed, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--dry-run")
    assert answer.code == 0
    assert "predicted" in answer.out
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_a_record_on_standard_output_is_alone_there(typed) -> None:
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--json", "-")
    assert json.loads(answer.out)["kind"] == "multiply"
    assert "in blocks" in answer.err


@pytest.mark.slow
def test_raw_files_are_named_with_what_they_hold(typed) -> None:
    np.load("a.npy").astype(np.float64).tofile("a.raw")
    answer = typed(f"a.raw:{N}x{N}:float64", "b.npy", "-o", "c.npy", "--dtype", "float32", "--threads", "1")
    assert answer.code == 0
    assert is_the_product("c.npy")
    assert np.load("c.npy").dtype == np.float32


@pytest.mark.slow
def test_a_number_as_precision_chooses_and_the_plan_says_what(typed) -> None:
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--precision", "1e-7", "--json", "r.json")
    text = " ".join(answer.out.split())
    assert np.load("c.npy").dtype == np.float32
    record = json.loads(Path("r.json").read_text())
    sums = -(-N // record["plan"]["grid"]["kc"])  # the machine's caches determine how far the kernel sums
    cut = f" in {sums} sums of {-(-N // sums)} of k" if sums > 1 else ""
    assert f"at most 6e-08·|A||B|: float64{cut}, rounded to float32 (highest)" in text
    assert (record["dtype"], record["compute"]) == ("float32", "float64")
    assert 2**-24 < record["error_bound"] < 1e-7
    assert typed("a.npy", "b.npy", "-o", "c.npy", "--precision", "ieee", "--dry-run", "--overwrite").code == 0


@pytest.mark.slow
def test_a_product_is_verified_and_a_corrupted_file_is_not(typed, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--verify", "--json", "r.json")
    assert answer.code == 0
    assert "verified" in answer.out
    known = json.loads(Path("r.json").read_text())["verification"]
    assert known["ok"]
    assert 0 < known["error"] < known["bound"]
    run = Job.run

    def run_and_damage(job: Job, *arguments) -> None:
        run(job, *arguments)
        c = np.load("c.npy", mmap_mode="r+")
        c[800, 7] += 0.1  # the bound is 0.012 there
        c.flush()

    monkeypatch.setattr(Job, "run", run_and_damage)
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--verify", "--json", "r.json", "--overwrite")
    assert answer.code == 1
    assert is_one_line(answer, "c.npy: wrong: ", "at C[800, 7]")
    assert json.loads(Path("r.json").read_text())["verification"]["where"] == [800, 7]
    answer = typed("a.npy", "b.npy", "-o", "a.npy", "--verify", "--overwrite")
    assert (answer.code, is_one_line(answer, "out replaces that file")) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a.raw", "b.npy"), ("a.raw:ROWSxCOLUMNS:DTYPE",)),
        (("a.raw:9x9:float99", "b.npy"), ("float99",)),
        (("x.npy", "b.npy"), ("x.npy", "does not exist")),
        (("a.npy", "b.npy", "--memory", "4 potatoes"), ("memory '4 potatoes'", "4GiB")),
        (("a.npy", "b.npy", "--dtype", "int8"), ("dtype int8: a has dtype float32", "same_kind")),
        (("a.npy", "b.npy", "--threads", "0"), ("threads", "got 0")),
        (("a.npy", "b.npy", "--device-memory", "1GB"), ("device_memory", "GPU")),
        (("a.npy", "b.npy", "--precision", "tf32"), ("precision 'tf32'", "highest", "or a number such as 1e-4")),
        (("a.npy", "b.npy", "--precision", "1e-12"), ("precision 1e-12", "k = 900", "6e-08")),
        (("a.npy", "b.npy", "--precision", "-1"), ("precision -1.0", "a positive number")),
        (("a.npy", "b.npy", "--json", "a.npy"), ("a.npy is read by this command",)),
        (("a.raw:9x9:float32", "b.npy", "--json", "a.raw"), ("a.raw is read by this command",)),
        (("a.npz", "b.npy"), ("a.npz has the suffix .npz", "np.save('a.npy', np.load('a.npz')['NAME'])")),
        (("a.npy:float99", "b.npy"), ("a.npy: 'float99' is not a dtype",)),
        (("a.npy", "b.npy", "--timeline", "c.npy"), ("c.npy is the file of timeline too",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_mistakes_are_one_line_and_write_nothing(typed, tmp_path: Path, arguments, words) -> None:
    Path("a.raw").write_bytes(b"\0" * 81 * 4)
    before = sorted(tmp_path.iterdir())
    answer = typed(*arguments, "-o", "c.npy")
    assert answer.code == 2
    assert is_one_line(answer, *words)
    assert sorted(tmp_path.iterdir()) == before


def test_bfloat16_is_named_on_the_command_line(typed) -> None:
    """NumPy has no such dtype, and writes none to a header."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install ml_dtypes")
    w = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
    np.save("w.npy", w)
    w.tofile("w.raw")
    np.save("one.npy", np.eye(4, dtype=np.float32))
    for name, out in (("w.npy:bfloat16", "c.npy"), ("w.raw:3x4:bfloat16", "d.npy"), ("./w.npy:bfloat16", "e.npy")):
        assert typed(name, "one.npy", "-o", out).code == 0
        assert np.load(out).tolist() == np.arange(12.0).reshape(3, 4).tolist()
    answer = typed("w.npy", "one.npy", "-o", "f.npy")
    assert (answer.code, is_one_line(answer, "w.npy has dtype |V2", "name it w.npy:bfloat16")) == (2, True)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_resume_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.integers(-4, 5, (3072, 3072), np.int8).astype(np.float32))
    arguments = ["multiply", "a.npy", "b.npy", "-o", "c.npy", "--device", "cpu", "--memory", "36MiB"]
    arguments += ["--threads", "1"]  # so that many cores do not end before the interrupt
    process = started(*arguments, cwd=tmp_path)
    journal = tmp_path / "c.npy.tilewright" / "journal"
    while not (journal.exists() and journal.read_bytes().count(b"tile") >= 3):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "tiles are finished and kept; --resume continues" in err
    assert "Traceback" not in err
    finished = int(err.split("interrupted: ")[1].split()[0])
    assert journal.read_bytes().count(b"tile") == finished >= 3
    looked, _ = started(*arguments, "--dry-run", cwd=tmp_path).communicate(timeout=60)
    assert looked.startswith(f"{finished} finished tiles of an interrupted run would be discarded: --resume")
    again = started(*arguments, "--resume", cwd=tmp_path)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert f"resume: {finished} of" in out
    assert f"{finished} of them by an earlier run" in out
    a, b, c = (np.load(tmp_path / f"{name}.npy") for name in "abc")
    assert np.array_equal(c, a @ b), "whole numbers: every order of summation gives the same bits"


@pytest.mark.slow
def test_resume_leaves_a_complete_result_as_it_is(typed) -> None:
    asked = ("a.npy", "b.npy", "-o", "c.npy", "--resume", "--json", "r.json", "--timeline", "t.jsonl")
    answer = typed(*asked)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("resume: there is no unfinished c.npy to continue; it is begun anew\n")
    assert not json.loads(Path("r.json").read_text())["already_complete"]
    made = Path("c.npy").stat()
    for more in ((), ("--memory", "64MiB"), ("--threads", "1"), ("--dry-run",)):
        again = typed(*asked, *more)
        assert (again.code, again.err) == (0, "")
        assert again.out == "resume: c.npy is complete, and was made from this A and B: nothing is left to do\n"
        assert (Path("c.npy").stat().st_ino, Path("c.npy").stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
        record = json.loads(Path("r.json").read_text())
        assert record["already_complete"]
        assert record["measured"]["finished"] == record["measured"]["read_bytes"] == 0


def test_resume_replaces_no_other_result(typed) -> None:
    np.save("c.npy", np.zeros((N, N), np.float32))
    before = Path("c.npy").read_bytes()
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--resume")
    assert answer.code == 2
    assert is_one_line(answer, "c.npy is there and complete, but what it was made from is not known", "--overwrite")
    np.save("a.npy", np.zeros((N - 1, N), np.float32))
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--resume")
    assert answer.code == 2
    assert is_one_line(answer, f"c.npy is there, but is not ({N - 1}, {N}) float32, as this product is")
    assert Path("c.npy").read_bytes() == before
    assert typed("a.npy", "b.npy", "-o", "c.npy", "--overwrite").code == 0
    os.utime("b.npy")
    answer = typed("a.npy", "b.npy", "-o", "c.npy", "--resume")
    assert answer.code == 2
    assert is_one_line(answer, "c.npy is complete, but b changed since it was made")


def test_a_tampered_journal_is_refused_in_one_line(typed) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "remove", interrupted)
        assert typed("a.npy", "b.npy", "-o", "c.npy").code == 130
    Path("c.npy").rename("c.npy.tilewright/data")
    text = Path("c.npy.tilewright/journal").read_text()
    for old, new in ((f'"m": {N}', '"m": 512'), ('"bm": ', '"bm": 0'), ('"schema": 2', '"schema": 1'), ("{", "[")):
        Path("c.npy.tilewright/journal").write_text(text.replace(old, new, 1))
        answer = typed("a.npy", "b.npy", "-o", "c.npy", "--resume")
        assert answer.code == 2
        assert is_one_line(answer, "c.npy.tilewright/journal")
        assert not Path("c.npy").exists()


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_where_nothing_is_kept_resume_is_not_offered(typed) -> None:
    """An output that is refused, and a run that is interrupted before its first tile is finished."""
    Path("c.npy").mkdir()
    answer = typed("a.npy", "b.npy", "-o", "c.npy")
    assert answer.code == 2
    assert is_one_line(answer, "c.npy exists and is not a file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "begin", interrupted)
        answer = typed("a.npy", "b.npy", "-o", "d.npy")
    assert answer.code == 130
    assert answer.err == "interrupted: no tile was finished\n"


@pytest.mark.slow
def test_the_bar_is_for_terminals(typed, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [*COMMAND, "multiply", "a.npy", "b.npy", "-o", "c.npy", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 1 << 16):
            seen += chunk
    except OSError:  # how the end is told
        pass
    os.close(leader)
    assert process.wait() == 0
    process.stdout.close()
    assert b"left" in seen
    assert b"%" in seen


# ---- memory ----------------------------------------------------------------------------------------------------------

#: Multiplies twice by the command: something small, after which all is imported and compiled, and then in earnest.
RESIDENT = """
import re, sys
from pathlib import Path
from tilewright.__main__ import run_command_line

def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def multiply(a, b, *more):
    sys.argv = ["tilewright", "multiply", a, b, "-o", "c.npy", "--overwrite", "--device", "cpu", *more]
    assert run_command_line() == 0

multiply("s.npy", "s.npy", "--verify")
idle = kib("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
multiply("a.npy", "b.npy", "--memory", MEMORY, "--verify")
print("resident", kib("VmHWM") - idle, file=sys.stderr)
"""


def resident_bytes(folder: Path, memory: str) -> int:
    """The most memory that a product of 4096³ takes with its verification, beyond that of the idle interpreter."""
    script = RESIDENT.replace("MEMORY", repr(memory))
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split("resident ")[1]) << 10


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of resident memory is Linux's to tell")
def test_a_product_stays_within_its_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    np.save(tmp_path / "s.npy", np.ones((8, 8), np.float32))
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.random((4096, 4096), np.float32))
    within = {memory: resident_bytes(tmp_path, memory) for memory in ("64MiB", "240MiB")}
    print({memory: f"{taken >> 20} MiB" for memory, taken in within.items()}, machine().usable_cores, "cores")
    for memory, taken in within.items():
        assert taken <= int(memory.removesuffix("MiB")) << 20, within
    assert within["240MiB"] > 128 << 20, "the blocks are seen"


def test_axes_of_arrays_with_more_of_them(cli, tmp_path: Path) -> None:
    x, w = np.random.default_rng(1).uniform(-1, 1, (4, 30, 20)), np.ones((30, 7))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", w)
    (tmp_path / "x.raw").write_bytes(x.tobytes())
    want = np.tensordot(x, w, (1, 0))
    for a, axes, c in (("x.npy", "1:0", "c.npy"), ("x.raw:4x30x20:float64", "1:0", "d.npy")):
        answer = cli("multiply", a, "w.npy", "-o", c, "--axes", axes, "--device", "cpu", "--verify")
        assert (answer.code, answer.err) == (0, "")
        assert f"{c}: (4, 20, 7) float64" in answer.out
        np.testing.assert_allclose(np.load(c), want)
    answer = cli("multiply", "w.npy", "w.npy", "-o", "g.npy", "--axes", "0:0", "--device", "cpu")
    assert answer.code == 0
    assert "tiles above the diagonal are copied" in " ".join(answer.out.split())
    for axes in ("1:", "x", "0:1", "1:0:2", "9:0"):
        answer = cli("multiply", "x.npy", "w.npy", "-o", "e.npy", "--axes", axes, "--device", "cpu")
        assert answer.code == 2
        assert is_one_line(answer)
