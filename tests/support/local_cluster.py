"""A Dask cluster on this machine, small enough to reach its limits in a test."""

from __future__ import annotations

from distributed import LocalCluster


def local_cluster(workers: int = 2) -> LocalCluster:
    """Workers of one thread and 512 MiB, each a process of its own.

    After a worker is killed, its nanny does not always start another: a test that kills one needs a cluster of its own.
    """
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, memory_limit="512MiB", dashboard_address=":0"
    )
