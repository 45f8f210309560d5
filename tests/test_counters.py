"""Counting: every measured pattern exactly, sectors of the textbook accesses, and laws that any rule must obey."""

from __future__ import annotations

import doctest
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.lab.simt import counters
from tilewright.lab.simt.counters import IDLE, Counters, by_warp, global_sectors, local_sectors, shared_wavefronts
from tilewright.lab.simt.sass import Access, Machine

DATA = Path(__file__).parent / "data"
MEASURED = [json.loads(line) for line in (DATA / "shared-memory-wavefronts-h200.jsonl").read_text().splitlines()]
LANES = np.arange(32)


def shared(addresses: Any, nbytes: int, load: bool = True) -> tuple[int, int]:
    """Wavefronts and conflicts of one warp."""
    wavefronts, passes = shared_wavefronts(np.asarray(addresses, dtype=np.int64)[None, :], nbytes, merges=load)
    return int(wavefronts[0]), int(wavefronts[0] - passes[0])


def only(addresses: Any, active: Any) -> np.ndarray:
    return np.where(active, addresses, IDLE)


def test_doctests() -> None:
    assert doctest.testmod(counters).failed == 0


def test_all_measured_patterns() -> None:
    """360 patterns counted on an H200: wavefronts and conflicts, alone and all warps at once."""
    assert len(MEASURED) == 360
    for access in ("ld4", "ld8", "ld16", "st4", "st8", "st16"):
        rows = [row for row in MEASURED if row["access"] == access]
        table = 4 * np.array([row["word_offsets"] for row in rows])
        nbytes, load = int(access[2:]), access[:2] == "ld"
        wavefronts, passes = shared_wavefronts(table, nbytes, merges=load)
        assert wavefronts.tolist() == [row["wavefronts"] for row in rows]
        assert (wavefronts - passes).tolist() == [row["bank_conflicts"] for row in rows]
        for row, addresses in zip(rows, table, strict=True):
            assert shared(addresses, nbytes, load) == (row["wavefronts"], row["bank_conflicts"]), row["pattern"]


@pytest.mark.parametrize(
    ("what", "addresses", "nbytes", "sectors"),
    [
        ("coalesced floats", 4 * LANES, 4, 4),
        ("coalesced backwards", 4 * LANES[::-1], 4, 4),
        ("broadcast", 0 * LANES + 64, 4, 1),
        ("stride 2", 8 * LANES, 4, 8),
        ("stride 32", 128 * LANES, 4, 32),
        ("off by one float", 4 * LANES + 4, 4, 5),
        ("float4", 16 * LANES, 16, 16),
        ("float2", 8 * LANES, 8, 8),
        ("bytes", LANES, 1, 1),
        ("bytes off by one", LANES + 1, 1, 2),
        ("halves", 2 * LANES, 2, 2),
        ("8 lanes", only(4 * LANES, LANES < 8), 4, 1),
        ("one lane", only(4 * LANES, LANES == 31), 4, 1),
        ("odd lanes", only(4 * LANES, LANES % 2 == 1), 4, 4),
        ("one a sector", only(4 * LANES, LANES % 8 == 3), 4, 4),
        ("no lane", only(4 * LANES, LANES < 0), 4, 0),
        ("misaligned float4", 16 * LANES + 8, 16, 17),
        ("32 bytes a lane", 32 * LANES, 32, 32),
    ],
)
def test_sectors(what: str, addresses: np.ndarray, nbytes: int, sectors: int) -> None:
    for base in (0, 1 << 20, 1 << 40):
        table = np.where(addresses == IDLE, IDLE, addresses + base)[None, :]
        assert global_sectors(table, nbytes).tolist() == [sectors], what


def test_local_memory_is_interleaved_by_word() -> None:
    assert local_sectors(0 * LANES[None, :] + 12, 4).tolist() == [4]
    assert local_sectors(0 * LANES[None, :], 16).tolist() == [16]
    assert local_sectors(only(0 * LANES, LANES < 8)[None, :], 4).tolist() == [1]


