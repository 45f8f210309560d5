"""``explain`` for kernels that are no products: the launch from options, comments or a Python file; what must result."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.command_line import Answer
from tilewright.errors import UsageError
from tilewright.lab.inputs.launches import (
    LaunchOptions,
    arguments_of,
    expected_arrays,
    options_in,
    options_of,
    options_of_file,
)
from tilewright.records.explanation import read_explanations

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

Cli = Callable[..., Answer]

SOURCE = """
__global__ void scale(const float* x, float* y, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = a * x[i];
}
extern "C" __global__ void other() {}
"""
LAUNCH = ["--grid", "4", "--block", "32", "--arg", "x:float32:128", "--arg", "y:float32:128", "--arg", "a=3", "--arg"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return path


def test_a_right_kernel(cli: Cli, file: Path) -> None:
    code, out, _ = cli("explain", f"{file}::scale", *LAUNCH, "n=127", "--expect", "3 * x")
    assert code == 0
    assert out.startswith("scale.cu::scale on H200\n")
    assert "result    right: every element of y" in out
    assert "At best" in out
    assert "GFLOPS" not in out


@pytest.mark.slow
def test_a_wrong_one_and_its_record(cli: Cli, file: Path, tmp_path: Path) -> None:
    wrong = [*LAUNCH, "n=127", "--expect", "y = 2 * x"]
    code, _, _ = cli("explain", f"{file}::scale", *wrong, "--json", str(tmp_path / "record.json"))
    assert code == 1
    (e,) = read_explanations(tmp_path / "record.json")
    assert (e.kernel, e.is_product, e.shape, e.defects) == ("scale", False, "4 blocks of 32 threads", [])
    assert e.verified["reason"].startswith("128 of 128 elements differ, the first y[0]: ")


@pytest.mark.slow
def test_defects_without_an_expectation(cli: Cli, file: Path) -> None:
    code, out, _ = cli("explain", f"{file}::scale", "--block", "64", *LAUNCH[:2], *LAUNCH[4:], "n=128")
    assert code == 1
    assert "out of bounds, block (2, 0, 0), thread (0, 0, 0)" in out
    assert "result    not compared: say what must result, such as --expect" in out


@pytest.mark.slow
def test_a_page_of_a_kernel_that_is_no_product(cli: Cli, file: Path, tmp_path: Path) -> None:
    assert cli("explain", f"{file}::scale", *LAUNCH, "n=127", "--report", str(tmp_path / "page.html")).code == 0
    page = (tmp_path / "page.html").read_text()
    assert "scale at 4 blocks of 32 threads on H200: at best" in page
    assert "nothing to multiply" not in page


@pytest.mark.slow
def test_a_comment_and_a_python_file_say_how_it_is_launched(cli: Cli, file: Path) -> None:
    options = " ".join([*LAUNCH, "n=127"])
    file.write_text(f"// explain scale: {options}\n// explain scale: --expect 'a * x'\n{SOURCE}")
    assert cli("explain", f"{file}::scale")[0] == 0
    assert cli("explain", f"{file}::scale", "--expect", "4 * x")[0] == 1
    launch = "import numpy as np\nx = np.ones(64, np.float32)\n"
    launch += "args = {'x': x, 'y': 0 * x, 'a': 5.0, 'n': 63}\n"
    launch += "scale = {'grid': 2, 'block': (32,), 'args': args, 'expect': lambda *_: 5 * x}\n"
    (file.parent / "scale_launch.py").write_text(launch)
    assert cli("explain", f"{file}::scale")[0] == 0


def test_ptx_is_explained_for_a_card(cli: Cli, file: Path) -> None:
    from tilewright.gpu.runtime.nvrtc import compile_source

    path = file.with_suffix(".ptx")
    path.write_text(compile_source(SOURCE, arch="sm_80").ptx)
    code, out, _ = cli(
        "explain", f"{path}::scale", *LAUNCH, "n=127", "--expect", "3 * x", "--gpu", "A100", "--json", "-"
    )
    assert code == 0
    e = json.loads(out)
    assert (e["gpu"]["name"], e["verified"]["ok"], e["run"]["exact"]) == ("A100", True, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "say how the kernel is launched"),
        (["--grid", "4", "--arg", "n=3"], "scale takes 4 arguments, got 1"),
        ([*LAUNCH, "n=127", "--size", "64"], "--size is for products of matrices"),
        ([*LAUNCH, "n"], "'n' is not an argument: give NAME=NUMBER"),
        ([*LAUNCH, "n=127", "--expect", "z = x"], "expect: z is no array among the arguments: x, y"),
        ([*LAUNCH, "n=127", "--expect", "x + missing"], "x \\+ missing fails: NameError"),
        ([*LAUNCH, "n=127", "--expect", "x[:3]"], "y has 128 elements, the expectation"),
        (["--grid", "8xx"], "grid: must be one to three sizes"),
        (["--launch", "nowhere.py"], "there is no file nowhere.py"),
    ],
)
def test_what_is_refused(cli: Cli, file: Path, options: list[str], words: str) -> None:
    code, _, err = cli("explain", f"{file}::scale", *options)
    assert code == 2
    assert re.search(words, err)


def test_a_launch_that_is_not_described_is_answered_by_a_command(cli: Cli, tmp_path: Path) -> None:
    """The kernel's parameters as the source has them, not a mangled name; and a command that works as it is printed."""
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE.partition("extern")[0])
    code, _, err = cli("explain", str(path))
    assert code == 2
    assert "\n    scale(const float* x, float* y, float a, int n)\n" in err
    assert "_Z" not in err
    assert "header" not in err
    command = err.partition("tilewright explain")[2].partition("\n\n")[0]
    words = ["explain", *shlex.split(command.replace("\\\n", " "))]
    assert words[1] == f"{path}::scale"
    assert words[-1] == "n=1024"
    code, out, _ = cli(*words, "--expect", "y = a * x")
    assert "right: every element of y" in out


