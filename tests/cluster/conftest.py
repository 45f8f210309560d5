"""Two workers, each a process with one thread and 512 MiB, that all tests of a process share; a client for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="session")
def workers() -> Iterator[LocalCluster]:
    """The cluster; a killed worker is started again by its nanny."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, memory_limit="512MiB", dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(workers: LocalCluster) -> Iterator[Client]:
    """Dask's current client until the test ends."""
    with Client(workers) as client:
        client.wait_for_workers(2)
        yield client
