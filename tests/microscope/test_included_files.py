"""Counts and findings in included files: at their file and line, in every listing; those in headers of CUDA at the call."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from support.command_line import is_one_line
from support.measured_rungs import smallest
from tilewright.gpu.runtime import nvrtc
from tilewright.gpu.runtime.nvrtc import compile_kernel, compile_source
from tilewright.kernels.catalog import cuda_catalog
from tilewright.lab.explain.measure import CountedInstruction, counts_by_line
from tilewright.records.explanation import Access, read_explanations
from tilewright.records.source_rows import excerpt, source_rows
from tilewright.simulator.assembly import source_files
from tilewright.simulator.assembly.disassembly import disassemble, find_tool, parse_sass
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.program import link
from tilewright.simulator.microscope import Observation

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

HEADER = """#pragma once
template <typename T> struct View {
    T* data;

    __device__ void put(int i, T value) {
        data[i + 1000] = value;
    }
};
__device__ __noinline__ float column(const float* x, int i) {
    return x[32 * i];
}
"""
MAIN = """#include "views/view.cuh"
__global__ void k(float* x, float* y)
{
    int i = threadIdx.x;
    float v = column(y, i);

    y[i] = v;
    View<float>{x}.put(i, v);

    // The line in the header has the number of the line above.
}
"""
PRODUCT = """/*
idea = "Loads by an included file."
block = [8, 8]
grid = ["cdiv(n, 8)", "cdiv(m, 8)"]
*/
#include <elements.cuh>
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k)
{
    int col = blockIdx.x * 8 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0;
    for (int p = 0; p < k; p++) sum += element(a, row * k + p) * element(b, p * n + col);
    c[row * n + col] = sum;
}
"""
ELEMENTS = """// element i of a matrix, one too far
__device__ float element(const float* matrix, int i) {
    return matrix[i + 1];
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "view.cuh").write_text(HEADER)
    (tmp_path / "main.cu").write_text(MAIN)
    return tmp_path


def observed(source: Path | str, **options: object) -> Observation:
    args = [np.zeros(64, np.float32), np.zeros(2048, np.float32)]
    return tw.microscope(source, "k", 1, 32, args, **options)


def places(seen: Observation) -> dict[tuple[str, int], int]:
    return {(access.file, access.line): access.sectors for access in seen.accesses}


def test_doctests() -> None:
    assert doctest.testmod(source_files).failed == doctest.testmod(nvrtc).failed == 0


@pytest.mark.slow
def test_counts_and_findings_are_at_their_file_and_line(folder: Path) -> None:
    seen = observed(folder / "main.cu")
    header = folder / "views" / "view.cuh"
    assert places(seen) == {("", 7): 4, ("views/view.cuh", 6): 4, ("views/view.cuh", 10): 32}
    (finding,) = seen.findings
    assert (finding.file, finding.line) == (str(header), 6)
    assert str(finding).startswith(f"{header}:6: out of bounds in k")
    assert finding.text.endswith(f"(called from {folder / 'main.cu'}:8)")
    assert seen.included == {"views/view.cuh": HEADER}


@pytest.mark.slow
def test_the_listing_has_a_part_for_each_file(folder: Path) -> None:
    seen = observed(folder / "main.cu")
    lines = str(seen).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip() == "in views/view.cuh:")
    own, other = "\n".join(lines[:at]), "\n".join(lines[at:])
    assert "y[i] = v;" in own
    assert "out of bounds" not in own
    assert re.search(r"6\s+data\[i \+ 1000\] = value;\n  \^ out of bounds", other)
    assert re.search(r"32 +8\.0 +10 +return x\[32 \* i\];", other)
    html = seen._repr_html_()
    assert html.index("in views/view.cuh:") < html.index("data[i + 1000]") < html.index("out of bounds in k")


