"""Accesses without a lock: loops of compare-and-swap, which are no races, and volatile, which orders no two warps."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

SWAPS = """
__device__ double add(double* address, double value)
{
    unsigned long long* bits = (unsigned long long*)address;
    unsigned long long old = *bits, seen;
    do {
        seen = old;
        old = atomicCAS(bits, seen, __double_as_longlong(value + __longlong_as_double(seen)));
    } while (seen != old);
    return __longlong_as_double(old);
}
__device__ void most(float* address, float value)
{
    int old = __float_as_int(*address);
    while (value > __int_as_float(old)) {
        int seen = atomicCAS((int*)address, old, __float_as_int(value));
        if (seen == old) break;
        old = seen;
    }
}
extern "C" __global__ void k(const double* x, double* sums, float* largest)
{
    __shared__ double sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    double mine = x[blockIdx.x * blockDim.x + threadIdx.x];
    add(&sums[0], mine);
    add(&sum, mine);
    most(largest, (float)mine);
    __syncthreads();
    if (threadIdx.x == 0) add(&sums[1], sum);
    // more
}
"""


def found(source: str, grid: int, block: int, args: list[object], **options: object) -> set[tuple[str, str]]:
    """Kind and text of the line of each finding."""
    seen = tw.microscope(source, "k", grid, block, args, **options)
    lines = source.split("\n")
    return {(finding.kind, lines[finding.line - 1].strip()) for finding in seen.findings}


# ---- compare-and-swap ------------------------------------------------------------------------------------------------


def swapped(source: str) -> set[tuple[str, str]]:
    return found(source, 4, 64, [np.ones(256), np.zeros(2), np.zeros(1, np.float32)])


def test_a_sum_by_compare_and_swap_is_no_race() -> None:
    x = np.arange(256, dtype=np.float64)
    seen = tw.microscope(SWAPS, "k", 4, 64, [x, np.zeros(2), np.zeros(1, np.float32)])
    assert seen.findings == []
    assert seen.arrays[1].tolist() == [x.sum(), x.sum()]
    assert seen.arrays[2].tolist() == [255]


@pytest.mark.parametrize(
    ("changed", "into", "kind", "line"),
    [
        ("add(&sums[0], mine);", "sums[0] += mine;", "race", "sums[0] += mine;"),
        ("// more", "x = &sums[0]; if (*x > 1e9) largest[0] = 1;", "race", "x = &sums[0];"),
        ("old = *bits, seen;", "old = bits[1], seen;", "race", "old = atomicCAS(bits, seen, __double_as"),
        ("if (threadIdx.x == 0) sum = 0;", "", "unwritten read", "unsigned long long old = *bits, seen;"),
    ],
)
def test_what_is_a_race_all_the_same(changed: str, into: str, kind: str, line: str) -> None:
    """Other accesses race with the atomics as before, and so does a load at another address than theirs."""
    findings = swapped(SWAPS.replace(changed, into, 1))
    assert any(each == kind and text.startswith(line) for each, text in findings), findings