def test_kernels_of_one_name_are_told_apart_by_their_files(cli: Cli, tmp_path: Path) -> None:
    """In the table of the terminal and on the page; files of one name by their folders. The launch is in words."""
    comment = f"// explain scale: {' '.join([*LAUNCH, 'n=127'])}\n"
    files = [tmp_path / name for name in ("one.cu", "old/two.cu", "new/two.cu")]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text(comment + SOURCE.partition("extern")[0])
    code, out, _ = cli("explain", *map(str, files), "--brief", "--report", str(tmp_path / "page.html"))
    assert code == 0
    table = re.sub(r"^(\S+)( .*)\n(::\S+) *$", r"\1\3\2", out, flags=re.MULTILINE)  # a name may be in two lines
    rows = [line.split()[:3] for line in table.splitlines() if "::" in line]
    names = ["one.cu::scale", "old/two.cu::scale", "new/two.cu::scale"]
    assert rows == [[name, "4", "32"] for name in names]
    heads = [line.split() for line in out.splitlines()[:2]]
    assert "threads" in heads[0]
    assert heads[1][:4] == ["kernel", "blocks", "a", "block"]
    assert "GFLOPS" not in out
    assert "Time at best: a lower bound." in out
    page = re.sub(r"<wbr>|&#8203;|\u200b", "", (tmp_path / "page.html").read_text())
    assert all(name in page for name in names)
    assert "time at best" in page
    assert "3 launches of kernels that are not matrix products" in page


def test_the_help_has_a_group_for_each_purpose(cli: Cli) -> None:
    text = cli("explain", "--help").out
    groups = re.split(r"^(\w[^\n]*):\n", text.partition("KERNEL <")[2], flags=re.MULTILINE)[1:]
    options = [re.findall(r"^  (?:-\w, )?(--[\w-]+)", group, re.MULTILINE) for group in groups[1::2]]
    assert dict(zip(groups[::2], options, strict=True)) == {
        "Launch of a matrix product": ["--size", "--param"],
        "Launch of any other kernel": [
            *("--grid", "--block", "--arg", "--expect", "--shared", "--constant", "--launch"),
        ],
        "GPU and run": ["--gpu", "--whole", "--max-steps", "--seed", "--measure"],
        "CUDA compiler": ["--include", "--define"],
        "What is shown": ["--brief", "--json", "--report"],
        "Checks in CI": ["--require", "--sarif", "--annotations"],
        "A kernel on the CPU": ["--dtype", "--threads"],
        "Other options": ["--help"],
    }


def test_the_kernels_of_a_file_are_listed(cli: Cli, file: Path) -> None:
    for name in (str(file), f"{file}::nothing"):
        code, _, err = cli("explain", name)
        assert code == 2
        assert "Its kernels are\n\n    scale(const float* x, float* y, float a, int n)\n    other()\n" in err


