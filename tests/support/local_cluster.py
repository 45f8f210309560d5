"""A Dask cluster on this machine, for tests."""

from __future__ import annotations

from distributed import LocalCluster


def local_cluster(workers: int = 2) -> LocalCluster:
    """Workers of one thread and 2 GiB, each a process of its own.

    A worker that finds no compiled kernel compiles it, and takes 600 MiB for it: with less, its nanny would end it.
    After a worker is killed, its nanny does not always start another: a test that kills one needs a cluster of its own.
    """
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, memory_limit="2GiB", dashboard_address=":0"
    )
