"""``matmul`` of lists of arrays: on the host, and on simulated GPUs, where arrays at equal distances are a batch."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.multiplied import by_rows
from tilewright.errors import OperandError, ShapeError
from tilewright.gpu.arrays import lists
from tilewright.gpu.runtime.engine_product import EngineProduct, prepare_ragged_product
from tilewright.kernels.catalog import cuda_engine

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    found = fake.Gpu(1 << 22)
    found.sms, found.in_one_piece = 4, True
    fake.install(monkeypatch, [found])
    return found


def whole(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def check(results: Any, a: Any, b: Any) -> None:
    assert isinstance(results, list)
    assert len(results) == len(a)
    for c, x, y in zip(results, a, b, strict=True):
        np.testing.assert_array_equal(
            c if isinstance(c, np.ndarray) else c.view, (x.astype(float) @ y.astype(float)).astype(x.dtype)
        )


RAGGED = [((5, 8), (8, 6)), ((40, 8), (8, 6)), ((1, 8), (8, 6)), ((0, 8), (8, 6)), ((3, 9), (9, 2))]


def test_lists_on_the_host() -> None:
    a, b = ([whole(*pair[i], dtype=np.float32) for pair in RAGGED] for i in range(2))
    check(tw.matmul(a, b), a, b)
    out = [np.empty((x.shape[0], y.shape[1]), np.float32) for x, y in zip(a, b, strict=True)]
    results = tw.matmul(a, b, out=out)
    assert all(c is given for c, given in zip(results, out, strict=True))
    check(results, a, b)


def test_nested_numbers_are_still_matrices() -> None:
    np.testing.assert_array_equal(tw.matmul([[1, 2], [3, 4]], [[5], [6]]), [[17], [39]])
    rows = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    np.testing.assert_array_equal(tw.matmul(rows, rows), [[7, 10], [15, 22]])


def test_lists_of_other_lengths_are_refused() -> None:
    a = [np.ones((2, 2))] * 3
    with pytest.raises(ShapeError, match="a is a list of 3 arrays, b one of 2: both must have the same length"):
        tw.matmul(a, a[:2])
    with pytest.raises(ShapeError, match="b one of 3, out is one of 1: both"):
        tw.matmul(a, a, out=[np.ones((2, 2))])
    with pytest.raises(ShapeError, match="out is no list"):
        tw.matmul(a, a, out=np.ones((3, 2, 2)))


@pytest.mark.slow
def test_ragged_lists_on_a_gpu(gpu: Any) -> None:
    a, b = ([whole(*pair[i]) for pair in RAGGED] for i in range(2))
    x, y = ([fake.Tensor.of(gpu, each) for each in side] for side in (a, b))
    check(tw.matmul(x, y), a, b)
    out = [fake.Tensor.of(gpu, np.zeros((p.shape[0], q.shape[1]), BF16)) for p, q in zip(a, b, strict=True)]
    check(tw.matmul(x, y, out=out), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [fake.Tensor, fake.CupyArray])
def test_arrays_at_equal_distances_are_one_launch(gpu: Any, kind: Any) -> None:
    """Slices of one array, with one B for each, or with one B for all; then slices out of their turn."""
    dtype = BF16 if kind is fake.Tensor else np.dtype(np.float16)
    a, b = whole(4, 9, 16, dtype=dtype), whole(4, 16, 8, dtype=dtype)
    x, y = kind.of(gpu, a), kind.of(gpu, b)
    slices, others = [x.like(x.view[i]) for i in range(4)], [y.like(y.view[i]) for i in range(4)]
    check(tw.matmul(slices, others), a, b)
    assert len(gpu.launches) == 1
    check(tw.matmul(slices, others[:1] * 4), a, [b[0]] * 4)
    assert len(gpu.launches) == 2
    turns = [0, 1, 3, 2]
    check(tw.matmul([slices[i] for i in turns], [others[i] for i in turns]), a[turns], b[turns])
    assert len(gpu.launches) == 3


def test_pairs_on_two_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    first, second = fake.Gpu(1 << 20, 0), fake.Gpu(1 << 20, 1)
    fake.install(monkeypatch, [first, second])
    x, y = fake.Tensor.of(first, whole(2, 8, 8)), fake.Tensor.of(second, whole(2, 8, 8))
    with pytest.raises(OperandError, match="a is on GPU 0, b on GPU 1"):
        tw.matmul([x[0], x[1]], [y[0], y[1]])
    assert first.launches == second.launches == []


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("down", [False, True])
def test_slices_of_different_heights_are_one_launch(gpu: Any, down: bool) -> None:
    """Also empty ones; C is that of no other product, and nothing is written beyond it."""
    heights = [5, 0, 130, 1, 64, 0]
    a, b = whole(sum(heights), 72), whole(len(heights), 72, 40)
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, np.ascontiguousarray(b.swapaxes(1, 2)) if down else b)
    tops = np.cumsum([0, *heights])
    ranges = [slice(*pair) for pair in itertools.pairwise(tops)]
    slices = [x[each] for each in ranges]
    others = [y.like(y.view[i].T if down else y.view[i]) for i in range(len(heights))]
    check(tw.matmul(slices, others), [a[each] for each in ranges], list(b))
    assert [entry for entry, _ in gpu.launches] == ["hopper"]


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"CLUSTER": 2, "GROUP": 8}, {"BM": 64, "BN": 64, "STAGES": 8}], ids=str)
def test_ragged_products_of_every_kind_of_tile(gpu: Any, params: dict[str, int]) -> None:
    rows, n, k = [3, 140, 0, 128, 5], 70, 80
    a, b = whole(sum(rows), k), whole(len(rows), k, 72)
    memory = [gpu.put(each.view(np.uint16)) for each in (a, b)]
    c = gpu.allocate(sum(rows) * n * 2)
    factors = by_rows(sum(rows), k, "bfloat16"), by_rows(k, n, "bfloat16", 72, 72 * k)
    what = EngineProduct("bfloat16", *factors, by_rows(sum(rows), n, "bfloat16"))
    run = prepare_ragged_product(gpu, cuda_engine()["cuda/hopper"], what, tuple(rows), tuple(params.items()))
    run(memory[0].pointer, memory[1].pointer, c.pointer, 0)
    tops = np.cumsum([0, *rows])
    expected = [a[i:j].astype(float) @ b[p, :, :n].astype(float) for p, (i, j) in enumerate(itertools.pairwise(tops))]
    np.testing.assert_array_equal(gpu.get(c, BF16, (sum(rows), n)), np.concatenate(expected).astype(BF16))


@pytest.mark.slow
def test_copies_of_conjugated_arrays_are_no_batch(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their addresses are the allocator's, at equal distances or not, and the bits of a product must not depend on them."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, shape) + 1j * rng.integers(-4, 5, shape) for shape in ((3, 5, 7), (3, 7, 6)))
    a, b = a.astype("complex64"), b.astype("complex64")
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    batches: list[Any] = []
    monkeypatch.setattr(lists, "_batch", lambda *given: batches.append(given) or list(given[2]))
    tw.matmul(list(x), list(y))
    assert len(batches) == 1
    conjugated = list(y)
    for each in conjugated:
        each.conjugated = True
    found = tw.matmul(list(x), conjugated)
    assert len(batches) == 1
    for c, p, q in zip(found, a, b, strict=True):
        np.testing.assert_array_equal(c.view, p @ q.conj())
