"""Defines the messages between the client and the workers, as objects that can be pickled: products, plans and
reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import errors
from ...kernels.catalog import catalog, cuda_catalog, cuda_engine
from ...product.plan import Choice
from ...product.precision import dtype_of_blocks
from ..files import PartWriter, Source
from ..streaming.options import Options
from ..streaming.plan.cost import Rates
from ..streaming.plan.cuts import Room
from ..streaming.plan.grid import Tile
from ..streaming.plan.stream import StreamPlan


@dataclass(frozen=True)
class ProductOrder:
    """The description of a product that the client sends to workers.

    ``key`` is the name of the product on the cluster. ``openers`` open the operands, and ``fingerprints`` identify the
    files that the client opened. ``target`` is the path of the result, or None if workers return the tiles.
    ``neighbours`` is the largest number of workers that run on the same host.
    """

    key: str
    openers: tuple[Callable[[], Source], Callable[[], Source]]
    fingerprints: tuple[str, str]
    dtype: np.dtype[Any]
    target: str | None
    options: Options
    neighbours: int


@dataclass(frozen=True)
class PlannedOrder:
    """A planned product that the client sends to workers.

    ``plan`` is the plan of one device, without tiles. ``attach`` opens the unfinished result, or is None if workers
    return the tiles. ``kernel`` names the kernel that every worker must use, so that all workers compute the same bits.
    """

    order: ProductOrder
    plan: StreamPlan
    kernel: str
    attach: Callable[[], PartWriter] | None


@dataclass(frozen=True)
class RemotePlace:
    """A device of a worker that multiplies blocks: its CPU or one of its GPUs."""

    worker: str
    device: str

    def __str__(self) -> str:
        return self.worker if self.device == "cpu" else f"{self.worker} {self.device}"


@dataclass(frozen=True)
class ChosenKernel:
    """A form of ``Choice`` that can be pickled, because it contains the name of the kernel instead of its code. The
    process that receives the choice finds the kernel in its own catalog.
    """

    name: str
    compute: str
    params: Mapping[str, Any]
    why: str
    why_params: str

    @classmethod
    def of(cls, choice: Choice[Any]) -> ChosenKernel:
        """Return the part of a choice of a kernel that is sent to other processes."""
        return cls(choice.kernel.name, choice.compute, dict(choice.params), choice.why, choice.why_params)

    def choice(self) -> Choice[Any]:
        """Return the full ``Choice``, with the kernel from the catalog of this process. Raises KeyError if this version
        of Tilewright has no kernel of this name.
        """
        kernel = catalog().get(self.name) or (cuda_catalog() | cuda_engine())[self.name]
        return Choice(kernel, self.compute, self.params, self.why, self.why_params)


@dataclass(frozen=True)
class WorkerFacts:
    """A worker's report about itself: the ``devices`` on which it can multiply, and the memory limits (``room``) and
    measured ``rates`` of each device.

    ``kernel`` describes everything about the kernel that can change the bits of the result. ``host`` is the machine of
    the worker; all workers of a host share its ``cores``.
    """

    worker: str
    host: str
    version: str
    devices: tuple[str, ...]
    chosen: ChosenKernel
    kernel: str
    room: Room
    rates: Rates
    memory: int
    threads: int
    cores: int

    @property
    def dtype(self) -> str:
        """The dtype of the blocks that the worker multiplies."""
        return dtype_of_blocks(self.chosen.compute)


@dataclass(frozen=True)
class TileReport:
    """The report of a finished tile: the device that computed it, and the bytes of operands that the worker has read since
    its last report.

    If the result is not a file, the report also contains the elements of the tile.
    """

    tile: Tile
    place: RemotePlace
    read_bytes: int
    seconds: float
    elements: np.ndarray[Any, Any] | None


@dataclass(frozen=True)
class TaskFailure:
    """The reason why a task failed, as a return value.

    Tasks return a ``TaskFailure`` instead of raising an error, because Dask would log the error with its traceback, and
    cannot pickle an error that is derived from two built-in classes. ``kind`` is the name of the error's class in
    ``errors``, or empty if the error has no class there.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> TaskFailure:
        """Return the ``TaskFailure`` for an error of Tilewright or of the operating system, or for a lack of memory."""
        if isinstance(error, errors.TilewrightError):
            return cls(type(error).__name__, str(error))
        return cls("", f"{type(error).__name__}: {error}")

    def error(self, what: str) -> errors.TilewrightError:
        """Return the error to raise. ``what`` says what failed; this text precedes the message of errors that are not
        Tilewright's own.
        """
        if not self.kind:
            return errors.ClusterError(f"{what}: {self.text}")
        found: errors.TilewrightError = getattr(errors, self.kind)(self.text)
        return found
