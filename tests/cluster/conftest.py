"""Two Dask workers that the tests of a process share, and a client for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster

from support.local_cluster import local_cluster


@pytest.fixture(scope="session")
def workers() -> Iterator[LocalCluster]:
    """The cluster. No test may kill one of its workers."""
    with local_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(workers: LocalCluster) -> Iterator[Client]:
    """Dask's current client until the test ends."""
    with Client(workers) as client:
        yield client
