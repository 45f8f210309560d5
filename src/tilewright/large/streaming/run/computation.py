"""What computes a product once it is planned: all places of this process, or the workers of a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ....product.plan import Choice
from ...files import Sink, Source
from ...files.format import locate
from ..places.events import Events
from ..places.places import Placement
from ..plan.cost import Rates
from ..plan.cuts import Room
from ..plan.grid import Tile
from ..plan.kernel import word_of_choice
from ..plan.stream import StreamPlan
from .counting import CountedPlace, CountedSource
from .durable import Durable
from .executor import execute
from .parallel import execute_on_all


@dataclass(frozen=True)
class Product:
    """The operands as they were given, and the dtype of C. The choice of a placement says in which one blocks are."""

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

    def facts(self, placed: Placed, target: Any) -> dict[str, str]:
        """What the bits of the result's file depend on, by name: the operands' contents, and what multiplies them."""
        return {
            "a": self.a.fingerprint(),
            "b": self.b.fingerprint(),
            "the dtype": self.dtype.name,
            "the result's name": str(locate(os.fspath(target))[2]),
            "the precision": word_of_choice(placed.choice.compute, self.dtype.name),
            "the kernel": placed.kernel_fact,
        }


class Placed(Protocol):
    """Where a product is computed; what ``places.Placement`` says of this process, and a cluster of its workers."""

    @property
    def choice(self) -> Choice[Any]:
        """The kernel, and why."""
        ...

    @property
    def kernel_fact(self) -> str:
        """What the bits of a product depend on, beside its operands."""
        ...

    @property
    def room(self) -> Room:
        """What the blocks of each place must fit."""
        ...

    @property
    def names(self) -> list[str]:
        """The places, as text."""
        ...

    @property
    def summary(self) -> str:
        """A line about the workers of a cluster."""
        ...

    @property
    def gpus(self) -> tuple[Any, ...]:
        """The GPUs of this process that compute."""
        ...

    @property
    def threads(self) -> int:
        """Threads on the CPU."""
        ...

    @property
    def memory(self) -> int:
        """Bytes of the host's memory that may be used."""
        ...

    def rates(self, a: Source, b: Source, out: Any, dtype: str) -> Rates:
        """The rates of a place."""
        ...


class Computation(Protocol):
    """Computes all tiles of a job's plan, and has them written to its sink."""

    def __call__(self, product: Product, plan: StreamPlan, sink: Sink, callbacks: Callbacks, events: Events) -> None:
        """Raises the first error when all of its threads have stopped; what was finished until then is kept."""


@dataclass(frozen=True)
class Callbacks:
    """What a computation tells its job: operations as they are done, each tile when it is finished, and how many bytes of
    operands which place read. ``durable``: a tile is finished when it is on the disk."""

    multiplied: Callable[[int], None]
    finished: Callable[[Tile], None]
    read: Callable[[int, str], None]
    durable: bool


def compute_here(
    placement: Placement, product: Product, plan: StreamPlan, sink: Sink, callbacks: Callbacks, events: Events
) -> None:
    """The computation of a product in this process, in all places of its placement."""
    a, b = (CountedSource(source, lambda nbytes: callbacks.read(nbytes, "")) for source in product.sources)
    with contextlib.ExitStack() as stack:
        durable = Durable(sink.flush, callbacks.finished) if callbacks.durable else None
        if durable is not None:
            stack.callback(durable.close)  # also where a lane fails: what was stored until then is kept
        places = [
            CountedPlace(stack.enter_context(contextlib.closing(place)), plan.grid, callbacks.multiplied)
            for place in placement.places(plan, a, b, sink, events)
        ]
        _execute(plan, places, callbacks.finished if durable is None else durable.stored)


def _execute(plan: StreamPlan, places: list[Any], stored: Callable[[Tile], None]) -> None:
    if len(places) == 1:
        execute(plan.schedule(), places[0], stored)
        return
    execute_on_all(plan.grid, plan.slots, places, plan.parts, stored)
