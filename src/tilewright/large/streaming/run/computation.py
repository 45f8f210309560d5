"""Computes a planned product on the devices of this process or on the workers of a cluster, and counts what is done.

This module counts the bytes that are read and the operations that are done. A separate thread flushes finished tiles to
the disk, so that storing the next tile does not wait for the disk.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ....host.cached_property import cached_property
from ....product.plan import Choice
from ...files import Sink, Source
from ...files.axes import is_transpose, joined, product_extents
from ...files.checks import ArrayShape
from ...files.format import locate
from ..places.place import Events, Place, Token
from ..places.places import Placement
from ..plan.cost import Rates
from ..plan.cuts import Room
from ..plan.grid import Grid, Tile
from ..plan.kernel import word_of_choice
from ..plan.schedule import Multiply
from ..plan.stream import StreamPlan
from .executor import execute, execute_on_all

# ---- counting --------------------------------------------------------------------------------------------------------


class SharedCounter:
    """A sum to which several threads can add."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def add(self, more: int, tell: Callable[[int], None] = lambda count: None) -> None:
        """Add ``more`` to the sum, and call ``tell`` with the sum. Only one thread at a time calls ``tell``."""
        with self._lock:
            self.count += more
            tell(self.count)

    def take(self) -> int:
        """Return the sum, and set it to 0."""
        with self._lock:
            count, self.count = self.count, 0
        return count


class CountedSource:
    """A source that calls ``tell`` with the number of bytes of each read, in the dtype of the file."""

    def __init__(self, source: Source, tell: Callable[[int], None]) -> None:
        self._source, self._tell = source, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, rows: slice, columns: slice, out: np.ndarray[Any, Any]) -> None:
        """Read a rectangle from the source, and count its bytes."""
        self._source.read(rows, columns, out)
        self._tell(out.size * self._source.dtype.itemsize)


class CountedPlace:
    """A place that calls ``tell`` with the number of operations of each multiplication when it is submitted."""

    def __init__(self, place: Place, grid: Grid, tell: Callable[[int], None]) -> None:
        self._place, self._grid, self._tell = place, grid, tell
        self.load, self.store, self.close = place.load, place.store, place.close

    def multiply(self, step: Multiply, needs: tuple[Token, Token], after: Token) -> Token:
        """Submit a multiplication to the place, and count its operations."""
        token = self._place.multiply(step, needs, after)
        depth = self._grid.depth(step.p)
        self._tell(2 * math.prod(self._grid.size(step.tile)) * (depth.stop - depth.start))
        return token


# ---- flushed tiles ---------------------------------------------------------------------------------------------------


