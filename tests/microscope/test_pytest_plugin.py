"""The plugin for pytest, in a run of its own: tests of right and wrong kernels, and what it says of a wrong marker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

pytest_plugins = ["pytester"]

KERNEL = """
extern "C" __global__ void twice(float* x, int n)
{
    int i = STEP * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i <= n) x[i] = 2 * x[i];
}
"""
TESTS = """
import numpy as np
import pytest

pytestmark = pytest.mark.cuda_kernel("twice.cu", "twice", block=32, defines={"STEP": 1})
X = np.ones(128, np.float32)

@pytest.mark.cuda_kernel(grid=4, require={"findings": 0, "sectors_per_request": "<= 4"})
def test_right(cuda_kernel):
    assert (cuda_kernel(X, 127).arrays[0] == 2).all()

@pytest.mark.cuda_kernel(grid=4)
def test_out_of_bounds(cuda_kernel):
    cuda_kernel(X[:100], 100)

@pytest.mark.cuda_kernel(grid=1, require={"sectors_per_request": "<= 4"})
def test_uncoalesced(cuda_kernel):
    cuda_kernel(X, 127, defines={"STEP": 4})

@pytest.mark.cuda_kernel("a.cu", "b", "c")
def test_three_names(cuda_kernel):
    cuda_kernel(X, 127)
"""


def run_pytest(pytester: pytest.Pytester, tests: str, *options: str) -> tuple[int, str]:
    """Exit code and output of pytest on one file of tests, in this process, where the compiler is loaded already."""
    pytester.makefile(".cu", twice=KERNEL)
    pytester.makepyfile(tests)
    done = pytester.runpytest_inprocess("-q", "-p", "tilewright.pytest_plugin", "--strict-markers", *options)
    return int(done.ret), done.stdout.str() + done.stderr.str()


def test_kernels_are_run_and_judged(pytester: pytest.Pytester, without_disassembly: None) -> None:
    code, out = run_pytest(pytester, TESTS, "-m", "cuda_kernel")
    assert code == 1, out
    assert "2 failed, 1 passed, 1 error" in out, "a marker that is wrong is an error, and no test is skipped"
    assert "RequirementError: twice breaks 1 of 1 requirement" in out
    assert "twice.cu:4: out of bounds: " in out
    assert "twice.cu:4: 16 sectors per request (global ld, global st)" in out
    assert "cuda_kernel takes a file and a kernel, got ('a.cu', 'b', 'c')" in out
    assert ">       cuda_kernel(X[:100], 100)" in out, "the test's own line"
    assert "asked = [required" not in out


def test_a_test_without_the_marker(pytester: pytest.Pytester) -> None:
    code, out = run_pytest(pytester, "def test_bare(cuda_kernel):\n    pass\n")
    assert code == 1
    assert "mark it with pytest.mark.cuda_kernel(file, kernel, grid=…)" in out


def test_the_guide_is_run_as_printed(pytester: pytest.Pytester, without_disassembly: None) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
    (kernel,) = re.findall(r"^```c\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    test = re.search(r"^```python\n(import numpy.*?)^```", guide, re.DOTALL | re.MULTILINE)
    said = re.search(r"^```text\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    assert test
    assert said
    transpose = pytester.path / "transpose.cu"
    transpose.write_text(kernel)
    assert run_pytest(pytester, test[1])[0] == 0
    transpose.write_text(kernel.replace("[33]", "[32]"))
    code, out = run_pytest(pytester, test[1])
    assert code == 1
    assert said[1] in out.replace(f"{pytester.path}/", "").replace("≈ ", ""), "without disassembly counts are marked"
