"""Accesses without a lock: loops of compare-and-swap, which are no races, and volatile, which orders no two warps."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.simulator.findings import BY_THE_LETTER, SURE

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")

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


@pytest.mark.slow
def test_a_sum_by_compare_and_swap_is_no_race() -> None:
    x = np.arange(256, dtype=np.float64)
    seen = tw.microscope(SWAPS, "k", 4, 64, [x, np.zeros(2), np.zeros(1, np.float32)])
    assert seen.findings == []
    assert seen.arrays[1].tolist() == [x.sum(), x.sum()]
    assert seen.arrays[2].tolist() == [255]


@pytest.mark.slow_cases("// more", "old = *bits, seen;")
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


# ---- volatile --------------------------------------------------------------------------------------------------------

REDUCTION = """
extern "C" __global__ void k(const float* x, float* y)
{
    __shared__ volatile float sums[256];
    int t = threadIdx.x;
    sums[t] = x[t];
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (t < step) sums[t] += sums[t + step];
        BARRIER;
    }
    if (t == 0) y[0] = sums[0];
}
"""
FLAG = """
extern "C" __global__ void k(const float* x, float* y)
{
    __shared__ volatile int full;
    __shared__ volatile float value;
    int t = threadIdx.x;
    if (t == 0) full = 0;
    __syncthreads();
    for (int round = 0; round < 3; round++) {
        if (t == 32) {
            while (full == 1);
            value = x[round];
            FENCE;
            full = 1;
        }
        if (t == 0) {
            while (full == 0);
            y[round] = value;
            __threadfence_block();
            full = 0;
        }
    }
}
"""


@pytest.mark.slow
def test_a_reduction_of_volatile_sums() -> None:
    """Volatile orders no threads: between warps there must be a barrier, within one ``__syncwarp()``."""
    x = np.arange(256, dtype=np.float32)

    def run(barrier: str) -> tuple[set[tuple[str, str]], float]:
        source = REDUCTION.replace("BARRIER", barrier)
        args = [x, np.zeros(1, np.float32)]
        return found(source, 1, 256, args), float(tw.microscope(source, "k", 1, 256, args).arrays[1][0])

    assert run("__syncthreads()") == (set(), x.sum())
    assert run("if (step > 32) __syncthreads(); else __syncwarp()") == (set(), x.sum())
    between = {("volatile race", "if (t < step) sums[t] += sums[t + step];")}
    assert run("(void)0")[0] == run("__syncwarp()")[0] == between
    assert run("if (step > 32) __syncthreads()") == (between, x.sum())


def test_within_a_warp_it_works_today() -> None:
    """A reduction without __syncwarp() in its last steps: PTX does not promise it since sm_70."""
    args = [np.ones(256, np.float32), np.zeros(1, np.float32)]
    seen = tw.microscope(REDUCTION.replace("BARRIER", "if (step > 32) __syncthreads()"), "k", 1, 256, args)
    (finding,) = seen.findings
    assert finding.grade == BY_THE_LETTER
    assert "(__syncwarp() or a barrier would, volatile does not since sm_70)" in finding.text
    assert "1 finding (1 by the letter of PTX)" in str(seen).splitlines()[0]
    worse = tw.microscope(REDUCTION.replace("BARRIER", "(void)0"), "k", 1, 256, args)
    assert [each.grade for each in worse.findings] == [SURE], "of one line the gravest grade counts"


def test_its_text_says_what_to_do() -> None:
    source = REDUCTION.replace("BARRIER", "(void)0")
    (finding,) = tw.microscope(source, "k", 1, 256, [np.ones(256, np.float32), np.zeros(1, np.float32)]).findings
    assert finding.kind == "volatile race"
    assert (
        "wrote at line 9, with no barrier between (volatile orders no two warps, __syncthreads() does)" in finding.text
    )


@pytest.mark.slow
def test_a_volatile_flag() -> None:
    """A flag that a loop polls is how two warps signal; the data behind it need a fence."""
    x = np.arange(3, dtype=np.float32) + 1
    args = [x, np.zeros(3, np.float32)]
    seen = tw.microscope(FLAG.replace("FENCE", "__threadfence_block()"), "k", 1, 64, args)
    assert seen.findings == []
    assert (seen.arrays[1] == x).all()
    assert found(FLAG.replace("FENCE", "(void)0"), 1, 64, args) == {("volatile race", "y[round] = value;")}


@pytest.mark.slow
def test_a_flag_that_every_warp_sets_is_no_race() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y)
    {
        __shared__ volatile int any;
        if (threadIdx.x == 0) any = 0;
        __syncthreads();
        if (x[threadIdx.x] > 0) any = 1;
        if (threadIdx.x == 64) any = VALUE;
        __syncthreads();
        y[threadIdx.x] = any;
    }"""
    args = [np.ones(128, np.float32), np.zeros(128, np.float32)]
    assert found(source.replace("VALUE", "1"), 1, 128, args) == set()
    assert {kind for kind, _ in found(source.replace("VALUE", "2"), 1, 128, args)} == {"volatile race"}
