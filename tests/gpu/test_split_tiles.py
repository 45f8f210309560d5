"""Tiles of C that the blocks of a cluster compute together, each a piece of k, on a simulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support import simulated_libraries as fake
from support.changed_kernels import changed
from support.multiplied import by_rows, multiply
from tilewright.errors import UsageError
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

HOPPER = cuda_engine()["cuda/hopper"]
BF16 = np.dtype(ml_dtypes.bfloat16)
#: Tiles of 64 × 64, so that few numbers are many tiles.
SMALL = {"BM": 64, "BN": 64, "STAGES": 8, "SPLIT": 2}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake.installed(monkeypatch, 1 << 22, sms=4)


def product(
    gpu: Any, a: np.ndarray, b: np.ndarray, out: Any, params: dict[str, int], kernel: CudaKernel = HOPPER
) -> Any:
    """A·B of whole rows, of which C has ``n`` elements, by one launch."""
    (m, k), n = a.shape, b.shape[1]
    memory = [gpu.put(x.view(f"u{x.itemsize}")) for x in (a, b)]
    c = gpu.allocate(m * n * out.itemsize)
    names = [str(dtype) for dtype in (a.dtype, out)]
    what = EngineProduct(names[0], by_rows(m, k, names[0]), by_rows(k, n, names[0]), by_rows(m, n, names[1]))
    multiply(gpu, kernel, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
    return gpu.get(c, out, (m, n))


def whole(*shape: int, seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(BF16)


@pytest.mark.slow_cases("6", "7")
@pytest.mark.parametrize("tiles", [1, 3, 4, 6, 7])
@pytest.mark.parametrize("out", [BF16, np.dtype(np.float32)], ids=str)
def test_tiles_that_would_not_fill_all_multiprocessors_are_split(gpu: Any, tiles: int, out: Any) -> None:
    """With four multiprocessors: of six tiles the last two, of seven the last three, which is one more than clusters."""
    a, b = whole(64 * tiles - 5, 200), whole(200, 56, seed=2)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(out)
    np.testing.assert_array_equal(product(gpu, a, b, out, SMALL), expected)


@pytest.mark.slow
@pytest.mark.parametrize("k", [8, 64, 136])
def test_one_block_may_have_fewer_steps_than_the_other_or_none(gpu: Any, k: int) -> None:
    a, b = whole(40, k), whole(k, 128, seed=2)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(BF16)
    for params in (
        SMALL,
        {"BN": 192, "SPLIT": 2},
        {"BN": 128, "STAGES": 6, "SPLIT": 4},
        SMALL | {"BN": 128, "SPLIT": 8},
    ):
        np.testing.assert_array_equal(product(gpu, a, b, BF16, params), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("pieces", "tiles"), [(4, 1), (4, 9), (8, 3)])
def test_more_than_two_blocks_add_their_sums(gpu: Any, pieces: int, tiles: int) -> None:
    """With eight multiprocessors there is room for one cluster of either size: of nine tiles eight are computed whole."""
    gpu.sms = 8
    a, b = whole(64 * tiles - 5, 776), whole(776, 120, seed=2)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    params = SMALL | {"BN": 128, "SPLIT": pieces}
    np.testing.assert_array_equal(product(gpu, a, b, np.dtype(np.float32), params), expected)


def test_split_tiles_have_no_multicast() -> None:
    """The neighbour would write to stages in which a block still reads the sums that it received."""
    with pytest.raises(UsageError, match=r"\(SPLIT > 1\) \* \(CLUSTER \* BESIDE > 1\) == 0 must hold, got CLUSTER=2"):
        HOPPER.checked({"CLUSTER": 2, "SPLIT": 2})


@pytest.mark.slow
def test_the_halves_are_added_after_they_were_summed(gpu: Any) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(-1, 1, shape).astype(BF16) for shape in ((64, 1024), (1024, 64)))
    split = product(gpu, a, b, np.dtype(np.float32), SMALL)
    alone = SMALL | {"SPLIT": 1}
    halves = [
        product(gpu, x, y, np.dtype(np.float32), alone)
        for x, y in ((a[:, :512].copy(), b[:512]), (a[:, 512:].copy(), b[512:]))
    ]
    np.testing.assert_array_equal(split, halves[0] + halves[1])
    assert (split != product(gpu, a, b, np.dtype(np.float32), alone)).any()


FIRST, LAST = r" *cluster_sync\(\);  // all stages have been read\n", r" .*group_(sync|arrive)\(.*\n"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "finding"), [(FIRST, "which the copy at"), (LAST, "with no barrier between")])
def test_a_missing_barrier_is_found(gpu: Any, tmp_path: Path, line: str, finding: str) -> None:
    """Sums arrive where the other block still multiplies, or a stage is filled where sums are still read."""
    broken = changed(HOPPER, tmp_path, "hopper_split.cuh", (line, ""), times=2)
    with pytest.raises(AssertionError, match=finding):
        product(gpu, whole(192, 1000), whole(1000, 64), BF16, SMALL, broken)
