"""Blocks that one GPU needs and another one has: over the link between them, not once more through the host.

Whoever loads a block first is its lender: the others that need it copy it from there when it is there. The lender brings
nothing else to that slot until they have. All that one waits for was begun before it waits, on whichever GPU: so
they never wait for each other in a circle.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field

from ..errors import LaunchError
from ..run.streams import Moment, Streams
from .grid import Block


@dataclass(eq=False)
class Lent:
    """A block in a slot of a GPU. ``done`` knows when it is there, as soon as all its copies are asked of the GPU; others
    copy it to their slots: ``readers`` know when they have."""

    block: Block
    gpu: Streams
    address: int
    nbytes: int
    done: Future[Moment] = field(default_factory=Future)
    readers: list[Future[Moment]] = field(default_factory=list)

    def arrived(self, moment: Moment) -> None:
        with contextlib.suppress(InvalidStateError):  # refused meanwhile
            self.done.set_result(moment)

    def refuse(self, error: BaseException) -> None:
        """It will not come: nobody may wait for it forever."""
        with contextlib.suppress(InvalidStateError):
            self.done.set_exception(error)


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
        self, block: Block, gpu: Streams, address: int, nbytes: int
    ) -> tuple[Lent, Lent | None, list[Future[Moment]]]:
        """For a block that ``gpu`` is about to bring to a slot: itself, its lender, which from now on waits for it, and who
        still reads what was there."""
        own = Lent(block, gpu, address, nbytes)
        with self._lock:
            before = self._slots.pop((id(gpu), address), None)
            if before is not None and self._lenders.get(before.block) is before:
                del self._lenders[before.block]
            lender = self._lenders.setdefault(block, own)
            self._slots[id(gpu), address] = own
            if lender is not own:
                lender.readers.append(own.done)
        return own, None if lender is own else lender, [] if before is None else before.readers

    def settle(self) -> None:
        """Nobody copies any more, of all who joined; who still waits for a block gets an error."""
        for staging, _ in self._pools:
            staging.shutdown(cancel_futures=True)
        for lent in self._slots.values():
            lent.refuse(LaunchError("a copy was not begun any more"))
        for _, over in self._pools:
            over.shutdown(cancel_futures=True)
