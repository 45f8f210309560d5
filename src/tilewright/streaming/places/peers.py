"""Blocks that one GPU needs and another one has: copied over the link between them, not read from the host again.

The GPU that loads a block first lends it: the others that need it copy it from its slot when it has arrived. The lender
loads nothing else into that slot until these copies are done. Every wait is for work that was submitted before the wait, on
any GPU: so GPUs never wait for each other in a circle.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import LaunchError
from ...runtime.gpu.device import Device
from ...runtime.gpu.stream import Event
from ..plan.grid import OperandBlock


@dataclass(eq=False)
class Lent:
    """A block in a slot of a GPU. ``done`` knows when it is there, as soon as all its copies are asked of the GPU; others
    copy it to their slots: ``readers`` know when they have."""

    block: OperandBlock
    gpu: Device
    address: int
    nbytes: int
    done: Future[Event] = field(default_factory=Future)
    readers: list[Future[Event]] = field(default_factory=list)

    def arrived(self, event: Event) -> None:
        """Told when the block is there, at an event of the stream that brought it."""
        with contextlib.suppress(InvalidStateError):  # refused meanwhile
            self.done.set_result(event)

    def refuse(self, error: BaseException) -> None:
        """It will not come: waits for it end with ``error``."""
        with contextlib.suppress(InvalidStateError):
            self.done.set_exception(error)


class _Member(NamedTuple):
    staging: ThreadPoolExecutor
    over: ThreadPoolExecutor
    idle: Callable[[], None]


class Peers:
    """What lies in the slots of GPUs that reach each other's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lenders: dict[OperandBlock, Lent] = {}
        self._slots: dict[tuple[int, int], Lent] = {}
        self._members: list[_Member] = []

    def join(self, staging: ThreadPoolExecutor, over: ThreadPoolExecutor, idle: Callable[[], None]) -> None:
        """Of one more GPU, the threads that copy from the host, the one that asks for copies from other GPUs, and what
        waits until all that was asked of it is done."""
        self._members.append(_Member(staging, over, idle))

    def take(
        self, block: OperandBlock, gpu: Device, address: int, nbytes: int
    ) -> tuple[Lent, Lent | None, list[Future[Event]]]:
        """For a block that ``gpu`` is about to load into a slot: itself, its lender, which from now on waits for the copy,
        and the copies that still read what was there."""
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
        """End all copies of the GPUs that joined: from now on each may free memory from which others copied. Waits for a
        block that will not come end with an error. Raises what went wrong on a GPU."""
        members, self._members = self._members, []
        for member in members:
            member.staging.shutdown(cancel_futures=True)
        for lent in self._slots.values():
            lent.refuse(LaunchError("a copy was not begun any more"))
        for member in members:
            member.over.shutdown(cancel_futures=True)
        with contextlib.ExitStack() as stack:  # all of them, also where one is dead
            for member in members:
                stack.callback(member.idle)
