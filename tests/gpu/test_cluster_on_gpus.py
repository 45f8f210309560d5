"""``multiply`` on Dask workers that have a GPU: the bits of one process on that GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.device import open_device

pytestmark = pytest.mark.gpu

M, K, N = 1900, 1700, 2100
rng = np.random.default_rng(0)
A = rng.uniform(-1, 1, (M, K)).astype(np.float32)
B = rng.uniform(-1, 1, (K, N)).astype(np.float32)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    try:
        open_device(0)
    except UnavailableError as error:
        pytest.skip(str(error))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, memory_limit="8GiB", dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    np.save("b.npy", B)


@pytest.mark.parametrize("limit", [None, "8MB"])
def test_files(limit: str | None, client: Any, files: None) -> None:
    expected = tw.multiply(A, B, device="cuda:0", device_memory=limit)
    tw.multiply("a.npy", "b.npy", "c.npy", cluster=client, device="cuda:0", device_memory=limit)
    np.testing.assert_array_equal(np.load("c.npy"), expected)


def test_the_plan_says_gpus(client: Any, files: None) -> None:
    plan = str(tw.plan_multiply("a.npy", "b.npy", "c.npy", cluster=client, device="cuda:0"))
    assert "2 workers on 1 host, 2 GPUs" in plan


@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_arrays_of_dask_and_of_the_client(client: Any, files: None) -> None:
    import dask.array as da

    expected = tw.multiply(A, B, device="cuda:0")
    x, y = da.from_array(A, chunks=(300, 250)).persist(), da.from_array(B, chunks=(333, 800)).persist()
    for a, b in ((x, y), (A, B), ("a.npy", y)):
        c = np.full((M, N), np.nan, np.float32)
        tw.multiply(a, b, c, cluster=client, device="cuda:0")
        np.testing.assert_array_equal(c, expected)


def test_an_interrupted_product_is_resumed(client: Any, files: None) -> None:
    """By one process, with the tiles that workers finished."""
    how: dict[str, Any] = {"device": "cuda:0", "device_memory": "8MB"}
    expected = tw.multiply(A, B, **how)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tw.multiply("a.npy", "b.npy", "c.npy", cluster=client, progress=stop, **how)
    tw.multiply("a.npy", "b.npy", "c.npy", resume=True, **how)
    np.testing.assert_array_equal(np.load("c.npy"), expected)
