"""A Dask cluster on this machine, small enough to reach its limits in a test."""

from __future__ import annotations

import dask
from distributed import LocalCluster

# Else Dask also sets OMP_NUM_THREADS to 1 in the process that starts workers, for all tests that follow. What is left makes
# workers give memory back, without which small ones are killed.
dask.config.set({"distributed.nanny.pre-spawn-environ": {"MALLOC_TRIM_THRESHOLD_": 65536}})


def local_cluster(workers: int = 2) -> LocalCluster:
    """Workers of one thread and 512 MiB, each a process of its own.

    After a worker is killed, its nanny does not always start another: a test that kills one needs a cluster of its own.
    """
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, memory_limit="512MiB", dashboard_address=":0"
    )