class TileFlusher:
    """A thread that calls ``flush``, and then ``note(tile)`` for each tile that was stored before this flush began.

    If the disk is slow, one flush covers all tiles that were stored during the previous flush. An error is passed to
    ``failed`` at once, and raised by the next call of ``stored`` or by ``close``.
    """

    def __init__(
        self,
        flush: Callable[[], None],
        note: Callable[[Tile], None],
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._flush, self._note, self._failed = flush, note, failed
        self._waiting: queue.SimpleQueue[Tile | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="tile flusher")
        self._thread.start()

    def stored(self, tile: Tile) -> None:
        """Tell the thread that a tile was stored. The thread calls ``note`` with the tile when the tile is on the
        disk.
        """
        if self._error is not None:
            raise self._error
        self._waiting.put(tile)

    def close(self) -> None:
        """Wait until the thread has called ``note`` for every stored tile. Raises the error of the thread."""
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            for tiles in self._batches():
                self._flush()
                for tile in tiles:
                    self._note(tile)
        except BaseException as error:  # raised again by the thread that stores
            self._error = error
            self._failed(error)

    def _batches(self) -> Iterator[list[Tile]]:
        """Lists of the tiles that wait for a flush, until None is in the queue."""
        ended = False
        while not ended:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            ended = None in batch
            if tiles := [tile for tile in batch if tile is not None]:
                yield tiles


# ---- computations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """The operands as the caller gave them, and the dtype of C. The dtype in which blocks are multiplied may differ
    from ``dtype``, and is part of the placement.
    """

    a: Source
    b: Source
    dtype: np.dtype[Any]

    @property
    def sources(self) -> tuple[Source, Source]:
        """Both operands."""
        return self.a, self.b

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    @property
    def extents(self) -> tuple[ArrayShape, ArrayShape]:
        """The sizes of the axes of C that form its rows, and the sizes of the axes that form its columns."""
        return product_extents(self.a, self.b)

    @property
    def result_shape(self) -> ArrayShape:
        """The shape of C as an array."""
        return joined(self.extents)

    @cached_property
    def is_gram(self) -> bool:
        """Whether C is known to be symmetric, because B is the transpose of A in the same file or array."""
        (m, n, k) = self.shape
        return m == n and min(m, k) > 0 and is_transpose(self.a, self.b)

    def facts(self, placed: Placed, target: Any) -> dict[str, str]:
        """Return a dictionary of everything that can change the bits of the result's file, such as the contents of the
        operands and the kernel.
        """
        return {
            "a": self.a.fingerprint(),
            "b": self.b.fingerprint(),
            "the dtype": self.dtype.name,
            "the result's name": str(locate(os.fspath(target))[2]),
            "the precision": word_of_choice(placed.choice.compute, self.dtype.name),
            "the kernel": placed.kernel_fact,
        }


class Placed(Protocol):
    """The devices and the kernel that compute a product. ``places.Placement`` implements this interface for this
    process, and ``ClusterPlacement`` for a cluster of workers.
    """

    @property
    def choice(self) -> Choice[Any]:
        """The chosen kernel and the reason for the choice."""
        ...

    @property
    def kernel_fact(self) -> str:
        """A text with everything about the kernel that can change the bits of a product."""
        ...

    @property
    def triangle(self) -> bool:
        """Whether only one triangle of a symmetric C is computed and then copied."""
        ...

    @property
    def room(self) -> Room:
        """The memory in which the blocks of each place must fit."""
        ...

    @property
    def names(self) -> list[str]:
        """The devices, as text."""
        ...

    @property
    def summary(self) -> str:
        """A line of text about the workers of a cluster."""
        ...

    @property
    def gpus(self) -> tuple[Any, ...]:
        """The GPUs of this process that compute the product."""
        ...

    @property
    def threads(self) -> int:
        """The number of threads that compute on the CPU."""
        ...

    @property
    def memory(self) -> int:
        """The number of bytes of the host's memory that the product may use."""
        ...

    def rates(self, a: Source, b: Source, out: Any, dtype: str) -> Rates:
        """Return the measured rates of one device."""
        ...


class Computation(Protocol):
    """A function that computes all tiles of a job's plan and writes them to a sink."""

    def __call__(self, product: Product, plan: StreamPlan, sink: Sink, callbacks: Callbacks, events: Events) -> None:
        """Raises the first error when all of its threads have stopped; what was finished until then is kept."""


@dataclass(frozen=True)
class Callbacks:
    """The functions with which a computation reports to its job the operations that are done, each finished tile, and
    the bytes that a device has read.

    If ``durable`` is set, a tile counts as finished only when it is on the disk.
    """

    multiplied: Callable[[int], None]
    finished: Callable[[Tile], None]
    read: Callable[[int, str], None]
    durable: bool


def compute_here(
    placement: Placement, product: Product, plan: StreamPlan, sink: Sink, callbacks: Callbacks, events: Events
) -> None:
    """Compute a product in this process, on all devices of its placement."""
    a, b = (CountedSource(source, lambda nbytes: callbacks.read(nbytes, "")) for source in product.sources)
    with contextlib.ExitStack() as stack:
        flusher = TileFlusher(sink.flush, callbacks.finished) if callbacks.durable else None
        if flusher is not None:
            stack.callback(flusher.close)  # also where a thread fails: tiles that were stored before are noted
        places = [
            CountedPlace(stack.enter_context(contextlib.closing(place)), plan.grid, callbacks.multiplied)
            for place in placement.places(plan, a, b, sink, events)
        ]
        _execute(plan, places, callbacks.finished if flusher is None else flusher.stored)


def _execute(plan: StreamPlan, places: list[Any], stored: Callable[[Tile], None]) -> None:
    if len(places) == 1:
        execute(plan.schedule(), places[0], stored)
        return
    execute_on_all(plan.grid, plan.slots, places, plan.regions, stored)
