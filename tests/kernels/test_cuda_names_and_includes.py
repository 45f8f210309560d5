"""What a compiled kernel is called, and where its included files are: folders, macros, names as C++ has them."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from support.command_line import is_one_line
from tilewright.errors import CompileError, UnavailableError, UsageError
from tilewright.gpu.runtime import cubin, nvrtc
from tilewright.gpu.runtime.cubin import demangled
from tilewright.gpu.runtime.nvrtc import compile_source

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

NAMES = """
namespace ns {
enum Kind { A, B };
struct Tag {};
template <int N> __global__ void k(float* x) { *x = N; }
template <typename T, Kind e, bool b> __global__ void q(T* x) { *x = e + b; }
template <typename... T> __global__ void many(float* x) { *x = sizeof...(T); }
__global__ void m(float* x) { *x = 1; }
__device__ void helper(float* x) {}
}
template <typename T> __global__ void t(T* x) { *x = 2; }
namespace { __global__ void hidden(float* x) { *x = 3; } }
"""
MINE = """/*
idea = "A template."
block = [8, 8]
grid = ["cdiv(n, 8)", "cdiv(m, 8)"]
entry = "mine::gemm<float, ROWS>"
[params.ROWS]
default = 8
values = [4, 8]
*/
#include <load.cuh>
namespace mine {
template <typename T, int N> __global__ void gemm(const T* a, const T* b, T* c, int m, int n, int k)
{
    int col = blockIdx.x * 8 + threadIdx.x, row = blockIdx.y * N + threadIdx.y;
    if (row >= m || col >= n) return;
    T sum = 0;
    for (int p = 0; p < k; p++) sum += load(a, row * k + p) * load(b, p * n + col + OFFSET);
    c[row * n + col] = sum;
}
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A kernel whose header file is in another folder."""
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "load.cuh").write_text(
        "template <typename T> __device__ T load(const T* a, int i) { return a[i]; }\n"
    )
    path = tmp_path / "mine.cu"
    path.write_text(MINE)
    return path


def run(name: str | None, source: str = NAMES, **options: object) -> tuple[float, str]:
    seen = tw.microscope(source, name, 1, 1, [np.zeros(1, np.float32)], **options)
    return float(seen.arrays[0][0]), seen.kernel


# ---- names -----------------------------------------------------------------------------------------------------------


def test_doctests() -> None:
    assert doctest.testmod(cubin).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [("ns::k<8>", 8), ("ns::k< 4 >", 4), ("ns::q<float, ns::B, true>", 2), ("ns::m", 1), ("t<float>", 2),
     ("ns::many<int, ns::Tag>", 2), ("ns::k<SIZE>", 5), ("hidden", 3)],
)  # fmt: skip
def test_a_kernel_is_named_as_in_cpp(name: str, value: float) -> None:
    source = NAMES if name != "hidden" else NAMES.replace("namespace { ", "").replace("= 3; } }", "= 3; }")
    assert run(name, source, defines={"SIZE": 5}) == (value, name)


def test_an_instance_in_ptx_is_named_as_in_cpp() -> None:
    ptx = compile_source(NAMES, names=["ns::k<8>", "t<float>"]).ptx
    assert run("ns::k<8>", ptx) == (8, "ns::k<8>")
    assert run("t<float>", ptx) == (2, "t<float>")
    with pytest.raises(UsageError, match=r"^kernel: must be named, kernel\.\w+ has .*t<float>.*ns::k<8>"):
        run(None, ptx)
    with pytest.raises(UsageError, match="include and defines mean nothing for PTX"):
        run("ns::m", ptx, defines={"N": 1})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ns::zz<3>", 'kernel.cu: there is no kernel ns::zz<3>: namespace "ns" has no member "zz"'),
        ("t<float", 'there is no kernel t<float: expected a ">"'),
        ("ns::k", "name an instance, such as ns::k<8>"),
        ("k", "kernel.cu: k is a template: name an instance of it, such as k<8>"),
        ("other", "other is not one of its kernels: "),
        ("ns::helper", "kernel.cu: ns::helper is not a kernel (__global__)"),
    ],
)
def test_a_name_that_the_source_does_not_have(name: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        run(name)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_in_the_source_is_not_taken_for_one_in_the_name() -> None:
    with pytest.raises(CompileError, match="nothing"):
        run("ns::k<8>", NAMES.replace("*x = N", "*x = nothing"))


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("_Z1kILi8EEvPf", "k<8>"),
        ("_ZN1a1b1kILb1ELin3ELj7EEEvv", "a::b::k<true,-3,7>"),
        ("_Z1kIPKfRdE", "k<float const*,double&>"),
        ("_Z1kIN2ns3TagEE", "k<ns::Tag>"),
        ("_Z1kI3TagIiEE", "k<Tag<int>>"),
        ("_ZN12_GLOBAL__N_14deepEv", "(anonymous namespace)::deep"),
        ("_ZL5localv", "local"),
        ("_Z1kIXadL_Z1gvEEEvv", "k"),
        ("_ZN1a1kIS_EEvv", "_ZN1a1kIS_EEvv"),
        ("_ZN99kE", "_ZN99kE"),
        ("_Z", "_Z"),
        ("_ZN1a1kI", "_ZN1a1kI"),
    ],
)
def test_mangled_names(entry: str, name: str) -> None:
    assert demangled(entry) == name


# ---- included files --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_folders_and_macros_from_python(mine: Path) -> None:
    args = [np.eye(8, dtype=np.float32), np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros((8, 8), np.float32)]
    for include in ([mine.parent / "inc"], [str(mine.parent), str(mine.parent / "inc")]):
        seen = tw.microscope(
            mine, "mine::gemm<float,8>", 1, (8, 8), [*args, 8, 8, 8], include=include, defines={"OFFSET": 0}
        )
        assert (seen.arrays[2] == args[1]).all()


@pytest.mark.slow
def test_folders_and_macros_in_the_terminal(mine: Path, tmp_path: Path, cli) -> None:
    """``-I`` and ``-D``; the header's ``entry`` is an instance, by a parameter."""
    record = tmp_path / "out.json"
    command = ["explain", str(mine), "--size", "8", "-I", str(tmp_path / "inc"), "-D", "OFFSET=0", "-D", "OTHER"]
    assert cli(*command, "--json", str(record)).code == 0
    environment = json.loads(record.read_text())["environment"]
    assert environment["defines"] == {"OFFSET": "0", "OTHER": "1"}
    assert environment["include"] == [str(tmp_path / "inc")]
    for more, words in (
        ([*command, "-D", "ROWS=4"], "ROWS is a parameter of my/mine: give --param ROWS=…"),
        ([*command, "-I", str(tmp_path / "none")], f"include: {tmp_path / 'none'} is not a folder"),
        (["explain", "cpu/packed", "-D", "A=1"], "--define means nothing for a kernel on the CPU"),
    ):
        answer = cli(*more)
        assert answer.code == 2
        assert is_one_line(answer, words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"defines": {"a b": 1}}, "'a b' cannot be the name of a macro"),
        ({"include": "/tmp"}, "include must be a list of folders"),
        ({"include": ["/nowhere"]}, "include: /nowhere is not a folder"),
    ],
)
def test_refused_options(options: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run("ns::m", **options)


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ('"mine.h"', "not found: mine.h: give the folder that has it as include=[…], or with -I"),
        ("<cutlass/gemm.h>", "not found: cutlass/gemm.h: give the folder that has it"),
        ("<curand_kernel.h>", "pip install nvidia-curand"),  # of an NVRTC without headers another error
        ("<vector>", ""),
    ],
)
def test_a_missing_header_has_a_hint(header: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc, "toolkit_headers", list)
    monkeypatch.setattr(nvrtc, "compile_by_nvcc", lambda *given: None)
    with pytest.raises((CompileError, UnavailableError)) as error:
        run("ns::m", f"#include {header}\n{NAMES}\n__global__ void wrong() {{ from_the_header(); }}")
    assert hint in str(error.value)
    assert bool(hint) == ("not found" in str(error.value))
    assert "from_the_header" in str(error.value) or hint.startswith("pip")


