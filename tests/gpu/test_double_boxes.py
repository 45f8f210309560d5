"""``matmul`` of float64 by the engine's kernel whose tiles the copy engine brings, executed by the microscope."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.multiplied import by_columns, by_rows, multiply
from tilewright.gpu.runtime.engine_product import EngineProduct, prepare_ragged_product
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

BOXES = cuda_engine()["cuda/dmma_boxes"]
WAYS = [{}, *(preset.params for preset in BOXES.presets)]
#: Whether columns of A and of B follow each other in memory, the most frequent case first.
LAYOUTS = [*itertools.product((False, True), repeat=2)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 23)
    found.sms = 2
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, BOXES)
    return found


def whole(*shape: int, seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


def tensor(gpu: Any, values: np.ndarray, layout: str = "rows") -> Any:
    return laid(fake.Tensor, gpu, values, layout)


def launched(gpu: Any) -> list[str]:
    return [entry for entry, _ in gpu.launches]


@pytest.mark.slow
@pytest.mark.parametrize("layouts", [*itertools.product(("rows", "columns"), repeat=2)], ids="-".join)
def test_no_layout_of_whole_granules_is_copied(gpu: Any, layouts: tuple[str, str]) -> None:
    a, b = whole(70, 36), whole(36, 50, seed=2)
    c = tw.matmul(tensor(gpu, a, layouts[0]), tensor(gpu, b, layouts[1])).view
    np.testing.assert_array_equal(c, a @ b)
    assert launched(gpu) == ["dmma_boxes"]


@pytest.mark.slow_cases("((33, 35), (35, 37))")
@pytest.mark.parametrize("shapes", [
    ((33, 35), (35, 37)), ((1, 64), (64, 20)), ((20, 64), (64, 1)), ((1, 1), (1, 1)), ((3, 40, 24), (3, 24, 18)),
    ((3, 40, 24), (24, 18)), ((40, 0), (0, 6)),
], ids=str)  # fmt: skip
def test_shapes_are_those_of_matmul(gpu: Any, shapes: Any) -> None:
    a, b = whole(*shapes[0]), whole(*shapes[1], seed=2)
    np.testing.assert_array_equal(tw.matmul(tensor(gpu, a), tensor(gpu, b)).view, a @ b)


@pytest.mark.further
@pytest.mark.parametrize(("params", "down"), list(zip(WAYS, itertools.cycle(LAYOUTS))), ids=str)
def test_a_block_takes_many_tiles_and_parts(gpu: Any, params: dict[str, int], down: tuple[bool, bool]) -> None:
    for m, n, k, parts in ((200, 132, 50, 1), (40, 66, 66, 2), (203, 133, 34, 1)):
        a, b = whole(m, k), whole(k, n, seed=2)
        lines = [x.T if d else x for x, d in zip((a, b), down, strict=True)]
        memory = [gpu.put(np.pad(x, ((0, 0), (0, x.shape[1] % 2)))) for x in lines]
        c = gpu.allocate(parts * m * n * 8)
        steps = -(-k // 16 // parts) if parts > 1 else 1 << 20
        of_a, of_b = (
            (by_columns if d else by_rows)(*x.shape, "float64", y.shape[1] + y.shape[1] % 2)
            for x, y, d in zip((a, b), lines, down, strict=True)
        )
        what = EngineProduct("float64", of_a, of_b, by_rows(m, n, "float64", following=m * n), 1, parts, steps)
        multiply(gpu, BOXES, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
        cut = [slice(i * steps * 16, (i + 1) * steps * 16 if i + 1 < parts else k) for i in range(parts)]
        for sums, part in zip(gpu.get(c, np.dtype(np.float64), (parts, m, n)), cut, strict=True):
            np.testing.assert_array_equal(sums, a[:, part] @ b[part])
        for each in (c, *memory):
            each.close()


@pytest.mark.slow
def test_products_with_rows_of_their_own_number_take_one_launch(gpu: Any) -> None:
    rows, k, n = (5, 0, 70, 1), 18, 34
    a, b = whole(sum(rows), k), whole(len(rows), k, n, seed=2)
    memory = [gpu.put(x) for x in (a, b)]
    c = gpu.allocate(sum(rows) * n * 8)
    of_a, of_b, of_c = (
        by_rows(*a.shape, "float64"),
        by_rows(k, n, "float64", following=k * n),
        by_rows(len(a), n, "float64"),
    )
    what = EngineProduct("float64", of_a, of_b, of_c)
    prepare_ragged_product(gpu, BOXES, what, rows, tuple(BOXES.params.items()))(
        memory[0].pointer, memory[1].pointer, c.pointer, 0
    )
    tops = np.cumsum((0, *rows))
    wanted = [a[top:bottom] @ y for (top, bottom), y in zip(itertools.pairwise(tops), b, strict=True)]
    np.testing.assert_array_equal(gpu.get(c, np.dtype(np.float64), (sum(rows), n)), np.concatenate(wanted))
    for each in (c, *memory):
        each.close()
