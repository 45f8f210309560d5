"""The layers of k: a function of the shape, whole parts of the kernels, a fixed tree."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.matrices import operands
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.cpu.runtime.runner import runner
from tilewright.large.cluster.layers import add_layers, cut_layers, layers, share_layers
from tilewright.large.streaming.places.rates import kc_of
from tilewright.large.streaming.plan.grid import part_count, part_edge


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 1 << 34))
def test_a_number_of_layers(m: int, n: int, k: int) -> None:
    count = layers(m, n, k)
    assert count == layers(n, m, k)
    assert count in (1, 2, 4, 8, 16, 32, 64)
    if count > 1:
        assert m * n <= 4096**2
        assert k >= 16 * max(m, n)
        assert k // count >= 4 * max(m, n, 1024)
        assert count == 64 or k // (2 * count) < 4 * max(m, n, 1024), "twice as many would fit"


@pytest.mark.parametrize("shape", [(0, 5, 10**9), (5, 0, 10**9), (5, 5, 0), (4096, 4096, 65535), (8192, 8192, 10**9)])
def test_one_layer(shape: tuple[int, int, int]) -> None:
    assert layers(*shape) == 1


@settings(max_examples=200)
@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 64))
def test_the_engine_cuts_every_layer_as_it_cuts_all_of_k(k: int, kc: int, count: int) -> None:
    cut = cut_layers(k, kc, count)
    assert len(cut) == min(count, part_count(k, kc))
    assert [layer.stop for layer in cut] == [*(layer.start for layer in cut[1:]), k]
    ends, whole = [0], part_count(k, kc)
    for layer in cut:
        length = layer.stop - layer.start
        parts = part_count(length, kc)
        ends += [layer.start + part_edge(length, parts, number) for number in range(1, parts + 1)]
    assert ends == [part_edge(k, whole, number) for number in range(whole + 1)]


@given(st.integers(0, 6), st.integers(1, 9), st.lists(st.integers(1, 8), min_size=1, max_size=9))
def test_each_worker_gets_layers_that_follow_one_another_by_its_threads(
    log: int, tiles: int, threads: list[int]
) -> None:
    count, workers = 1 << log, {f"w{number}": each for number, each in enumerate(threads)}
    shares = [share_layers(count, tile, tiles, workers) for tile in range(tiles)]
    in_order = [shares[tile][layer] for layer in range(count) for tile in range(tiles)]
    assert in_order == sorted(in_order)
    for worker, each in workers.items():
        assert abs(in_order.count(worker) - count * tiles * each / sum(threads)) <= 1


def test_the_tree_is_the_one_of_powers_of_two() -> None:
    assert add_layers("abcdefgh", lambda x, y: f"({x}{y})") == "(((ab)(cd))((ef)(gh)))"
    assert add_layers("a", lambda x, y: pytest.fail("nothing to add")) == "a"


@pytest.mark.slow_cases("float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_of_layers_is_within_the_bound_of_one_chain(dtype: str) -> None:
    m, n, k = 3, 5, 70_000
    assert layers(m, n, k) == 16
    a, b = operands((m, n, k), dtype)
    kernel = choose_adding_cpu(dtype).kernel
    run = runner(kernel, dtype)
    terms = []
    for layer in cut_layers(k, kc_of(kernel, dtype), layers(m, n, k)):
        terms.append(np.empty((m, n), dtype))
        run(a[:, layer], b[layer], terms[-1])
    wide = a.astype(np.longdouble) @ b.astype(np.longdouble)
    bound = math.sqrt(k) * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b))
    assert (np.abs(add_layers(terms, np.add) - wide) <= bound).all()
    assert (
        len({add_layers(order, np.add).tobytes() for order in itertools.islice(itertools.permutations(terms), 99)}) > 1
    )
