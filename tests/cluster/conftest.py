"""Two Dask workers that the tests of a process share, and a client for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import tilewright as tw
from support.local_cluster import local_cluster

#: As it was before any test started workers.
ENVIRONMENT = dict(os.environ)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Undo what Dask does to the environment where it starts workers: OMP_NUM_THREADS=1 would hold for tests that follow."""
    yield
    for name in dask.config.get("distributed.nanny.pre-spawn-environ"):
        os.environ.pop(name, None)
        if name in ENVIRONMENT:
            os.environ[name] = ENVIRONMENT[name]


#: The cluster that runs, if one does.
_running: list[LocalCluster] = []


@pytest.fixture
def workers() -> LocalCluster:
    """The cluster. No test may kill one of its workers."""
    if not _running:
        for dtype in (np.float32, np.float64):  # compiles once, here; otherwise each worker would
            a = np.ones((1100, 1100), dtype)
            tw.multiply(a, a, device="cpu", memory="64MiB")
        _running.append(local_cluster())
    return _running[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the cluster after the last test of this folder: idle workers take a tenth of a processor."""
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        while _running:
            _running.pop().close()


@pytest.fixture
def client(workers: LocalCluster) -> Iterator[Client]:
    """Dask's current client until the test ends."""
    with Client(workers) as client:
        yield client
