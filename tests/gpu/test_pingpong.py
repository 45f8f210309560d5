"""Tiles that the two groups of a block compute in turns, on a simulated GPU."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support import simulated_libraries as fake
from support.multiplied import by_rows, multiply
from tilewright.errors import UsageError
from tilewright.gpu.runtime.engine_product import EngineProduct, FinishForm
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

HOPPER = cuda_engine()["cuda/hopper"]
BF16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
SMALL = {"BN": 64, "STAGES": 3, "PINGPONG": 1}
BIASED = FinishForm(2.0, 0.0, "relu", ("float32", 1), None, None, 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake.installed(monkeypatch, 1 << 22, sms=2)


def whole(*shape: int, seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(BF16)


def product(
    gpu: Any,
    shape: tuple[int, int, int],
    params: dict[str, int],
    *,
    parts: tuple[int, int] = (1, 1 << 30),
    kernel: CudaKernel = HOPPER,
    epilogue: FinishForm | None = None,
) -> tuple[Any, Any]:
    """What the kernel stores of A·B, parts of k apart, and what is right."""
    m, n, k = shape
    a, b, bias = whole(m, k), whole(k, n, seed=2), np.arange(n, dtype=np.float32) - n // 2
    padded = np.pad(b, ((0, 0), (0, -n % 8)))
    memory = [gpu.put(x.view(f"u{x.itemsize}")) for x in (a, padded, bias)]
    x, y, of_bias = (each.pointer for each in memory)
    c = gpu.allocate(parts[0] * m * n * 4)
    factors = by_rows(m, k, "bfloat16"), by_rows(k, n, "bfloat16", padded.shape[1])
    what = EngineProduct("bfloat16", *factors, by_rows(m, n, "float32", following=m * n), 1, *parts, epilogue=epilogue)
    multiply(gpu, kernel, what, params, (x, y, c.pointer), [] if epilogue is None else [of_bias, 0, 0])
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return gpu.get(c, FLOAT32, (parts[0], m, n)).sum(0), exact if epilogue is None else np.maximum(2 * exact + bias, 0)


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("cluster", [1, 2])
def test_groups_take_turns(gpu: Any, tiles: int, cluster: int) -> None:
    """Of two blocks, some have one tile more than the others, or the second group has none; a tile has more steps than
    there are stages, and rows of C begin anywhere."""
    got, exact = product(gpu, (200, 64 * tiles - 3, 328), SMALL | {"CLUSTER": cluster})
    np.testing.assert_array_equal(got, exact)


@pytest.mark.slow
@pytest.mark.parametrize("k", [8, 136])
def test_tiles_with_fewer_steps_than_stages(gpu: Any, k: int) -> None:
    got, exact = product(gpu, (400, 256, k), SMALL | {"STAGES": 8})
    np.testing.assert_array_equal(got, exact)


@pytest.mark.slow
def test_the_last_part_of_k_is_shorter(gpu: Any) -> None:
    """The group that waits skips as many stages as the other one's tile has."""
    got, exact = product(gpu, (200, 190, 456), SMALL, parts=(3, 3))
    np.testing.assert_array_equal(got, exact)


@pytest.mark.slow
def test_an_epilogue_is_that_of_each_row_and_column(gpu: Any) -> None:
    got, exact = product(gpu, (300, 200, 136), SMALL, epilogue=BIASED)
    np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("wrong", [{"BM": 64}, {"BN": 192}, {"SPLIT": 2, "BN": 128}], ids=str)
def test_what_a_group_cannot_hold(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="PINGPONG"):
        HOPPER.checked(SMALL | wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        r" *if \(PINGPONG && tile != tiles.first\(\)\) group_sync\(.*\n",
        r" *if \(PINGPONG && step \+ 1 == steps .*\n",
        r" *if \(PINGPONG && following < tiles.count\) ring.skip\(.*\n",
    ],
    ids=["waits", "arrives", "skips"],
)
def test_groups_that_do_not_take_turns_are_found(gpu: Any, line: str) -> None:
    wrong, count = re.subn(line, "", HOPPER.source)
    assert count == 1
    broken = dataclasses.replace(HOPPER, source=wrong)
    with pytest.raises(AssertionError, match=r"waits? for ever|no thread has written|which the copy at|not equal"):
        np.testing.assert_array_equal(*product(gpu, (600, 250, 328), SMALL | {"STAGES": 5}, kernel=broken))