@pytest.mark.slow
def test_a_header_of_cuda_is_not_the_users() -> None:
    """The accesses of a library's function are those of the line that calls it."""
    source = """#include <cooperative_groups.h>
    #include <cuda/std/array>
    __device__ void twice(cuda::std::array<float, 4>& v) {
        for (float& x : v) x *= 2;
    }
    __global__ void k(cuda::std::array<float, 4>* x, float* y) {
        int i = cooperative_groups::this_thread_block().thread_rank();
        x[i].swap(x[i + 32]);
        twice(x[i]);
    }"""
    args = [np.zeros(256, np.float32), np.zeros(1, np.float32)]
    seen = tw.microscope(source, "k", 1, 32, args)
    assert {access.file for access in seen.accesses} == {""}
    assert {access.line for access in seen.accesses} == {4, 8}
    assert not seen.findings
    short = tw.microscope(source, "k", 1, 32, [args[0][:128], args[1]])
    assert {(f.file.endswith("kernel.cu"), f.line) for f in short.findings} == {(True, 8)}
    assert re.search(r"\(in .*:\d+\)", short.findings[0].text)


def test_calls_within_calls(folder: Path) -> None:
    """Every call on the way is known: an access in a library belongs to the innermost of the user's."""
    (folder / "main.cu").write_text(MAIN.replace("View<float>{x}.put(i, v)", "outer(x, i)"))
    (folder / "views" / "view.cuh").write_text(
        HEADER + "__device__ void inner(float* x, int i) {\n x[i] = 1;\n}\n__device__ void outer(float* x, int i) {\n"
        " inner(x, i);\n}\n"
    )
    ptx = compile_source((folder / "main.cu").read_text(), name=str(folder / "main.cu")).ptx
    program = link(parse_ptx(ptx), "_Z1kPfS_")
    store = next(ins for ins in program.code if ins.opcode.startswith("st.global") and ins.line == 13)
    assert [(Path(call.file).name, call.line) for call in store.calls] == [("view.cuh", 16), ("main.cu", 8)]
    assert store.inlined_at == store.calls[-1]


def test_ptx_shows_the_files_that_it_was_made_from(folder: Path) -> None:
    ptx = compile_source(MAIN, name=str(folder / "main.cu")).ptx
    seen = observed(ptx)
    assert set(places(seen)) == {(str(folder / "main.cu"), 7), *((str(folder / "views/view.cuh"), n) for n in (6, 10))}
    assert "main.cu:" in str(seen)
    assert "y[i] = v;" in str(seen)
    (folder / "main.cu").unlink()
    assert "y[i] = v;" not in str(observed(ptx))
    assert places(observed(ptx)) == places(seen)


def test_rows_of_several_files() -> None:
    accesses = [
        Access(2, "global", "ld", 4, 1, 128, sectors=32, least=4),
        Access(2, "global", "ld", 4, 1, 128, sectors=8, least=4, file="a.cuh"),
        Access(7, "global", "ld", 4, 1, 128, sectors=16, least=4, file="lost.cuh"),
    ]
    rows = source_rows("1\n2\n3\n4\n5", accesses, [("a.cuh", 5, "wrong")], {"a.cuh": "a\nb\nc\nd\ne\n", "lost.cuh": ""})
    shown = [(row.file, row.number, row.sectors, row.wrong) if row else None for row in excerpt(rows)]
    assert shown == [
        *[("", 1, 0, ()), ("", 2, 32, ()), ("", 3, 0, ())],
        *[
            ("a.cuh", 1, 0, ()),
            ("a.cuh", 2, 8, ()),
            ("a.cuh", 3, 0, ()),
            ("a.cuh", 4, 0, ()),
            ("a.cuh", 5, 0, ("wrong",)),
        ],
        ("lost.cuh", 7, 16, ()),
    ]


