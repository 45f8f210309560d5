"""printf in a kernel: every conversion, the order of the threads, the limit, and where it is shown."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.simulator.machine import printed
from tilewright.simulator.machine.printed import MOST_PRINTED, formatted

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")

FORMS = r"""
#include <cstdio>
__device__ char word[] = "variable";
extern "C" __global__ void k(const float* x, long long big)
{
    printf("%d %i %u %5d|%-5d|%05d|%+d\n", -7, 8, 4000000000u, 42, 42, 42, 42);
    printf("%x %X %#x %o %c%c %%\n", 255, 255, 255, 8, 'o', 'k');
    printf("%f %.2f %8.3f|%e %g %G\n", x[0], x[1], x[2], 12345.678, 0.0001, 1e-10);
    printf("%lld %llu %ld %llx %hd %hhu\n", big, 18446744073709551615ull, -5l, big, (short)-3, (unsigned char)200);
    printf("%s|%10s|%-10s|%.3s %s\n", "text", "right", "left", "truncated", word);
    printf("%*d|%.*f\n", 6, 12, 2, 3.14159);
    printf("%f %f %f\n", 1.0f / 0.0f, -1.0f / 0.0f, 0.0f);
    printf("nothing to fill in\n");
    printf("%p\n", (void*)0);
}
"""
ORDER = r"""
#include <cstdio>
extern "C" __global__ void k(int lines)
{
    for (int i = 0; i < lines; i++) {
        if (threadIdx.x % 2) printf("odd %d.%d.%d\n", blockIdx.x, threadIdx.x, i);
        else printf("even %d.%d.%d\n", blockIdx.x, threadIdx.x, i);
    }
}
"""
PRODUCT = r"""/*
idea = "It says what it does."
block = [8, 8]
grid = ["cdiv(n, 8)", "cdiv(m, 8)"]
*/
#include <stdio.h>
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k)
{
    int col = blockIdx.x * 8 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0;
    for (int p = 0; p < k; p++) sum += a[row * k + p] * b[p * n + col];
    c[row * n + col] = sum;
    if (row == col) printf("row <%d>\n", row);
}
"""


def test_doctests() -> None:
    assert doctest.testmod(printed).failed == 0


def test_every_conversion() -> None:
    seen = tw.microscope(FORMS, "k", 1, 1, [np.array([1.5, 2.25, -3], np.float32), -(1 << 40)])
    assert seen.findings == []
    assert seen.printed.splitlines() == [
        "-7 8 4000000000    42|42   |00042|+42",
        "ff FF 0xff 10 ok %",
        "1.500000 2.25   -3.000|1.234568e+04 0.0001 1E-10",
        "-1099511627776 18446744073709551615 -5 ffffff0000000000 -3 200",
        "text|     right|left      |tru variable",
        "    12|3.14",
        "inf -inf 0.000000",
        "nothing to fill in",
        "0x0",
    ]


def test_in_order_of_block_and_thread() -> None:
    seen = tw.microscope(ORDER, "k", 3, 40, [2])
    lines = [tuple(map(int, re.findall(r"\d+", line))) for line in seen.printed.splitlines()]
    assert lines == [(block, thread, i) for block in range(3) for thread in range(40) for i in range(2)]


def test_there_is_a_limit() -> None:
    seen = tw.microscope(ORDER, "k", 1, 64, [100])
    *lines, last = seen.printed.splitlines()
    assert len(lines) == MOST_PRINTED
    assert last == f"… and {6400 - MOST_PRINTED:,} calls of printf more, which are not shown"


def test_a_format_and_arguments_that_do_not_fit() -> None:
    assert formatted("%d %s %d", b"\1\0\0\0", lambda address: f"<{address}>") == "1 <0> 0"
    assert formatted("%q %", b"", str) == "%q %"
    assert len(formatted("%999999999d", b"", str)) == 1 << 16


def test_an_address_that_is_not_valid_prints_nothing() -> None:
    source = """#include <cstdio>
    extern "C" __global__ void k(const char* text) { printf("[%s]\\n", text); }"""
    assert tw.microscope(source, "k", 1, 1, [None]).printed == "[]\n"
    assert tw.microscope(source, "k", 1, 1, [np.frombuffer(b"abc", np.uint8)]).printed == "[abc]\n"


def test_it_is_shown() -> None:
    seen = tw.microscope(ORDER, "k", 1, 2, [1])
    assert "printed:\neven 0.0.0\nodd 0.1.0\n\n" in str(seen)
    assert "odd 0.1.0" in seen._repr_html_()
    quiet = tw.microscope(ORDER, "k", 1, 2, [0])
    assert quiet.printed == ""
    assert "printed" not in str(quiet)


@pytest.mark.slow
def test_terminal_record_and_page(tmp_path: Path, cli) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PRODUCT)
    answer = cli("explain", str(path), "--size", "8", "--report", str(tmp_path / "page.html"))
    assert answer.code == 0
    lines = "".join(f"row <{i}>\n" for i in range(8))
    assert f"printed:\n{lines}" in answer.out
    assert "<pre>row &lt;0&gt;" in (tmp_path / "page.html").read_text()
    assert json.loads(cli("explain", str(path), "--size", "8", "--json", "-").out)["printed"] == lines
