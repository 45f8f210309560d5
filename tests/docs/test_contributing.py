"""What CONTRIBUTING.md prints, followed word for word in a copy of the project: nothing else changes or goes stale.

Each journey has a section. What takes a minute or more, all of the first and the whole of the second, is ``slow``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NO_CUDA = "cuda-core is not installed: pip install 'tilewright[cuda]'"
COPIED = (
    "src",
    "tests",
    "docs",
    "benchmarks",
    "examples",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "pyproject.toml",
)
#: A path of the package, then text without another one, then the file to put there.
TEMPLATE = re.compile(
    r"`(src/tilewright/kernels/[\w/]+\.(?:py|cu))`(?:(?!`src/).)*?```(?:python|c)\n(.*?)```", re.DOTALL
)


def journey(number: int) -> str:
    """The text of a journey."""
    return TEXT.split("\n## ")[1:][number - 1]


def printed(text: str, language: str) -> list[str]:
    """The blocks of a language that are printed in a text."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


# ---- journey 1: a kernel of the ladder -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the kernels that CONTRIBUTING.md prints, each in the file that it names."""
    copy = tmp_path_factory.mktemp("project")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name)  # with what Python and pytest have compiled: times stay
        else:
            shutil.copy(ROOT / name, copy / name)
    templates = TEMPLATE.findall(TEXT)
    assert [Path(path).suffix for path, _ in templates] == [".py", ".cu"]
    for path, text in templates:
        assert not (copy / path).exists(), "the number and the name are free"
        (copy / path).write_text(text, encoding="utf-8")
    return copy


def command(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "TILEWRIGHT_CACHE": str(project / "cache")}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, *words], cwd=project, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_tests_of_the_new_kernels_pass(project: Path) -> None:
    """``-n 0``: this test may itself run beside others."""
    pytest.importorskip("cuda.core", reason=NO_CUDA)
    done = command(project, "-m", "pytest", "-v", "-n", "0", "-p", "no:cacheprovider", "-k", "my_idea or my_cuda_idea")
    assert done.returncode == 0, done.stdout[-3000:]
    passed = [line for line in done.stdout.splitlines() if " PASSED" in line]
    for name, file in (("cpu/my_idea", "tests/kernels/test_kernels.py"), ("cuda/my_cuda_idea", "test_cuda_ladder.py")):
        assert sum(name in line and file in line for line in passed) >= 10, done.stdout[-3000:]


@pytest.mark.slow
def test_no_document_goes_stale_by_them(project: Path) -> None:
    checked = command(project, "docs/build.py", "--check", "--no-outputs")
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.slow
def test_they_are_found_by_themselves(project: Path) -> None:
    listed = command(project, "-m", "tilewright", "ladder").stdout
    assert re.search(r"cpu/my_idea +Compute two rows", listed)
    assert re.search(r"cuda/my_cuda_idea +A thread computes two rows", listed)


@pytest.mark.slow
def test_a_kernel_that_breaks_the_rules_is_found(project: Path) -> None:
    """The same command, with a kernel that leaves the last row of an odd C unwritten."""
    path = project / "src/tilewright/kernels/cpu/50_my_idea.py"
    whole = path.read_text(encoding="utf-8")
    assert "if m % 2:" in whole
    try:
        path.write_text(whole.replace("if m % 2:", "if m < 0:"), encoding="utf-8")
        words = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/kernels/test_kernels.py", "-k")
        done = command(project, *words, "test_shapes and my_idea")
    finally:
        path.write_text(whole, encoding="utf-8")
    assert done.returncode == 1
    assert "2 failed" in done.stdout


#: Gives ``docs/build.py`` each of these in one process.
MISTAKEN = """
import sys
sys.path.insert(0, "docs")
import build
for arguments in (["--chekc"], ["README.md"], ["--check", "--outputs"]):
    try:
        build.main(arguments)
    except SystemExit as refused:
        print(refused.code)
"""