def test_a_product_without_a_header_is_asked_for_one(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text("__global__ void mine(const float* a, const float* b, float* c, int m, int n, int k) {}")
    _, _, err = cli("explain", str(path))
    assert "has no header" in err


@pytest.mark.slow
def test_options_of_a_launch_are_for_files(cli: Cli, file: Path) -> None:
    code, _, err = cli("explain", "coalesced", "--grid", "8")
    assert code == 2
    assert "are for a file of your own" in err
    code, _, err = cli("explain", f"{file}::scale", "coalesced", *LAUNCH, "n=3")
    assert code == 2
    assert "coalesced: explain it without the others" in err


# ---- options ---------------------------------------------------------------------------------------------------------


def test_comments_of_one_kernel_and_of_all() -> None:
    text = "// explain: --block 64\n * explain f<8>: --grid 2x3 --arg n=1\n  # explain g: --grid 9\n"
    text += "// explain what it does: -- no\n"
    assert options_in(text, "f<8>") == LaunchOptions((2, 3), (64,), ("n=1",))
    assert options_in(text, "g").grid == (9,)
    assert options_in("// explain it well\n", None) == LaunchOptions()
    with pytest.raises(UsageError, match="the comment 'explain f': unrecognized arguments: --gird"):
        options_in("// explain f: --gird 3", "f")


def test_options_of_a_python_file(tmp_path: Path) -> None:
    path = tmp_path / "launch.py"
    path.write_text("grid = 4\nargs = ['n=3']\ndef expect(n): pass\n")
    found = options_of_file(path, "any")
    assert (found.grid, found.args, len(found.expect)) == ((4,), ["n=3"], 1)
    assert options_of(["--grid", "8"]).over(found).grid == (8,)
    for text, words in (("x = 1", "sets none of grid"), ("1 / 0", "fails: ZeroDivisionError")):
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            options_of_file(path, None)


def test_contents_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    found = arguments_of(
        [
            "in:float16:2x2",
            "z:int8:4:zeros",
            "r:int64:3:in[0].size * arange(3)",
            f"f:{tmp_path}/x.npy",
            "p=none",
            "h=0x10",
        ],
        seed=3,
    )
    assert [getattr(value, "dtype", None) for value in found.values[:4]] == ["float16", "int8", "int64", "int64"]
    assert found.values[2].tolist() == [0, 2, 4]
    assert found.values[4:] == [None, 16]
    assert (np.abs(found.values[0]) <= 1).all()
    assert arguments_of(["x:float32:9"], 3).values[0].tolist() == arguments_of(["x:float32:9"], 3).values[0].tolist()
    for text, words in (
        ("x:float33:4", "not a dtype"),
        ("x:float32:4:arange(5)", "has the shape"),
        ("x:float32:0x", "give NAME:DTYPE:SHAPE"),
        ("x:nowhere.npy", "No such file"),
        ("x:int32:2:__import__('os')", "NameError"),
    ):
        with pytest.raises(UsageError, match=words):
            arguments_of([text], 1)


def test_expectations(tmp_path: Path) -> None:
    given = arguments_of(["in:float32:4:arange", "out:float32:4", "count:int32:1:zeros"], 1)
    assert expected_arrays(["in * 2"], given, ["out"])["out"].tolist() == [0, 2, 4, 6]
    assert expected_arrays(["in / 3"], given, ["out", "count"])["out"].dtype == np.float64
    with pytest.raises(UsageError, match="the kernel wrote in, count: say which, such as in = "):
        expected_arrays(["1"], given, ["in", "count"])

    def changes(x: np.ndarray, y: np.ndarray, n: np.ndarray) -> None:
        y[:] = x + 1
        n[0] = 7

    found = expected_arrays([changes, lambda x, y, n: {"in": x}], given, [])
    assert (found["out"].tolist(), found["count"].tolist()) == ([1, 2, 3, 4], [7])
    assert given.values[2].tolist() == [0]
    (tmp_path / "right.py").write_text("def double(x, y, n):\n    return 2 * x\n")
    assert expected_arrays([f"{tmp_path}/right.py:double"], given, ["out"])["out"].tolist() == [0, 2, 4, 6]
    with pytest.raises(UsageError, match="has no function missing"):
        expected_arrays([f"{tmp_path}/right.py:missing"], given, ["out"])
