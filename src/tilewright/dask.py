"""Products of Dask arrays: ``tilewright.dask.matmul``. This module needs the extra ``cluster``."""

from __future__ import annotations

from .errors import UnavailableError, how_to_install

try:
    from .large.cluster.lazy import matmul
except ModuleNotFoundError as error:
    if error.name not in ("dask", "dask.array"):
        raise
    raise UnavailableError(
        f"tilewright.dask needs dask, which is not installed: {how_to_install('cluster')}"
    ) from error

__all__ = ["matmul"]