@pytest.mark.slow
def test_the_builder_refuses_what_it_does_not_know(project: Path) -> None:
    before = (project / "README.md").read_bytes()
    refused = command(project, "-c", MISTAKEN)
    assert refused.stdout.split() == ["2", "2", "2"]
    assert refused.stderr.count("unrecognized arguments") == 3
    assert (project / "README.md").read_bytes() == before


@pytest.mark.slow
def test_the_builder_names_what_is_stale(project: Path) -> None:
    page = project / "docs" / "ladder.md"
    before = page.read_text(encoding="utf-8")
    try:
        page.write_text(before.replace("| `cpu/naive` |", "| `cpu/native` |"), encoding="utf-8")
        checked = command(project, "docs/build.py", "--check", "--no-outputs")
    finally:
        page.write_text(before, encoding="utf-8")
    assert checked.returncode == 1
    assert "stale: docs/ladder.md" in checked.stderr


# ---- journeys 2 and 3: in a copy of what they need -------------------------------------------------------------------


def copied(folder: Path, *names: str) -> Path:
    """A copy of the package, and of these files and folders, without what was built."""
    for name in ("src/tilewright", "pyproject.toml", *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("built", "*.so"))
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / "src/tilewright/prebuilt/built").mkdir(exist_ok=True)
    return folder


