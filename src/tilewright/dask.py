"""Products of Dask arrays: ``tilewright.dask.matmul``. This module needs the extra ``cluster``."""

from __future__ import annotations

from .errors import UnavailableError

try:
    from .large.cluster.lazy import matmul
except ModuleNotFoundError as error:
    if error.name not in ("dask", "dask.array"):
        raise
    raise UnavailableError(
        "tilewright.dask needs dask, which is not installed: pip install 'tilewright[cluster]'"
    ) from error

__all__ = ["matmul"]