@pytest.mark.slow
def test_record_page_and_terminal(tmp_path: Path, cli) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "elements.cuh").write_text(ELEMENTS)
    path, record, page = tmp_path / "mine.cu", tmp_path / "mine.json", tmp_path / "mine.html"
    path.write_text(PRODUCT)
    command = ["explain", str(path), "--size", "16", "-I", str(tmp_path / "inc"), "--report", str(page)]
    answer = cli(*command)
    assert answer.code == 1
    assert re.search(r"in inc/elements\.cuh:\n(.*\n)+?.* 3 +return matrix\[i \+ 1\];\n +\^ out of bounds", answer.out)
    assert all(len(line) <= 80 for line in answer.out.splitlines() if not line.startswith("page: "))
    assert cli(*command, "--json", str(record)).code == 1
    (explained,) = read_explanations(record)
    assert explained.included == {"inc/elements.cuh": ELEMENTS}
    assert {(defect.file, defect.line) for defect in explained.defects} == {("inc/elements.cuh", 3)}
    text = page.read_text()
    assert "<h4>In inc/elements.cuh</h4>" in text
    (anchor,) = re.findall(r'at <a href="#([^"]+)">inc/elements\.cuh:3</a>', text)
    assert text.count(f'id="{anchor}"') == 1
    assert "inc/elements.cuh:3 moves" in text
    record.write_text(record.read_text().replace('"included": {', '"included": {"a": 1, '))
    assert is_one_line(cli("report", str(record)), "included must be an object of texts")


def test_machine_code_stands_where_the_ptx_does() -> None:
    """A store of a library is counted by a profiler at the user's line, as it is predicted."""
    library = "/usr/local/cuda/include/store.h"
    code = parse_sass(
        f'.text.f:\n\t//## File "{library}", line 3 inlined at "tile.cuh", line 5\n'
        '\t//## File "tile.cuh", line 5 inlined at "k.cu", line 9\n\t//## File "k.cu", line 9\n'
        '        /*0000*/  STG.E [R2], R5 ;\n\t//## File "k.cu", line 10\n        /*0010*/  STG.E [R2], R5 ;\n'
    )["f"]
    assert [(ins.file, ins.line) for ins in code] == [(library, 3), ("k.cu", 10)]
    assert [(ins.users.file, ins.users.line) for ins in code] == [("tile.cuh", 5), ("k.cu", 10)]
    counted = [CountedInstruction(ins.offset, ins.opcode, {"sectors": 4}) for ins in code]
    assert counts_by_line(counted, code) == {("tile.cuh", 5): {"sectors": 4}, ("k.cu", 10): {"sectors": 4}}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cuda/register_banks", "cuda/thread_columns", "cuda/async_copy"])
def test_a_rung_stores_where_its_binary_does(name: str) -> None:
    if find_tool() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    kernel = cuda_catalog()[name]
    params = smallest(kernel)
    compiled = compile_kernel(kernel, arch="sm_90", **params)
    entry = compiled.entry(kernel.entry)
    binary = {
        ins.users.line for ins in parse_sass(disassemble(compiled.cubin))[entry] if ins.memory == ("global", "st")
    }
    program = link(parse_ptx(compiled.ptx), entry)
    assert binary == {ins.users.line for ins in program.code if ins.opcode.startswith("st.global")}


WRAPPED = """__device__ __forceinline__ void put(float* x, int i) {
    x[i + 64] = i;
}
__device__ __noinline__ void put_far(float* x, int i) {
    x[i + 96] = i;
}
__global__ void k(float* x, float* y)
{
    put(x, threadIdx.x);
    put(y, threadIdx.x);
    if (threadIdx.x > 3)
        put_far(x, threadIdx.x); put_far(y, threadIdx.x);
    put_far(x, threadIdx.x);
}
"""


@pytest.mark.slow
def test_each_call_of_a_function_has_a_finding_of_its_own() -> None:
    """At the function's line, with the line of the call; two calls in one line share a finding."""
    seen = tw.microscope(WRAPPED, "k", 1, 32, [np.zeros(64, np.float32), np.zeros(64, np.float32)])
    calls = [(f.line, int(re.findall(r"called from line (\d+)", f.text)[-1])) for f in seen.findings]
    assert sorted(calls) == [(2, 9), (2, 10), (5, 12), (5, 13)]
    assert {f.kind for f in seen.findings} == {"out of bounds"}
