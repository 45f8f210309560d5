"""Blocks that one GPU needs and another one has: over the link between them, not once more through the host.

Whoever loads a block first is its lender: the others that need it copy it from there, as soon as it is there. The lender
brings nothing else to that slot until they have. All that one waits for was begun before it waits, on whichever GPU: so
they never wait for each other in a circle.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field

from ..errors import LaunchError
from ..run.streams import Moment, Streams
from .grid import Block

#: The copies that bring a block, each of which knows its moment as soon as it is asked of the GPU.
Copies = list[Future[Moment]]


@dataclass(eq=False)
class Lent:
    """A block in a slot of a GPU: there when its ``copies`` are. ``readers`` copy it to other GPUs."""

    block: Block
    gpu: Streams
    address: int
    nbytes: int
    copies: Copies
    readers: Copies = field(default_factory=list)


class Peers:
    """What lies in the slots of GPUs that reach each other's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lenders: dict[Block, Lent] = {}
        self._slots: dict[tuple[int, int], Lent] = {}
        self._pools: list[tuple[ThreadPoolExecutor, ThreadPoolExecutor]] = []

    def join(self, staging: ThreadPoolExecutor, over: ThreadPoolExecutor) -> None:
        """Of one more GPU, the threads that copy from the host, and the one that asks for copies from other GPUs."""
        self._pools.append((staging, over))

    def take(
        self, block: Block, gpu: Streams, address: int, nbytes: int, pieces: int
    ) -> tuple[Lent, Lent | None, Copies]:
        """For a block that ``gpu`` is about to bring to a slot: itself, its lender, and who still reads what was there.

        It has ``pieces`` copies where there is no lender, else a single one, for which the lender now waits.
        """
        with self._lock:
            before = self._slots.pop((id(gpu), address), None)
            if before is not None and self._lenders.get(before.block) is before:
                del self._lenders[before.block]
            lender = self._lenders.get(block)
            own = Lent(block, gpu, address, nbytes, [Future() for _ in range(1 if lender else pieces)])
            self._slots[id(gpu), address] = own
            self._lenders.setdefault(block, own)
            if lender is not None:
                lender.readers.extend(own.copies)
            return own, lender, before.readers if before is not None else []

    def settle(self) -> None:
        """Nobody copies any more, of all who joined; who still waits for a copy gets an error."""
        for staging, _ in self._pools:
            staging.shutdown(cancel_futures=True)
        for lent in self._slots.values():
            refuse(lent.copies, LaunchError("a copy was not begun any more"))
        for _, over in self._pools:
            over.shutdown(cancel_futures=True)


def fulfil(copy: Future[Moment], work: Callable[[], Moment]) -> None:
    """Tell ``copy`` what the work answers, or raises; there is no work where it was refused."""
    if not copy.done():
        try:
            moment = work()
        except BaseException as error:  # raised by whoever needs the block
            refuse([copy], error)
        else:
            with contextlib.suppress(InvalidStateError):
                copy.set_result(moment)


def refuse(copies: Copies, error: BaseException) -> None:
    """Those that are not done have failed: nobody may wait for them forever."""
    for copy in copies:
        with contextlib.suppress(InvalidStateError):
            copy.set_exception(error)