def test_narrow_shared_accesses_go_by_their_words() -> None:
    assert shared(LANES, 1) == (1, 0)
    assert shared(2 * LANES, 2) == (1, 0)
    assert shared(128 * LANES + 1, 1) == (32, 31)


def test_lanes_that_are_not_active_cost_nothing() -> None:
    column = 128 * LANES
    assert shared(only(column, LANES < 5), 4) == (5, 4)
    assert shared(only(16 * LANES, LANES < 8), 16) == (1, 0)
    assert shared(only(16 * LANES, LANES == 9), 16) == (1, 0)
    assert shared(only(16 * LANES, LANES < 0), 16) == (0, 0)


aligned = st.sampled_from([4, 8, 16]).flatmap(
    lambda nbytes: st.tuples(
        st.just(nbytes),
        st.lists(st.integers(0, 255), min_size=32, max_size=32).map(lambda xs: nbytes * np.array(xs, dtype=np.int64)),
        st.lists(st.booleans(), min_size=32, max_size=32).map(np.array),
        st.booleans(),
    )
)


def slow_rule(addresses: np.ndarray, nbytes: int, load: bool) -> tuple[int, int]:
    """The rule as the notes of the measurement word it, lane by lane."""

    def agrees(group: list[int], step: int) -> bool:
        pairs = ((addresses[i], addresses[i ^ step]) for i in group)
        return all(a == b or IDLE in (a, b) for a, b in pairs)

    lanes = list(range(32))
    size = 32 * 4 // max(4, nbytes)
    passes = [lanes[i : i + size] for i in range(0, 32, size)]
    if load and nbytes > 4:
        pairs = [a + b for a, b in zip(passes[::2], passes[1::2], strict=True)]
        split = list(zip(passes[::2], passes[1::2], strict=True))
        passes = []
        for whole, halves in zip(pairs, split, strict=True):
            passes += [whole] if agrees(whole, 1) or agrees(whole, 2) else list(halves)
    costs = []
    for group in passes:
        words = {int(addresses[i]) // 4 + j for i in group if addresses[i] != IDLE for j in range(nbytes // 4)}
        costs.append(max((sum(w % 32 == bank for w in words) for bank in range(32)), default=0))
    return sum(costs), sum(costs) - sum(cost > 0 for cost in costs)


@given(aligned)
def test_shared_rule_word_by_word(case: Any) -> None:
    nbytes, addresses, active, load = case
    given_ = only(addresses, active)
    assert shared(given_, nbytes, load) == slow_rule(given_, nbytes, load)


@given(aligned)
def test_shared_bounds(case: Any) -> None:
    nbytes, addresses, active, load = case
    wavefronts, conflicts = shared(only(addresses, active), nbytes, load)
    passes = nbytes // 4
    assert 0 <= conflicts <= wavefronts - (1 if active.any() else 0)
    assert (1 if active.any() else 0) <= wavefronts <= 32
    assert wavefronts - conflicts <= passes
    if active.all():
        assert wavefronts >= (passes if not load else max(1, passes // 2))


@given(aligned, st.integers(0, 64), st.randoms(use_true_random=False))
def test_what_must_not_matter(case: Any, shift: int, random: Any) -> None:
    """Moving all addresses; the order of lanes within a pass; which of two warps comes first."""
    nbytes, addresses, active, _ = case
    before = shared(only(addresses, active), nbytes, load=False)
    assert shared(only(addresses + shift * nbytes, active), nbytes, load=False) == before
    size = 128 // nbytes
    order = [i for g in range(0, 32, size) for i in random.sample(range(g, g + size), size)]
    assert shared(only(addresses, active)[order], nbytes, load=False) == before
    anywhere = random.sample(range(32), 32)
    table = only(addresses, active)
    both = global_sectors(np.stack([table, table[anywhere]]), nbytes)
    assert both[0] == both[1] == len({int(a) // 32 for a in table if a != IDLE})


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 31)), unique=True), st.randoms(use_true_random=False))
def test_table_of_any_order(threads: list[tuple[int, int]], random: Any) -> None:
    random.shuffle(threads)
    warps, lanes = (np.array([t[i] for t in threads], dtype=np.int64) for i in (0, 1))
    ids, table = by_warp(warps, lanes, 1000 * warps + lanes)
    assert ids.tolist() == sorted({w for w, _ in threads})
    assert {(int(ids[r]), int(c)) for r, c in np.argwhere(table != IDLE)} == set(threads)
    assert all(table[r, c] == 1000 * ids[r] + c for r, c in np.argwhere(table != IDLE))


def instruction(index: int, line: int) -> Any:
    return SimpleNamespace(index=index, file="k.cu", line=line)


def test_counters_by_line_and_instruction() -> None:
    watch = Counters()
    warps, lanes = np.repeat([3, 8], 32), np.tile(LANES, 2)
    watch.on_access("global", "ld", instruction(5, 10), warps, lanes, 4 * lanes, 4)
    watch.on_access("global", "ld", instruction(5, 10), warps, lanes, 0 * lanes, 4)
    watch.on_access("global", "ld", instruction(6, 11), warps[:32], LANES, 128 * LANES, 4)
    watch.on_access("shared", "st", instruction(7, 11), warps, lanes, 128 * lanes, 4)
    watch.on_access("param", "ld", instruction(8, 12), warps, lanes, 0 * lanes, 4)
    sectors, requests = (f"l1tex__t_{x}_pipe_lsu_mem_global_op_ld.sum" for x in ("sectors", "requests"))
    assert (watch.total()[sectors], watch.total()[requests]) == (2 * 4 + 2 * 1 + 32, 5)
    assert {line: c[sectors] for line, c in watch.by_line().items()} == {("k.cu", 10): 10, ("k.cu", 11): 32}
    assert watch.by_instruction()[7]["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"] == 62
    assert watch.total()["l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"] == 64
    row = next(row for row in str(watch).splitlines() if sectors in row)
    assert row.split()[0] == "42"
    assert "global loads, sectors: 32 bytes moved each" in row
    assert set(watch.total()) <= set(counters.LABELS)


def test_widths_learnt_from_the_binary() -> None:
    """Four neighbouring loads that the machine issues as one of 16 bytes: the first counts, the others do not."""
    watch = Counters(Machine(widths={0: 16, 1: 0, 2: 0, 3: 0}))
    for i in range(4):
        watch.on_access("shared", "ld", instruction(i, 1), 0 * LANES, LANES, 0 * LANES + 4 * i, 4)
    total = watch.total()
    assert total["smsp__inst_executed_op_shared_ld.sum"] == 1
    assert total["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 2
    assert total["smsp__sass_data_bytes_mem_shared_op_ld.sum"] == 512


def test_guarded_access_is_issued_with_its_block() -> None:
    """Store 1 runs for one warp of two and store 2 for none; both are issued as often as store 0."""
    issues = {Access(i, "k.cu", 9, "shared", "st", (), 0, 16): 0 for i in (1, 2)}
    watch = Counters(Machine(issues=issues))
    warps, lanes = np.repeat([0, 1], 32), np.tile(LANES, 2)
    watch.on_access("shared", "st", instruction(0, 9), warps, lanes, 16 * lanes, 16)
    watch.on_access("shared", "st", instruction(1, 9), warps[:32], LANES, 16 * LANES, 16)
    total = watch.by_line()["k.cu", 9]
    assert total["smsp__inst_executed_op_shared_st.sum"] == 6
    assert total["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == 12


@pytest.mark.parametrize("space", ["global", "shared"])
def test_regular_accesses_of_many_warps_are_fast(space: str) -> None:
    """65,536 lanes take a fifth of a millisecond; ten are allowed for a busy machine."""
    threads = np.arange(65536)
    watch, best = Counters(), 1.0
    for _ in range(5):
        start = time.perf_counter()
        watch.on_access(space, "ld", instruction(0, 1), threads // 32, threads % 32, 4 * threads, 4)
        best = min(best, time.perf_counter() - start)
    assert best < 0.01
