"""Sectors of the textbook accesses, and laws that any rule of sectors and wavefronts must obey."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.simulator.counters.sectors import IDLE, by_warp, global_sectors, local_sectors
from tilewright.simulator.counters.tally import copy_wavefronts, shared_wavefronts

LANES = np.arange(32)


def shared(addresses: Any, nbytes: int, kind: str = "ld") -> tuple[int, int]:
    """Wavefronts and conflicts of one warp."""
    wavefronts, passes = shared_wavefronts(np.asarray(addresses, dtype=np.int64)[None, :], nbytes, kind)
    return int(wavefronts[0]), int(wavefronts[0] - passes[0])


def only(addresses: Any, active: Any) -> np.ndarray:
    return np.where(active, addresses, IDLE)


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
    )
)


kinds = st.sampled_from(["ld", "st", "atom"])


def slow_rule(addresses: np.ndarray, nbytes: int, kind: str) -> tuple[int, int]:
    """The rule as the notes of the measurement word it, lane by lane."""

    def agree(step: int) -> bool:
        pairs = ((addresses[i], addresses[i ^ step]) for i in range(32))
        return all(a == b or IDLE in (a, b) for a, b in pairs)

    size = 32 * 4 // max(4, nbytes)
    if kind == "ld" and nbytes > 4 and (agree(1) or agree(2)):
        size *= 2
    costs = []
    for first in range(0, 32, size):
        lanes = [int(addresses[i]) for i in range(first, first + size) if addresses[i] != IDLE]
        words = [at // 4 + j for at in (lanes if kind == "atom" else set(lanes)) for j in range(nbytes // 4)]
        costs.append(max((sum(w % 32 == bank for w in words) for bank in range(32)), default=0))
    return sum(costs), sum(costs) - sum(cost > 0 for cost in costs)


@pytest.mark.slow
@given(aligned, kinds)
def test_shared_rule_word_by_word(case: Any, kind: str) -> None:
    nbytes, addresses, active = case
    given_ = only(addresses, active)
    assert shared(given_, nbytes, kind) == slow_rule(given_, nbytes, kind)


@pytest.mark.slow
@given(aligned, kinds)
def test_shared_bounds(case: Any, kind: str) -> None:
    nbytes, addresses, active = case
    wavefronts, conflicts = shared(only(addresses, active), nbytes, kind)
    passes = nbytes // 4
    assert 0 <= conflicts <= wavefronts - (1 if active.any() else 0)
    assert (1 if active.any() else 0) <= wavefronts <= 32
    assert wavefronts - conflicts <= passes
    if active.all():
        assert wavefronts >= (max(1, passes // 2) if kind == "ld" else passes)


@pytest.mark.slow
@given(aligned, kinds.filter(lambda kind: kind != "ld"), st.integers(0, 64), st.randoms(use_true_random=False))
def test_what_must_not_matter(case: Any, kind: str, shift: int, random: Any) -> None:
    """Moving all addresses; the order of lanes within a pass; which of two warps comes first."""
    nbytes, addresses, active = case
    before = shared(only(addresses, active), nbytes, kind)
    assert shared(only(addresses + shift * nbytes, active), nbytes, kind) == before
    size = 128 // nbytes
    order = [i for g in range(0, 32, size) for i in random.sample(range(g, g + size), size)]
    assert shared(only(addresses, active)[order], nbytes, kind) == before
    anywhere = random.sample(range(32), 32)
    table = only(addresses, active)
    both = global_sectors(np.stack([table, table[anywhere]]), nbytes)
    assert both[0] == both[1] == len({int(a) // 32 for a in table if a != IDLE})


@pytest.mark.slow
@given(aligned)
def test_copies_of_what_lies_side_by_side_cost_as_atomics(case: Any) -> None:
    nbytes, addresses, active = case
    targets = only(addresses, active)[None, :]
    wavefronts, passes = copy_wavefronts(nbytes * LANES[None, :], targets, nbytes)
    assert (int(wavefronts[0]), int(wavefronts[0] - passes[0])) == shared(targets[0], nbytes, "atom")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 31)), unique=True), st.randoms(use_true_random=False))
def test_table_of_any_order(threads: list[tuple[int, int]], random: Any) -> None:
    random.shuffle(threads)
    warps, lanes = (np.array([t[i] for t in threads], dtype=np.int64) for i in (0, 1))
    ids, table = by_warp(warps, lanes, 1000 * warps + lanes)
    assert ids.tolist() == sorted({w for w, _ in threads})
    assert {(int(ids[r]), int(c)) for r, c in np.argwhere(table != IDLE)} == set(threads)
    assert all(table[r, c] == 1000 * ids[r] + c for r, c in np.argwhere(table != IDLE))
