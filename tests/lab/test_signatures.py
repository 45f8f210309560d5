"""Kernels and their parameters, read from the text of a file, and the command that launches one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.lab.inputs.signatures import Signature, signatures


def only(source: str) -> Signature:
    (found,) = signatures(source)
    return found


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("__global__ void k() {}", "k()"),
        ("__global__ void k(void) {}", "k()"),
        ('extern "C" __global__ void __launch_bounds__(8 * (2 + 2)) k(float *x) {}', "k(float *x)"),
        ("__launch_bounds__(256, 2) static __global__ void k(int n) {}", "k(int n)"),
        (
            "namespace a { namespace b { struct S {}; } namespace c::d { __global__ void k(int n) {} } }",
            "a::c::d::k(int n)",
        ),
        ("namespace { __global__ void k(\n  int   n) {} }", "k(int n)"),
        ("template <int N = 8, class T> __global__ void k(T x) {}", "k<int N, class T>(T x)"),
        ('// __global__ void no() {}\nconst char* t = "}{"; __global__ void k(int n) {}', "k(int n)"),
        ("__global__ void k(int n); __global__ void k(int n) {}", "k(int n)"),
        ("__global__ void k(pair<int, float> p, int n) {}", "k(pair<int, float> p, int n)"),
    ],
)
def test_what_is_read(source: str, shown: str) -> None:
    assert str(only(source)) == shown


@pytest.mark.parametrize(
    ("parameter", "argument"),
    [
        ("const float* __restrict__ x", "x:float32:1024"),
        ("double x[]", "x:float64:1024"),
        ("const __half *x", "x:float16:1024"),
        ("unsigned char* const x", "x:uint8:1024"),
        ("float4* x", "x:float32:1024x4"),
        ("float4 x", "x:float32:4"),
        ("Pair* x", "x:uint8:BYTES"),
        ("const __grid_constant__ Pair x", "x:uint8:BYTES"),
        ("unsigned long long x", "x=1024"),
        ("std::size_t x", "x=1024"),
        ("const float& x", "x=1.5"),
        ("bool x", "x=1"),
        ("const int*", "arg0:int32:1024"),
        ("unsigned int", "arg0=1024"),
    ],
)
def test_arguments_have_the_types_of_the_parameters(parameter: str, argument: str) -> None:
    found = only(f"__global__ void k({parameter}) {{}}")
    assert found.command(Path("a.cu"), None).split("--arg ")[1] == argument


def test_a_template_is_named_with_its_arguments() -> None:
    found = only("template <typename T, int N> __global__ void k(const T* x, int n) {}")
    assert found.command(Path("a.cu"), None).startswith("tilewright explain 'a.cu::k<float, 8>' --grid 8")
    own = found.command(Path("a.cu"), "k<double, 4>")
    assert own.startswith("tilewright explain 'a.cu::k<double, 4>' --grid 8")
    assert "x:float64:1024" in own


def test_a_kernel_that_reads_y_has_a_launch_of_two_dimensions() -> None:
    flat, square = signatures(
        "__global__ void f(float* x) { x[threadIdx.x] = 0; } __global__ void g(float* x, int n) { x[threadIdx.y] = n; }"
    )
    assert "--grid 8 --block 128" in flat.command(Path("a.cu"), None)
    command = square.command(Path("a.cu"), None)
    assert "--grid 2x2 --block 16x16" in command
    assert "--arg x:float32:32x32 --arg n=32" in command


def test_lines_of_a_command_fit_80_columns() -> None:
    many = ", ".join(f"const float* operand_{i}" for i in range(12))
    lines = only(f"__global__ void k({many}) {{}}").command(Path("a.cu"), None).splitlines()
    assert max(map(len, lines)) <= 78
    assert all(line.endswith(" \\") for line in lines[:-1])


@pytest.mark.parametrize(
    ("parameters", "is_product"),
    [
        ("const float* a, const float* b, float* c, int m, int n, int k", True),
        ("const half* a, const half* b, float* c, long m, long n, long k", True),
        ("const float* a, const float* b, float* c, int m, int n, float k", False),
        ("const float* a, float* b, int n", False),
    ],
)
def test_the_parameters_of_a_product(parameters: str, is_product: bool) -> None:
    assert only(f"__global__ void k({parameters}) {{}}").is_product == is_product


@pytest.mark.parametrize("parameters", ["ARGUMENTS", "float* x, MORE int n", "int n\n#if X\n, int k\n#endif\n"])
def test_a_number_of_parameters_that_macros_change_is_not_known(parameters: str) -> None:
    assert not only(f"__global__ void k({parameters}) {{}}").is_certain


def test_kernels_of_ptx_have_types_and_no_names() -> None:
    text = ".version 8.0\n.target sm_80\n.address_size 64\n"
    text += ".visible .entry _Z5scalePfif(.param .u64 p0, .param .u32 p1, .param .f32 p2)\n{\n ret;\n}\n"
    found = only(text)
    assert str(found) == "scale(pointer, .u32, .f32)"
    assert found.command(Path("a.ptx"), None).endswith("--arg arg0:float32:1024 --arg arg1=1024 --arg arg2=1.5")