def test_a_missing_header_that_a_toolkit_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "of_a_toolkit.h").write_text("")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "compile_by_nvcc", lambda *given: None)
    source = f"#include <of_a_toolkit.h>\n{NAMES}"
    if nvrtc.headers_needed(nvrtc.included(source, []), nvrtc.compiler()) is not None:
        run("ns::m", source)  # an NVRTC without headers is given the toolkit's folders
        return
    compiled = compile_source(source)  # it is not needed, but the log says where it is
    assert f"not found: of_a_toolkit.h: it is in {tmp_path}/include: give this folder" in compiled.log


def test_an_older_compiler_takes_the_headers_of_a_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC before 13.3 brings no headers."""
    wanted = nvrtc.included("#include <cuda/barrier>\n", [])
    assert nvrtc.headers_needed(nvrtc.included("int x;", []), "NVRTC 13.0.88") == []
    assert nvrtc.headers_needed(wanted, "NVRTC 13.3.1") is None
    monkeypatch.setattr(nvrtc, "toolkit_headers", lambda: [tmp_path])
    with pytest.raises(
        UnavailableError, match=r"cuda/barrier: .*NVRTC 13\.0\.88.*pip install nvidia-cuda-cccl"
    ) as error:
        nvrtc.headers_needed(wanted, "NVRTC 13.0.88")
    assert "\n" not in str(error.value)
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "barrier").write_text("")
    assert nvrtc.headers_needed(wanted, "NVRTC 13.0.88") == [tmp_path]


def test_names_and_folders_are_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, compile_now = [], nvrtc._compile
    monkeypatch.setattr(
        nvrtc, "_compile", lambda *given, **by_name: compiled.append(given) or compile_now(*given, **by_name)
    )
    (tmp_path / "inc").mkdir()
    for options in ({}, {"names": ["ns::k<8>"]}, {"names": ["ns::k<4>"]}, {"include": [tmp_path / "inc"]}) * 2:
        found = compile_source(NAMES, **options)
        assert list(found.lowered) == options.get("names", [])
    assert len(compiled) == 4