def shell(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run what is printed in a copy, whose package is the one that is imported."""
    programs = folder.parent / f"{folder.name}-bin"
    programs.mkdir(exist_ok=True)
    for name, words in (("python", ""), ("pytest", "-m pytest -p no:cacheprovider"), ("tilewright", "-m tilewright")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    known = {key: value for key, value in os.environ.items() if key not in ("PYTEST_ADDOPTS", "TILEWRIGHT_COMPILE")}
    environment = known | {"PYTHONPATH": "src", "TILEWRIGHT_CACHE": str(folder.parent / "cache")} | variables
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def files_of(folder: Path) -> dict[str, str]:
    """The text of each source of the package in a copy."""
    package = folder / "src/tilewright"
    return {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.*"))
        if path.suffix in (".py", ".cu", ".cuh")
    }


def step_of(number: int, title: str) -> str:
    """The only block of commands of a step of a journey."""
    text = journey(number)
    (block,) = printed(text[text.index(f"**{title}") :].split("\n**")[0], "sh")
    return block


#: Prints MC of the blocking that a tree computes.
MC = "from tilewright.kernels.blocking import blocking; print(blocking().numbers['mc'])"


@pytest.mark.thorough
def test_the_change_of_one_line_is_compiled_and_right(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="numba is not installed: pip install 'tilewright[lab]'")
    tree = copied(tmp_path / "tree")
    before, first = files_of(tree), shell(tree, f'python -c "{MC}"')
    changed = shell(tree, step_of(2, "2. Change one line"))
    assert changed.returncode == 0, changed.stderr
    after = files_of(tree)
    pairs = zip("".join(before.values()).splitlines(), "".join(after.values()).splitlines(), strict=True)
    assert len([pair for pair in pairs if pair[0] != pair[1]]) == 1
    second = shell(tree, f'python -c "{MC}"')
    assert int(first.stdout) < int(second.stdout)
    seen = shell(tree, step_of(2, "3. See that the new code runs"), TILEWRIGHT_COMPILE="1")
    assert seen.returncode == 0, seen.stderr  # the product is right
    assert "kernel     cpu/packed" in seen.stdout
    assert f"MC {int(second.stdout)}," in seen.stdout
    assert seen.stdout.splitlines()[-1] == "compiled in each process: $TILEWRIGHT_COMPILE is set"
    assert [path for path in (tmp_path / "cache").rglob("*") if "packed" in path.name], "the kernel was compiled"


def test_the_files_of_the_float32_product_are_there() -> None:
    rows = re.findall(r"^\| (`[\w/]+\.py`.*?) \| (.*) \|$", journey(2), re.MULTILINE)
    assert len(rows) == 7
    for where, what in rows:
        paths = re.findall(r"`([\w/]+\.py)`", where)
        text = "".join((ROOT / "src/tilewright" / path).read_text(encoding="utf-8") for path in paths)
        names = re.findall(r"`([\w.]+)`", where + what)
        assert [name for name in names if name not in paths and name not in text] == []


#: What the test of the whole journey leaves out of the commands, which takes minutes, and what it runs in its place.
SHORTER = (
    (" 8 --only 'float32 (777|1000x1000x1000|2048)'", " 1 --only 'float32 777x777x777 1'"),
    ("pytest -n 2 tests/engine", "pytest -n 0 -k read_in_place tests/engine"),
    ("python -m tilewright.prebuilt\npytest tests/prebuilt\n", ""),
)


@pytest.mark.slow
def test_the_whole_journey_to_a_faster_product(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    tree = copied(tmp_path / "tree", "tests", "benchmarks", ".gitignore")
    script = "".join(printed(journey(2), "sh"))
    for whole, part in SHORTER:
        assert whole in script
        script = script.replace(whole, part)
    person = "git -c user.name=nobody -c user.email=nobody@example.org"
    made = shell(tree, f"git init -q && git add -A && {person} commit -qm before")
    assert made.returncode == 0, made.stderr
    done = shell(tree, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "79 products, 0 with other bits" in done.stdout
    assert re.search(r"^float32 777x777x777 1 .* UNCLEAR: 1 of at least 3 samples needed$", done.stdout, re.MULTILINE)
    assert (tree / "turns.jsonl").is_file()


# ---- journey 3: a dtype on the GPU -----------------------------------------------------------------------------------

#: What names a narrow dtype on the way of a product to its kernel.
NAMED = re.compile(r"\"(?:int8|float8\w*)\"|\b(?:INT8|FLOAT8)\b")
#: Files that name one for something else: residues in int8 of wider numbers, and an example in a docstring.
OF_OTHERS = {"gpu/runtime/residue_product.py"}


def places() -> list[tuple[str, list[str], str]]:
    """The rows of the table: a file of the package, names in it, and the dtype that it names."""
    rows = re.findall(r"^\| `([\w/]+\.\w+)` \| (.*?) \| .* \| (\w+) \|$", journey(3), re.MULTILINE)
    return [(path, re.findall(r"`([^`]+)`", names), dtype) for path, names, dtype in rows]


def test_every_place_names_the_dtype_that_the_table_says() -> None:
    assert len(places()) >= 20
    for path, names, dtype in places():
        text = (ROOT / "src/tilewright" / path).read_text(encoding="utf-8")
        assert [name for name in names if name not in text] == [], path
        assert dtype in text.lower(), path


def test_no_place_is_left_out() -> None:
    found = {
        path
        for path, text in files_of(ROOT).items()
        if path.split("/")[0] in ("api", "gpu", "prebuilt", "product") and NAMED.search(text)
    }
    assert found - OF_OTHERS == {path for path, *_ in places() if path != "gpu/runtime/launch.py"}


def test_the_new_dtype_is_planned_and_multiplied(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason=NO_CUDA)
    tree = copied(tmp_path / "tree", "tests/conftest.py", "tests/support", "tests/gpu/conftest.py")
    (test,) = printed(journey(3), "python")
    (tree / "tests/gpu/test_uint8.py").write_text(test, encoding="utf-8")
    run = step_of(3, "3. Run the test").splitlines()[0] + " -n 0"
    refused = shell(tree, run)
    assert refused.returncode == 1, "the dtype of the example is there now: print another"
    assert "DTypeError: a is a tensor of uint8 on a GPU: float32, " in refused.stdout
    before = files_of(tree)
    commands = step_of(3, "2. Name the dtype")
    named = shell(tree, commands)
    assert named.returncode == 0, named.stderr
    changed = {path for path, text in files_of(tree).items() if text != before[path]}
    assert changed == set(re.findall(r"[\w/]+\.(?:py|cuh?)$", commands, re.MULTILINE))
    right = shell(tree, run)
    assert right.returncode == 0, right.stdout
    assert "cuda/hopper" in right.stdout
    assert "parts, whose int32 sums are added" in right.stdout
