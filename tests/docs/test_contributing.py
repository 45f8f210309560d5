"""What CONTRIBUTING.md prints, followed word for word in a copy of the project: nothing else changes or goes stale."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough  # compiles and tests in a copy of the project
ROOT = Path(__file__).parents[2]
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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the kernels that CONTRIBUTING.md prints, each in the file that it names."""
    copy = tmp_path_factory.mktemp("project")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name)  # with what Python and pytest have compiled: times stay
        else:
            shutil.copy(ROOT / name, copy / name)
    templates = TEMPLATE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
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
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
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
