"""CUDA files as they were written for nvcc: host code, headers of the host, launches. Each is run, and says what is right.

The files are in ``data/as_written``, one for each kind of obstacle.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError, UsageError
from tilewright.gpu.runtime import nvrtc
from tilewright.gpu.runtime.host_code import DeclaredText
from tilewright.gpu.runtime.nvcc import nvcc
from tilewright.lab.explain.any_kernel import AnyKernel, explain_any
from tilewright.lab.inputs.launches import LaunchOptions
from tilewright.records.explanation import Explanation

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

FILES = sorted((Path(__file__).parents[1] / "data" / "as_written").glob("*.cu"))


@pytest.fixture
def without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "nvcc", lambda: "")
    monkeypatch.setattr(nvrtc, "compile_by_nvcc", lambda *given: None)


def explained(path: Path, **options: object) -> Explanation:
    """The explanation of the kernel that the first comment of a file names."""
    named = re.search(r"^// explain(?: (\S+))?:", path.read_text(), re.MULTILINE)
    assert named
    return explain_any(AnyKernel(path, named[1], LaunchOptions(**options)))  # type: ignore[arg-type]


@pytest.mark.slow_cases("template_and_bounds")  # it includes cooperative_groups.h
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_runs_without_nvcc(path: Path, without_nvcc: None) -> None:
    e = explained(path)
    assert (e.verified["ok"], e.verified["reason"], e.defects) == (True, "", [])
    lines = {access.line for access in e.accesses if not access.file}
    assert lines <= set(range(1, path.read_text().count("\n") + 1))
    assert e.accesses


@pytest.mark.slow
@pytest.mark.skipif(not nvcc(), reason="nvcc is not installed")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_runs_with_nvcc(path: Path) -> None:
    e = explained(path)
    assert (e.verified["ok"], e.verified["reason"], e.defects) == (True, "", [])


def test_another_result_is_wrong(without_nvcc: None) -> None:
    e = explained(FILES[0], expect=["out = maximum(in, 0.1)"])
    assert e.verified["ok"] is False
    assert e.failed
    assert re.match(r"\d+ of 64 elements differ, the first out\[\d+\]", e.verified["reason"])


def test_lines_and_errors_are_those_of_the_file(without_nvcc: None) -> None:
    source = "#include <vector>\nint main() { return 0; }\n__global__ void k(float* x)\n{\n    x[0] = nothing;\n}\n"
    with pytest.raises(CompileError, match=r'mine\.cu\(5\): error: identifier "nothing" is undefined'):
        nvrtc.compile_source(source, name="mine.cu")


def test_all_missing_headers_are_named_at_once(without_nvcc: None) -> None:
    source = (
        '#include "tile.cuh"\n#include <cutlass/gemm.h>\n#include <torch/extension.h>\n#include <vector>\n'
        "__global__ void k(Tile x) {}\n"
    )
    with pytest.raises(CompileError) as error:
        nvrtc.compile_source(source, name="mine.cu")
    words = str(error.value)
    assert "hint: not found: tile.cuh, cutlass/gemm.h: give the folder that has it" in words
    assert "hint: not found: torch/extension.h: they are PyTorch's" in words
    assert "vector" not in words


def test_a_function_of_the_host_is_named(without_nvcc: None) -> None:
    source = "float f(float x)\n{\n    return x;\n}\n__global__ void k(float* x) { *x = f(*x); }\n"
    with pytest.raises(CompileError, match=r"f at k\.cu\(1\) is a function of the host: mark it __device__"):
        nvrtc.compile_source(source, name="k.cu")


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("int f() { return '{'; } __device__ int g();", "__device__ int g();"),
        ('void f() { s = "}"; /* } */ } // {\n__global__ void k() {}', "// {\n__global__ void k() {}"),
        ('auto s = R"x(})")x"; __constant__ int c[] = {1, 2};', "__constant__ int c[] = {1, 2};"),
        ("template <int N, bool B = (N > 3)> void f() {} template <int N> __device__ void g() {}",
         "template <int N> __device__ void g() {}"),
        ("struct S { int a; S() : a{1}, b(2) {} } s; std::vector<int> v;", "struct S { int a; S() : a{1}, b(2) {} } s;"),
        ("namespace n { void f() {} __device__ int x; }", "namespace n { __device__ int x; }"),
        ('extern "C" { void f(int); __global__ void k() {} }', 'extern "C" { __global__ void k() {} }'),
        ("const float pi = 3.14f; float e = 2.7f; constexpr int f(int x) { return x; }",
         "const float pi = 3.14f; constexpr int f(int x) { return x; }"),
        ("#define KERNEL __global__ void\nKERNEL k() {}\nTEST(a, b) { f<<<1, 2>>>(); }",
         "#define KERNEL __global__ void\nKERNEL k() {}\n"),
        ("#if A\nvoid f() {\n#else\nvoid g() {\n#endif\n} __device__ void h() {}",
         "#if A\n#else\n#endif\n __device__ void h() {}"),
        ("int x = f({1, 2}), y = 3; using T = int; bool operator==(A a, B b) { return 1; }", "using T = int;"),
    ],
)  # fmt: skip
def test_what_is_left_of_a_text(source: str, left: str) -> None:
    assert DeclaredText(source).without_host_code().split() == left.split()


def test_text_keeps_its_place() -> None:
    source = FILES[2].read_text()
    left = DeclaredText(source).without_host_code()
    assert len(left) == len(source)
    assert all(a == b or a == " " for a, b in zip(left, source, strict=True))
    assert "int main" not in left


def test_a_text_with_host_code_in_python(without_nvcc: None) -> None:
    kernel = "__global__ void k(float* x) { x[threadIdx.x] = FLT_MAX; }"
    source = f"#include <iostream>\n{kernel}\nint main() {{ k<<<1, 32>>>(0); }}"
    seen = tw.microscope(source, args=[np.zeros(32, np.float32)])
    assert (seen.arrays[0] == np.finfo(np.float32).max).all()
    with pytest.raises(UsageError, match="kernel: must be named"):
        tw.microscope(source.replace("int main", "__global__ void other() {}\nint main"), args=[])
