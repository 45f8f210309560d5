"""Counts that are not exact are marked where they stand, in every output, and the reason is given once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from support.cuda_sources import made
from tilewright.records.explanation import read_explanations
from tilewright.simulator.assembly.ptxas import PtxAccess, match_accesses
from tilewright.simulator.microscope import Observation

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Additions of floats in shared memory are loops of compare-and-swap in the binary, which repeat where threads conflict.
SUMS = """
extern "C" __global__ void k(const float* x, float* y)
{
    __shared__ float sums[8];
    int i = threadIdx.x;
    if (i < 8) sums[i] = 0;
    __syncthreads();
    atomicAdd(&sums[i % 8], x[i]);
    __syncthreads();
    atomicAdd(&sums[i / 8 % 8], x[i]);
    __syncthreads();
    if (i < 8) y[i] = sums[i];
}
"""
PRODUCT = """/*
idea = "It sums by shared atomics."
block = [32]
grid = ["n", "m"]
*/
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < k; p += 32) atomicAdd(&sum, a[blockIdx.y * k + p] * b[p * n + blockIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) c[blockIdx.y * n + blockIdx.x] = sum;
}
"""


def summed() -> Observation:
    return tw.microscope(SUMS, "k", 1, 64, [np.ones(64, np.float32), np.zeros(8, np.float32)])


@pytest.mark.slow
def test_counters_and_lines_are_marked() -> None:
    seen = summed()
    assert not seen.exact
    assert {name for name in seen.counters if "shared_op_atom" in name} < seen.approximate
    assert not any("global" in name or "_op_st" in name for name in seen.approximate)
    assert {(access.line, access.kind) for access in seen.accesses if not access.exact} == {(8, "atom"), (10, "atom")}
    text = str(seen)
    assert re.search(r"^ +8 +≈ \d+ +\S* +8 +atomicAdd\(&sums\[i % 8\]", text, re.MULTILINE)
    assert re.search(r"^ *≈ \d+  shared atomics, wavefronts", text, re.MULTILINE)
    assert re.search(r"^ *\d+  shared stores, wavefronts", text, re.MULTILINE)
    assert not re.search(r"≈ [\d,]+  global", text)


def test_the_reason_is_given_once_and_fits() -> None:
    seen = summed()
    (note,) = seen.notes
    assert note.startswith(
        "≈ counted as in the PTX, because the binary differs: kernel.cu:8, shared atom; kernel.cu:10, "
    )
    assert note.endswith(": the machine repeats it until no other thread interferes")
    assert max(map(len, str(seen).splitlines())) <= 80


@pytest.mark.slow
def test_a_long_title_fits() -> None:
    source = (
        'extern "C" __global__ void with_a_rather_long_name(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 1; }'
    )
    seen = tw.microscope(source, None, 1000, 32, [np.zeros(32000, np.float32)], sampled=True)
    lines = str(seen).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("  ")
    assert seen.exact
    assert "≈" not in str(seen)


@pytest.mark.slow
def test_a_sample_whose_blocks_differ() -> None:
    """Every count of it is marked."""
    source = (
        'extern "C" __global__ void k(float* x) { for (int i = 0; i < blockIdx.x; i++) x[i * 32 + threadIdx.x] = i; }'
    )
    seen = tw.microscope(source, None, 100, 32, [np.zeros(3200, np.float32)], sampled=True)
    assert not seen.exact
    assert seen.approximate == set(seen.counters)
    assert not any(access.exact for access in seen.accesses)
    assert re.search(r"≈ [\d,]+  global stores, sectors", str(seen))


@pytest.mark.slow
def test_terminal_record_and_page(tmp_path: Path, cli) -> None:
    path, record, page = tmp_path / "mine.cu", tmp_path / "mine.json", tmp_path / "mine.html"
    path.write_text(PRODUCT)
    answer = cli("explain", str(path), "--size", "32", "--report", str(page))
    assert answer.code == 0
    assert re.search(r"≈ [\d,]+ +\S* +11 +for \(int p", answer.out)
    assert answer.out.count("because the binary differs") + answer.out.count("because the\n") == 1
    assert all(len(line) <= 80 for line in answer.out.splitlines() if not line.startswith("page: "))
    brief = cli("explain", str(path), "--size", "32", "--brief").out
    assert re.search(r"^my/mine +32 +[\d,]+ +≈ [\d,]+ +", brief, re.MULTILINE)
    assert "≈" in page.read_text()
    cli("explain", str(path), "--size", "32", "--json", str(record))
    (explained,) = read_explanations(record)
    assert explained.approximate
    assert any(not access.exact for access in explained.accesses)


def test_one_reason_for_several_lines() -> None:
    def access(index: int, line: int) -> PtxAccess:
        return PtxAccess(index, "k.cu", line, "shared", "ld", (index,), 0, 4)

    machine = match_accesses([access(0, 7), access(1, 8)], [made("LDS.128", line=7), made("LDS.128", 16, line=8)])
    assert machine.notes == [
        "k.cu:7, shared ld; k.cu:8, shared ld: the PTX has 1 of 4 bytes, the machine 1 of 16 bytes, "
        "so it may make as few as 1/4 of these requests"
    ]
    assert {group[1] for group, _ in machine.doubts} == {7, 8}
