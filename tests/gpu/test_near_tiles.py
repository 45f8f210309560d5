"""Clusters whose blocks compute tiles next to each other, because they then lie in one group of multiprocessors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support import simulated_libraries as fake
from support.multiplied import by_rows, multiply
from tilewright.errors import UsageError
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

HOPPER = cuda_engine()["cuda/hopper"]
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake.installed(monkeypatch, 1 << 22, sms=18)


@pytest.mark.slow
@pytest.mark.parametrize("near", [8, 16])
def test_blocks_of_a_cluster_take_tiles_next_to_each_other(gpu: Any, near: int) -> None:
    """More tiles than run at once, and a last cluster of which some blocks have none."""
    m, n, k, parts = 200, 264, 600, 2
    a, b = (np.random.default_rng(i).integers(-4, 5, shape).astype(BF16) for i, shape in enumerate(((m, k), (k, n))))
    memory = [gpu.put(x.view(np.uint16)) for x in (a, b)]
    c = gpu.allocate(parts * m * n * 4)
    of_c = by_rows(m, n, "float32", following=m * n)
    what = EngineProduct("bfloat16", by_rows(m, k, "bfloat16"), by_rows(k, n, "bfloat16"), of_c, 1, parts, 5)
    params = {"BM": 64, "BN": 64, "STAGES": 12, "NEAR": near, "GROUP": 4}
    multiply(gpu, HOPPER, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
    sums = gpu.get(c, np.dtype(np.float32), (parts, m, n))
    np.testing.assert_array_equal(sums.sum(0), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("other", [{"SPLIT": 2}, {"CLUSTER": 2}], ids=str)
def test_such_clusters_have_no_other_purpose(other: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="NEAR"):
        HOPPER.checked({"NEAR": 8, "BN": 128, **other})


def test_the_laboratory_launches_whole_clusters_too() -> None:
    params = {"BM": 64, "BN": 64, "STAGES": 12, "NEAR": 8}
    assert HOPPER.launch(200, 264, 600, **params).blocks == 20
    assert HOPPER.launch_on(132, 200, 264, 600, **params).blocks == 24
    assert HOPPER.launch_on(18, 200, 264, 600, **params).blocks == 16
