"""The messages between client and workers, as data that can be pickled: a product, its plan, what a worker reports."""

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
    """A product: ``key`` is its name on the cluster, ``openers`` open the operands, whose ``fingerprints`` the client has
    read. ``target`` is the path of the result; None if tiles are returned. At most ``neighbours`` workers share a host."""

    key: str
    openers: tuple[Callable[[], Source], Callable[[], Source]]
    fingerprints: tuple[str, str]
    dtype: np.dtype[Any]
    target: str | None
    options: Options
    neighbours: int


@dataclass(frozen=True)
class PlannedOrder:
    """A planned product: ``plan`` is that of one place, without tiles; ``attach`` opens the unfinished result, or is None if
    tiles are returned. ``kernel`` names the kernel that must multiply, so that the bits are the same on every worker."""

    order: ProductOrder
    plan: StreamPlan
    kernel: str
    attach: Callable[[], PartWriter] | None


@dataclass(frozen=True)
class RemotePlace:
    """Where blocks are multiplied: the CPU or one of the GPUs of a worker."""

    worker: str
    device: str

    def __str__(self) -> str:
        return self.worker if self.device == "cpu" else f"{self.worker} {self.device}"


@dataclass(frozen=True)
class ChosenKernel:
    """A ``Choice`` without its code: the catalog of the process that reads it has the same kernel."""

    name: str
    compute: str
    params: Mapping[str, Any]
    why: str
    why_params: str

    @classmethod
    def of(cls, choice: Choice[Any]) -> ChosenKernel:
        """The part of a choice that is sent."""
        return cls(choice.kernel.name, choice.compute, dict(choice.params), choice.why, choice.why_params)

    def choice(self) -> Choice[Any]:
        """The choice. Raises KeyError where this version has no such kernel."""
        kernel = catalog().get(self.name) or (cuda_catalog() | cuda_engine())[self.name]
        return Choice(kernel, self.compute, self.params, self.why, self.why_params)


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker reports about itself: ``devices`` on which it can multiply, each with ``room`` for blocks and ``rates``.

    ``kernel`` describes the kernel as far as the bits depend on it. All workers of a ``host`` share its ``cores``.
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
        """The dtype of the blocks that it multiplies."""
        return dtype_of_blocks(self.chosen.compute)


@dataclass(frozen=True)
class TileReport:
    """A finished tile: where it was computed, the bytes of operands that the worker read since its last report, and the
    elements, where they are not in a file."""

    tile: Tile
    place: RemotePlace
    read_bytes: int
    seconds: float
    elements: np.ndarray[Any, Any] | None


@dataclass(frozen=True)
class TaskFailure:
    """Why a task failed, as its return value: Dask would log an error that a task raises, with its traceback, and cannot
    pickle an error that is of two built-in classes. ``kind`` is the name of a class in ``errors``, empty for other
    errors."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> TaskFailure:
        """The failure for an error of Tilewright, of the system or of memory."""
        if isinstance(error, errors.TilewrightError):
            return cls(type(error).__name__, str(error))
        return cls("", f"{type(error).__name__}: {error}")

    def error(self, what: str) -> errors.TilewrightError:
        """The error to raise; ``what`` failed is prefixed if the error is not Tilewright's own."""
        if not self.kind:
            return errors.ClusterError(f"{what}: {self.text}")
        found: errors.TilewrightError = getattr(errors, self.kind)(self.text)
        return found
