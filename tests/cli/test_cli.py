"""The commands as a person meets them: one-line errors, exit codes, help, tables, interruption and resumption."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright
from support.command_line import COMMAND, environment, is_one_line, started
from tilewright.records import bench as records

#: Not smaller: then a cell has thousands of sets of operands.
SMALL = ["bench", "ikj", "--against", "none", "--sizes", "64"]

#: A user's kernel that takes 1 µs for each 100 multiplications, and is right.
SLOW = """
import time
import numpy as np
from tilewright.kernels import kernel

@kernel(idea="Sleeps.", row="", compiled=False, strided=True)
def slow(a, b, c):
    time.sleep(a.shape[0] * b.size * 1e-8)
    np.matmul(a, b, out=c)
"""


def saved(name: str, array: np.ndarray) -> None:
    with Path(name).open("wb") as file:
        np.save(file, array)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--sizes=", "sizes ''"),
        ("--sizes=abc", "'abc'"),
        ("--sizes=8,,8", "sizes ''"),
        ("--sizes=-5", "'-5'"),
        ("--sizes=8x8", "'8x8'"),
        ("--sizes=16:8:x2", "'16:8:x2'"),
        ("--sizes=1:9:x1", "never ends"),
        ("--sizes=1:1000000000:+1", "at most 1000 sizes"),
        ("--sizes=1:60000:x1.0000001", "at most 1000 sizes"),
        ("--sizes=99999999999999999999", "got 99999999999999999999"),
        ("--sizes=" + "9" * 5000, "sizes"),
        ("--threads=", "threads"),
        ("--threads=0", "got 0"),
        ("--threads=1,x", "'1,x'"),
        ("--threads=100000", "got 100000"),
        ("--dtype=", "dtype ''"),
        ("--dtype=float17", "did you mean float"),
        ("--dtype=float32,int7", "'int7'"),
        ("--limit=0", "limit"),
        ("--limit=-1s", "'-1s'"),
        ("--limit=5h", "'5h'"),
        ("--limit=" + "9" * 400, "limit"),
        ("--repeat=0", "repeat"),
        ("--repeat=x", "--repeat"),
        ("--seed=-1", "seed must not be negative, got -1"),
        ("--seed=1.5", "--seed"),
        ("--param=leaf", "'leaf'"),
        ("--param=leaf=", "'leaf='"),
        ("--param=leaf=0", "positive"),
        ("--param=leaf=-3", "positive"),
        ("--param=leaf=²", "positive"),
        ("--param==3", "'=3'"),
        ("--param=leaf=3", "none of the chosen kernels has it"),
        ("--against=opnblas", "did you mean openblas"),
        ("--against=", "''"),
        ("--device=gpu", "'gpu': did you mean cpu?"),
        ("--resume", "--json"),
        ("--operands=a.npy", "--operands"),
        ("--szies=3", "--sizes"),
    ],
)
def test_a_bad_option_is_named_in_one_line(cli, typed, words) -> None:
    arguments = ["bench", "ikj", "--against=none", typed]
    answer = cli(*(a for a in arguments if not (a == "--against=none" and typed.startswith("--against"))))
    assert answer.code == 2
    assert is_one_line(answer, words)
    assert not answer.out


@pytest.mark.slow_cases("0")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["bnech"], 2, "'bnech'"),
        (["bench", "nave"], 2, "did you mean cpu/naive"),
        (["bench", ""], 2, "kernel ''"),
        (["bench", "mine.py"], 2, "mine.py does not exist"),
        (["bench", "folder.py"], 2, "folder.py"),
        (["bench", "--device", "cuda", "--threads", "2"], 2, "threads '2'"),
        (["tune"], 2, "KERNEL"),
        (["tune", "tiled"], 2, "kernel 'tiled'"),
        ([*SMALL, "--json", "folder"], 2, "json: folder"),
        ([*SMALL, "--json", "nowhere/x.jsonl"], 2, "json: nowhere/x.jsonl"),
        ([*SMALL, "--json", "-", "--resume"], 2, "resume"),
        ([*SMALL, "--report", "folder"], 2, "report: folder"),
        ([*SMALL, "--report", "nowhere/x.html"], 2, "nowhere is not a folder"),
        ([*SMALL, "--report", "text"], 0, ""),
        ([*SMALL, "--report", "-"], 2, "report"),
        ([*SMALL, "--json", "text", "--report", "text"], 2, "report: text"),
        (["compare", "text"], 2, "NEW"),
        (["compare", "text", "text"], 2, "text:1: not JSON"),
        (["compare", "text", "nothing"], 2, "text:1"),
        (["compare", "nothing", "text"], 2, "nothing: cannot be read"),
        (["compare", "folder", "text"], 2, "folder: cannot be read"),
        (["compare", "text", "text", "--json", "text"], 2, "json: text"),
        (["report"], 2, "FILES"),
        (["report", "nothing"], 2, "nothing: cannot be read"),
        (["report", "text"], 2, "text:1: not JSON"),
        (["report", "text", "-o", "text"], 2, "output: text"),
        (["report", "text", "-o", "folder"], 2, "output: folder"),
        (["report", "text", "-o", "nowhere/x"], 2, "output: nowhere/x"),
        (["report", "text", "--figures", "text"], 2, "figures"),
        (["info", "--json", "folder"], 2, "json: folder"),
        (["ladder", "--json", "nowhere/x"], 2, "json: nowhere/x"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(cli, arguments, code, words) -> None:
    Path("folder").mkdir()
    Path("folder.py").mkdir()
    Path("text").write_text("not a record\n")
    answer = cli(*arguments)
    assert answer.code == code
    assert code == 0 or is_one_line(answer, words)


@pytest.mark.parametrize("percent", ["x", "-3", "nan", "inf", "100%", "3%%", ""])
def test_fail_slower_is_a_percentage(cli, percent) -> None:
    Path("a").write_text(records.to_line(records.BenchRecord("cpu/ikj", "cpu", 8, 8, 8, "float32", "ok")) + "\n")
    assert is_one_line(cli("compare", "a", "a", f"--fail-slower={percent}"), "fail-slower", repr(percent))


A = np.linspace(-1, 1, 24, dtype="f4").reshape(6, 4)
B = np.linspace(1, -1, 20, dtype="f4").reshape(4, 5)


def with_one(value: float) -> np.ndarray:
    changed = B.copy()
    changed[1, 2] = value
    return changed


@pytest.mark.parametrize(
    ("b", "words"),
    [
        (None, "does not exist"),
        (b"", "b.npy"),
        (b"hello", "b.npy"),
        (b"PK\x03\x04" + b"junk" * 20, "b.npy"),
        (b"\x93NUMPY\x01\x00\x76\x00((((", "b.npy"),
        ("truncated", "truncated"),
        ("header only", "damaged"),
        ("a huge header", "b.npy"),
        ("an archive", "b.npy"),
        (B[0], "(5,)"),
        (B.reshape(4, 5, 1), "(4, 5, 1)"),
        (B.astype(int), "int64"),
        (B.astype(complex), "complex128"),
        (np.array([[1, None]], object), "b.npy"),
        (with_one(np.nan), "nan at [1, 2]"),
        (with_one(-np.inf), "-inf at [1, 2]"),
        (B.T, "A is (6, 4), B is (5, 4)"),
        (np.full((4, 5), 3e38, "f4"), "float32's 3.4e+38"),
    ],
)
def test_an_operand_that_is_no_matrix_is_said_to_be_so(cli, b, words) -> None:
    saved("a.npy", A)
    if isinstance(b, np.ndarray):
        saved("b.npy", b)
    elif isinstance(b, bytes):
        Path("b.npy").write_bytes(b)
    elif b is not None:
        damaged(b)
    answer = cli("bench", "ikj", "--against", "none", "--operands", "a.npy", "b.npy")
    assert answer.code == 2
    assert is_one_line(answer, "operands", words)


def damaged(how: str) -> None:
    if how == "an archive":
        with Path("b.npy").open("wb") as file:
            np.savez(file, B)
        return
    saved("b.npy", B)
    whole = Path("b.npy").read_bytes()
    huge = whole.replace(b"(4, 5)", b"(10000000000, 10000000000)")[: len(whole)]
    Path("b.npy").write_bytes({"truncated": whole[:-8], "header only": whole[:40], "a huge header": huge}[how])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (A, B),
        (A.astype(">f4"), B.astype(">f8")),
        (np.asfortranarray(A), np.asfortranarray(B, "f8")),
        (A[:0], B),
        (np.ones((3, 0)), np.ones((0, 2))),
        (A[:, :1], B[:1]),
    ],
)
def test_operands_of_any_layout_are_measured(cli, a, b) -> None:
    saved("a.npy", a)
    saved("b.npy", b)
    answer = cli("bench", "ikj", "--against=none", "--operands", "a.npy", "b.npy", "--json", "x.jsonl")
    assert (answer.code, answer.err) == (0, "")
    (record,) = records.read_records("x.jsonl")
    assert (record.m, record.k, record.n) == (*a.shape, b.shape[1])
    assert record.dtype == np.result_type(a, b).name
    assert record.environment["operands"].startswith("a.npy b.npy (sha256 ")


def test_operands_and_sizes_exclude_each_other(cli) -> None:
    saved("a.npy", A)
    assert is_one_line(cli("bench", "ikj", "--operands", "a.npy", "a.npy", "--sizes", "8"), "sizes '8'")


def test_a_library_that_is_not_there_is_code_3(cli, monkeypatch) -> None:
    from tilewright.errors import UnavailableError
    from tilewright.lab.bench import session

    def missing(kernel: object) -> None:
        raise UnavailableError("mkl is not installed here: pip install mkl")

    monkeypatch.setattr(session, "_load_library", missing)
    answer = cli("bench", "ikj", "--sizes=8", "--against=mkl")
    assert answer.code == 3
    assert is_one_line(answer, "mkl")


# ---- a user's kernels ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("c[...] = 0", "is off by"),
        ("pass", "not written"),
        ("np.matmul(a, b, out=c); c[-1, -1] += 1", "is off by"),
        ("raise ValueError('no\\nidea')", "ValueError: no"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("a[0, 0] = 2; np.matmul(a, b, out=c)", "changed A"),
        ("b[...] = 0; c[...] = 0", "changed B"),
    ],
)
def test_a_kernel_that_is_wrong_exits_with_1_and_says_why(cli, body, words) -> None:
    head = "import numpy as np\nfrom tilewright.kernels import kernel\n"
    declared = "@kernel(idea='Wrong.', row='', compiled=False)\ndef mine(a, b, c):\n"
    Path("mine.py").write_text(f"{head}{declared}    {body}\n")
    answer = cli("bench", "mine.py", "ikj", "--sizes=8", "--against=none")
    assert (answer.code, answer.err) == (1, "")
    assert "WRONG" in answer.out
    assert words in " ".join(answer.out.split())
    assert "1 of 2 cells measured and verified, 1 wrong." in answer.out, "the next kernel has sound operands"


@pytest.mark.parametrize(
    "text", ["", "x = (", "import nothing_of_the_kind", "import sys; sys.exit(0)", "raise KeyboardInterrupt"]
)
def test_a_file_that_declares_no_kernel_is_refused(cli, text) -> None:
    Path("mine.py").write_text(text)
    answer = cli("bench", "mine.py", "--sizes=8")
    assert answer.code == (130 if "Keyboard" in text else 2)
    sentence, _, template = answer.err.partition("\n\n")
    assert answer.code == 130 or is_one_line(answer._replace(err=sentence), "mine.py")
    assert ("def my_kernel" in template) == (text == ""), "a file without a kernel is shown one"


@pytest.mark.slow
def test_two_files_of_one_name_are_refused(cli) -> None:
    for folder in ("one", "two"):
        Path(folder).mkdir()
        Path(folder, "slow.py").write_text(SLOW)
    assert is_one_line(cli("bench", "one/slow.py", "two/slow.py"), "my/slow")
    assert "1 of 1 cells" in cli("bench", "one/slow.py", "one/slow.py", "--sizes=8", "--against=none").out


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_without_a_command_the_help_is_shown(cli) -> None:
    answer = cli()
    assert (answer.code, answer.err) == (2, "")
    assert "Commands:" in answer.out


def test_version(cli) -> None:
    assert cli("--version") == (0, f"tilewright {tilewright.__version__}\n", "")


@pytest.mark.parametrize("command", ["", "info", "ladder", "bench", "compare", "report", "explain"])
def test_help_reads_well_at_80_columns(cli, command) -> None:
    answer = cli(*[command] * bool(command), "--help")
    assert answer.code == 0
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "..." not in re.sub(r"[\]}]\.\.\.|FILES\.\.\.", "", answer.out), "nothing cut short"


@pytest.mark.slow
def test_json_on_standard_output_leaves_the_table_to_standard_error(tmp_path) -> None:
    process = started(*SMALL, "--json", "-", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [records.from_line(line).kernel for line in out.splitlines()] == ["cpu/ikj"]
    assert "1 of 1 cells" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["ladder"], SMALL, [*SMALL, "--json", "-"]])
def test_a_reader_that_has_gone_is_no_error(tmp_path, arguments) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False
    )
    os.close(writing)
    assert process.returncode == 0
    assert b"Traceback" not in process.stderr
    assert b"BrokenPipe" not in process.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    "closed", [*(pytest.param(x, marks=pytest.mark.further) for x in ("<&-", ">&-", "2>&-")), "<&- >&- 2>&-"]
)
def test_a_closed_stream_is_no_error_and_its_number_is_no_result(tmp_path, closed: str) -> None:
    """A file that is opened takes the lowest free number: what is printed must not go into a result."""
    np.save(tmp_path / "a.npy", np.ones((20, 20), np.float32))
    command = f"{shlex.join(COMMAND)} multiply a.npy a.npy -o c.npy --device cpu {closed}"
    process = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert process.returncode == 0, process.stderr
    assert (np.load(tmp_path / "c.npy") == 20).all()


def on_terminal(*arguments: str, cwd: Path, **variables: str) -> tuple[int, str]:
    """What a command writes to a terminal of 80 columns, standard error and output together."""
    here, there = pty.openpty()
    command = [*COMMAND, *arguments]
    process = subprocess.Popen(
        command, stdin=there, stdout=there, stderr=there, cwd=cwd, env=environment(**variables), close_fds=True
    )
    os.close(there)
    seen = b""
    while True:
        try:
            part = os.read(here, 65536)
        except OSError:  # Linux's word for the end
            break
        if not part:
            break
        seen += part
    os.close(here)
    return process.wait(), seen.decode()


@pytest.mark.slow
def test_progress_is_for_terminals_and_says_what_is_left(tmp_path) -> None:
    code, seen = on_terminal("bench", "ikj", "--against=none", "--sizes=40,48,64", cwd=tmp_path)
    assert code == 0
    assert re.search(r"cpu/ikj 48 float32.*about \d+ s left", seen)
    assert "\x1b[1m" in seen
    code, plain = on_terminal(*SMALL, cwd=tmp_path, NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain)
    process = started(*SMALL, cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out


# ---- interruption ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_run_that_is_cut_short_keeps_its_cells_and_resumes(tmp_path, how, code) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    asked = ["bench", "slow.py", "--against=none", "--sizes=16,32,64,128,136,144", "--json=x.jsonl", "--repeat=2"]
    process = started(*asked, cwd=tmp_path)
    file = tmp_path / "x.jsonl"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (not file.exists() or b"\n" not in file.read_bytes()):
        time.sleep(0.01)
    process.send_signal(how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
    assert code != 130 or "--resume continues" in err
    before = file.read_bytes()
    assert before.endswith(b"\n")
    kept = records.read_records(file)
    assert 1 <= len(kept) < 6
    resumed = started(*asked, "--resume", cwd=tmp_path)
    assert "6 of 6 cells measured" in resumed.communicate(timeout=60)[0]
    assert file.read_bytes().startswith(before)
    assert [r.n for r in records.read_records(file)] == [16, 32, 64, 128, 136, 144]


@pytest.mark.slow
def test_resume_measures_only_what_does_not_stand(cli) -> None:
    def sizes() -> list[int]:
        return [json.loads(line)["n"] for line in Path("x.jsonl").read_text().splitlines()]

    saved("a.npy", A)
    saved("b.npy", B)
    Path("slow.py").write_text(SLOW)
    asked = ["bench", "slow.py", "--against=none", "--sizes=8,16", "--json=x.jsonl"]
    assert cli(*asked).code == 0
    assert "2 of 2 cells" in cli(*asked, "--resume").out
    assert sizes() == [8, 16]
    Path("slow.py").write_text(SLOW + "# changed\n")
    assert "2 of 2 cells" in cli(*asked, "--resume").out
    assert sizes() == [8, 16, 8, 16]
    assert "2 of 2 cells" in cli(*asked, "--resume", "--seed=2").out
    assert sizes() == [8, 16, 8, 16, 8, 16]
    given = ["bench", "slow.py", "--against=none", "--operands", "a.npy", "b.npy", "--json=y.jsonl"]
    cli(*given)
    cli(*given, "--resume")
    assert len(records.read_records("y.jsonl")) == 1
    saved("b.npy", -B)
    cli(*given, "--resume")
    assert len(records.read_records("y.jsonl")) == 2


@pytest.mark.slow
def test_resume_asks_again_what_was_over_another_limit(cli) -> None:
    Path("slow.py").write_text(SLOW)
    asked = ["bench", "slow.py", "--against=none", "--sizes=64,256", "--json=x.jsonl", "--repeat=1"]
    assert "1 of 2 cells" in cli(*asked, "--limit=60ms").out
    assert "2 of 2 cells" in cli(*asked, "--limit=10s", "--resume").out
    assert [r.verdict for r in records.read_records("x.jsonl")] == ["ok", "time_limit", "ok"]


# ---- comparing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "word", "code"), [(2.0, "SLOWER", 1), (0.5, "FASTER", 0), (1.0, "SAME", 0)])
def test_compare_says_what_changed(cli, factor, word, code) -> None:
    for name, scale in (("old", 1.0), ("new", factor)):
        samples = [scale * s for s in (1.0, 1.001, 1.002, 1.003)]
        records.write_records(
            name, [records.BenchRecord("cpu/ikj", "cpu", 8, 8, 8, "float32", "ok", samples_s=samples)]
        )
    answer = cli("compare", "old", "new")
    assert answer.code == code
    assert word in answer.out
    told = json.loads(cli("compare", "old", "new", "--json", "-").out)
    assert told["rows"][0]["status"] == word.lower()
    assert cli("compare", "old", "new", "--fail-slower", "150%").code == 2


def test_compare_refuses_what_is_not_comparable(cli) -> None:
    for name in ("old", "new"):
        where = {"processor": name}
        cell = records.BenchRecord("[/x]", "cpu", 8, 8, 8, "float32", "ok", samples_s=[1.0] * 4, environment=where)
        records.write_records(name, [cell])
    assert is_one_line(cli("compare", "old", "new"), "not comparable: processors differ", "old in old")
    assert "[/x]" in cli("compare", "old", "old").out, "a name is no markup"
