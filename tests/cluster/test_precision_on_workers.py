"""``multiply(…, precision=…)`` on the workers of a cluster: each way keeps its bound, and is the way of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import tilewright as tw
from tilewright.errors import UsageError, VerificationError
from tilewright.kernels.catalog import cuda_engine
from tilewright.large.cluster.layers import layers
from tilewright.large.cluster.placement import ClusterPlacement
from tilewright.large.cluster.product import _summed_by_processors
from tilewright.large.files.array import ArraySource
from tilewright.large.streaming.places.rates import kc_of
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.run.computation import Product
from tilewright.large.streaming.run.job import Job
from tilewright.product.plan import Choice
from tilewright.product.precision import SPLIT

rng = np.random.default_rng(4)
A = rng.uniform(0, 1, (600, 700)).astype(np.float32)
B = rng.uniform(0, 1, (700, 500)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["highest", 1e-6, 1e-3])
def test_tiles_of_files_and_of_arrays(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    np.save("b.npy", B)
    expected = tw.multiply(A, B, device="cpu", precision=precision)
    plan = tw.plan_multiply("a.npy", "b.npy", "c.npy", cluster=client, precision=precision)
    assert plan.compute == ("float32" if precision == 1e-3 else "float64")
    assert f"at most {plan.error_bound:.2g}·|A||B|: {plan.compute}" in str(plan)
    tw.multiply("a.npy", "b.npy", "c.npy", cluster=client, precision=precision)
    np.testing.assert_array_equal(np.load("c.npy"), expected)
    c = np.empty_like(expected)
    tw.multiply(da.from_array(A, chunks=300), B, c, cluster=client, precision=precision)
    np.testing.assert_array_equal(c, expected)
    kept = tw.multiply("a.npy", B, cluster=client, precision=precision)
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept.compute(), expected)


@pytest.mark.slow
def test_layers_keep_the_bound_of_the_whole_sum(client: Client) -> None:
    """Of positive numbers, whose roundings do not cancel as those of random signs do."""
    long = 1 << 15
    a, b = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in ((20, long), (long, 10)))
    assert layers(20, 10, long) > 1
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for precision in (1e-3, 1e-7):
        c = np.empty((20, 10), np.float32)
        tw.multiply(a, b, c, cluster=client, precision=precision)
        bound = tw.plan_multiply(a, b, c, cluster=client, precision=precision).error_bound
        assert np.abs(c - exact).max() / exact.max() <= bound <= precision
    with pytest.raises(UsageError, match="the best bound for C of float32"):
        tw.multiply(a, b, c, cluster=client, precision=1e-9)


@pytest.mark.slow
def test_a_result_of_workers_is_verified_by_the_client(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    run = Job.run
    for damage in (0.0, 0.01):

        def run_and_damage(job: Job, *arguments: Any, damage: float = damage) -> None:
            run(job, *arguments)
            c = np.load("c.npy", mmap_mode="r+")
            c[599, 499] += damage
            c.flush()

        monkeypatch.setattr(Job, "run", run_and_damage)
        if damage:
            with pytest.raises(VerificationError, match=r"at C\[599, 499\]"):
                tw.multiply("a.npy", B, "c.npy", cluster=client, verify=True, overwrite=True)
        else:
            tw.multiply("a.npy", B, "c.npy", cluster=client, verify=True, overwrite=True)


def test_layers_are_the_processors_also_where_workers_have_gpus() -> None:
    """A GPU's longer parts would have a smaller bound for a long k than the sums that are really made."""
    a, b = (ArraySource(np.ones(shape, np.float32)) for shape in ((2, 1 << 16), (1 << 16, 2)))
    on_gpus: Any = ClusterPlacement(
        (), Choice(cuda_engine()["cuda/split_hopper"], SPLIT, {}, ""), Room(1 << 30, step=4096)
    )
    for precision, compute in (("standard", "float32"), (1e-6, "float64")):
        found = _summed_by_processors(on_gpus, Product(a, b, np.dtype(np.float32)), precision)
        assert found.choice.compute == compute
        assert (found.room.kc, found.room.step) == (kc_of(found.choice.kernel, compute), 0)
