"""The cost model of the kernels on the CPU against a count of what their loops do, step by step, and against caches."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from tilewright.cpu.engine import cuts, jobs
from tilewright.cpu.engine.cuts import PackedBlocks
from tilewright.host.machine import machine
from tilewright.kernels.catalog import catalog
from tilewright.lab.explain import cpu_counts
from tilewright.lab.explain.cpu_counts import Side, Tiling, tiling, traffic
from tilewright.product.problem import Problem

#: What one step of a kernel's loops does: ("A" or "B", packed rows and columns) or ("tile", rows, vectors, steps, phase).
Step = tuple[Any, ...]


def packed_steps(
    blocks: PackedBlocks, m: int, n: int, k: int, size: int, kc: int, threads: int, *, straight: bool = False
) -> Iterator[Step]:
    """The job lists of a kernel, job by job, with the driver's own functions: what is packed, and every tile."""
    mr, nv, vector_bytes = blocks.mr, blocks.chosen.nv, blocks.chosen.vector_bits // 8
    lanes = vector_bytes // size
    packing = cuts.PACKING if straight else cuts.PACKING_BOTH
    vectors = math.ceil(n / lanes)
    how = cuts.cut(m, vectors, lanes, threads, packing, mr, nv, blocks.mc, vector_bytes, blocks.nc)
    for g in range(how[0]):
        across = cuts.part_start(vectors, how[0], g + 1) - cuts.part_start(vectors, how[0], g)
        yield from steps_of_group(across, threads // how[0], how[1:], mr, nv, lanes, m, k, kc)


def steps_of_group(
    vectors: int, threads: int, how: tuple[int, ...], mr: int, nv: int, lanes: int, m: int, k: int, kc: int
) -> Iterator[Step]:
    """One list of jobs: of a group with so many threads, and vectors of columns."""
    cut, job_of = cuts.part_start, cuts.job_of
    slivers, wide, bands, parts = how
    deep, tiles = math.ceil(k / kc), math.ceil(m / mr)
    count, last = bands * parts, math.ceil(slivers / wide) * deep - 1
    for job in range((wide + count) * (last + 1)):
        t, index, packs = job_of(job, wide, count, count if threads == 1 else count // 2, last)
        j, p = t // deep, t % deep
        steps = cut(k, deep, p + 1) - cut(k, deep, p)
        first, end = j * wide, min(slivers, (j + 1) * wide)
        if packs:
            if first + index < end:
                yield (
                    "B",
                    steps,
                    (cut(vectors, slivers, first + index + 1) - cut(vectors, slivers, first + index)) * lanes,
                )
            continue
        begin, stop = cut(tiles, bands, index // parts), cut(tiles, bands, index // parts + 1)
        if begin == stop:
            continue
        if index % parts == 0:  # whoever stays with a band packs it once
            yield "A", cut(m, tiles, stop) - cut(m, tiles, begin), steps
        sliver_range = (first + cut(end - first, parts, index % parts + d) for d in (0, 1))
        for s in range(*sliver_range):
            width = max(cut(vectors, slivers, s + 1) - cut(vectors, slivers, s), nv - 1)
            for x in range(begin, stop):
                rows = cut(m, tiles, x + 1) - cut(m, tiles, x)
                yield "tile", rows if rows >= mr - 1 else mr, width, steps, p


def register_tile_steps(p: dict[str, int], m: int, n: int, k: int, size: int) -> Iterator[Step]:
    """The five loops of cpu/register_tile."""
    nr = p["nv"] * p["vector_bits"] // 8 // size
    for j0 in range(0, n, p["nc"]):
        for p0 in range(0, k, p["kc"]):
            yield "B", min(p["kc"], k - p0), min(p["nc"], n - j0)
            for i0 in range(0, m, p["mc"]):
                yield "A", min(p["mc"], m - i0), min(p["kc"], k - p0)
                for _ in range(0, min(p["nc"], n - j0), nr):
                    for _ in range(0, min(p["mc"], m - i0), p["mr"]):
                        yield "tile", p["mr"], p["nv"], min(p["kc"], k - p0), p0


def counts(steps: Iterator[Step]) -> Counter[str]:
    found: Counter[str] = Counter()
    for what, *numbers in steps:
        if what == "tile":
            rows, vectors, kc, phase = numbers
            found["multiplies"] += rows * vectors * kc
            found["loads"] += (rows + vectors) * kc + (rows * vectors if phase else 0)
        else:
            found[f"blocks of {what}"] += 1
            found[f"packed {what}"] += math.prod(numbers)
    return found


SHAPES = [
    (1, 1, 1),
    (20, 100, 30),
    (64, 64, 64),
    (300, 500, 1100),
    (1000, 130, 2000),
    (7, 3000, 513),
    (2048, 600, 600),
    (400, 400, 8192),
]


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_packed_is_counted_as_its_job_list_does_it(m: int, n: int, k: int, dtype: str, threads: int) -> None:
    kernel = catalog()["cpu/packed"]
    blocks: PackedBlocks = kernel.function.__globals__["BLOCKS"]
    size, kc = (4, blocks.kc) if dtype == "float32" else (8, blocks.kc_of_8_bytes)
    straight = m // math.ceil(m / blocks.mr) >= blocks.mr - 1 and not jobs.displaced(
        k * size, m, blocks.mc, size, threads
    )
    found = counts(packed_steps(blocks, m, n, k, size, kc, threads, straight=straight))
    check(tiling(kernel, Problem(m, n, k, dtype), threads), found, m, k)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES[1:])
def test_complex_products_are_real_ones_of_twice_the_size(m: int, n: int, k: int, dtype: str, threads: int) -> None:
    kernel, size = catalog()["cpu/complex"], 4 if dtype == "complex64" else 8
    blocks: PackedBlocks = kernel.function.__globals__["BLOCKS"]
    found = counts(packed_steps(blocks, m, 2 * n, 2 * k, size, blocks.kc, threads))
    check(tiling(kernel, Problem(m, n, k, dtype), threads), found, m, 2 * k)


def check(cut: Tiling | None, found: Counter[str], m: int, k: int) -> None:
    assert cut is not None
    assert cut.multiplies == found["multiplies"]
    assert cut.loads == found["loads"]
    assert m * k * cut.a_passes == found["packed A"]
    assert cut.bands * cut.a_passes * cut.deep == found["blocks of A"]


@pytest.mark.slow_cases("600", "400")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_register_tile_is_counted_as_its_loops_do_it(m: int, n: int, k: int, dtype: str) -> None:
    small = {"mr": 3, "nv": 2, "vector_bits": 128, "kc": 100, "mc": 12, "nc": 1000}
    for params in (catalog()["cpu/register_tile"].params, small):
        kernel = dataclasses.replace(catalog()["cpu/register_tile"], params=params)
        found = counts(register_tile_steps(params, m, n, k, 4 if dtype == "float32" else 8))
        check(tiling(kernel, Problem(m, n, k, dtype), 1), found, m, k)


def test_operations_an_access_are_those_of_the_paper() -> None:
    """S3.1: wh + wK + Kh accesses for 2whK operations, counted for a K so large that wh is nothing."""
    for h, w in ((32, 64), (16, 64), (6, 64), (1, 1)):
        steps = 10**9
        assert Side(h, w).operations_per_access == pytest.approx(
            2 * w * h * steps / (w * h + w * steps + steps * h), rel=1e-6
        )


def test_kernels_without_blocks_have_what_every_kernel_needs() -> None:
    problem, here = Problem(3000, 2000, 1000, "float32"), machine()
    naive, blocked = catalog()["cpu/naive"], catalog()["cpu/blocked"]
    assert tiling(naive, problem, 1) is None
    assert [t.bytes for t in traffic(naive, problem, 1, dataclasses.replace(here, caches=()))] == [
        None,
        *[problem.bytes_least] * 3,
    ]
    # S1.7 for blocks of h × w: mnk (1/w + 1/h) + mn elements
    expected = 4 * (3000 * 2000 * 1000 * (1 / 128 + 1 / 256) + 3000 * 2000)
    assert traffic(blocked, problem, 1, here)[2].bytes == pytest.approx(expected)
    assert cpu_counts.vector_multiplies(catalog()["cpu/strassen_fused"], problem, 1) is None


# ---- against caches --------------------------------------------------------------------------------------------------


class Caches:
    """Three levels that forget what was not used for longest; lines that each brings in are counted."""

    def __init__(self, *sizes: int) -> None:
        self.lines = [size // 64 for size in sizes]
        self.held: list[OrderedDict[int, None]] = [OrderedDict() for _ in sizes]
        self.brought = [0] * len(sizes)

    def touch(self, address: int, nbytes: int) -> None:
        for line in range(address // 64, (address + nbytes - 1) // 64 + 1):
            for level, held in enumerate(self.held):
                if line in held:
                    held.move_to_end(line)
                    break
                held[line] = None
                self.brought[level] += 1
                if len(held) > self.lines[level]:
                    held.popitem(last=False)


def run_through(caches: Caches, p: dict[str, int], size: int) -> None:
    """C = A·B for matrices of ``size`` float32, packed by the five loops: every access in its order."""
    nr, row = p["nv"] * p["vector_bits"] // 32, 4 * size
    a_at, b_at, c_at, block, panel = (i << 24 for i in range(1, 6))
    for p0 in range(0, size, p["kc"]):
        kc = min(p["kc"], size - p0)
        for step in range(kc):
            for j in range(0, size, nr):
                caches.touch(b_at + (p0 + step) * row + 4 * j, 4 * nr)
                caches.touch(panel + 4 * (j * kc + step * nr), 4 * nr)
        for i0 in range(0, size, p["mc"]):
            high = min(p["mc"], size - i0)
            for i in range(high):
                caches.touch(a_at + (i0 + i) * row + 4 * p0, 4 * kc)
                caches.touch(block + 4 * i * kc, 4 * kc)
            for j in range(0, size, nr):
                for i in range(0, high, p["mr"]):
                    for step in range(0, kc, 16):
                        for r in range(p["mr"]):
                            caches.touch(block + 4 * ((i + r) * kc + step), 64)
                        caches.touch(panel + 4 * (j * kc + step * nr), 64 * nr)
                    for r in range(p["mr"]):
                        caches.touch(c_at + (i0 + i + r) * row + 4 * j, 4 * nr)


@pytest.mark.slow_cases("a sliver of B streams from L2 for every tile, a panel from L3 for every block")
@pytest.mark.parametrize(
    ("l1", "l2", "l3", "what"),
    [
        (2 << 10, 24 << 10, 1 << 20, "a sliver of B streams from L2 for every tile, a panel from L3 for every block"),
        (8 << 10, 24 << 10, 1 << 20, "a sliver of B stays in L1 from tile to tile"),
        (2 << 10, 24 << 10, 96 << 10, "the operands come from memory"),
        (2 << 10, 128 << 10, 1 << 20, "a panel of B stays in L2 from block to block"),
    ],
)
def test_expected_traffic_is_what_caches_bring_in(l1: int, l2: int, l3: int, what: str) -> None:
    params = {"mr": 4, "nv": 4, "vector_bits": 128, "kc": 64, "mc": 32, "nc": 4096}
    size = 192
    caches = Caches(l1, l2, l3)
    run_through(caches, params, size)
    after_one = list(caches.brought)
    run_through(caches, params, size)  # the model's caches are warm
    second = [both - first for both, first in zip(caches.brought, after_one, strict=True)]
    kernel = dataclasses.replace(catalog()["cpu/register_tile"], params=params)
    levels = traffic(kernel, Problem(size, size, size, "float32"), 1, with_caches(l1, l2, l3))
    for level, lines in zip(levels[1:], second, strict=True):
        assert level.bytes is not None
        assert level.bytes / 64 == pytest.approx(lines, rel=0.15, abs=size), f"{what}: into {level.into}"


def with_caches(*sizes: int) -> Any:
    from tilewright.host.machine import Cache

    kinds = [Cache(level, "Data" if level == 1 else "Unified", size, line=64) for level, size in enumerate(sizes, 1)]
    return dataclasses.replace(machine(), caches=tuple(kinds))
