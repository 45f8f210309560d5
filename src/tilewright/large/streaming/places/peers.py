"""Blocks that one GPU needs and another GPU has: copied over the link between them, not read from the host again.

The GPU that loads a block first lends it: other GPUs that need it copy it from its slot when it has arrived. The lender
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

from ....errors import LaunchError
from ....gpu.runtime.device import Device
from ....gpu.runtime.memory import Event
from ..plan.grid import OperandBlock


@dataclass(eq=False)
class LentBlock:
    """A block in a slot of a GPU. ``done`` gets the event of its arrival as soon as all its copies are submitted;
    ``readers`` get the events at which other GPUs have copied it to their slots."""

    block: OperandBlock
    gpu: Device
    address: int
    nbytes: int
    done: Future[Event] = field(default_factory=Future)
    readers: list[Future[Event]] = field(default_factory=list)

    def arrived(self, event: Event) -> None:
        """Set ``done`` to the event of the stream that loads the block, after which it is in its slot."""
        with contextlib.suppress(InvalidStateError):  # ``refuse`` was called meanwhile
            self.done.set_result(event)

    def refuse(self, error: BaseException) -> None:
        """The block will not arrive: waits for it raise ``error``."""
        with contextlib.suppress(InvalidStateError):
            self.done.set_exception(error)


class _Member(NamedTuple):
    staging: ThreadPoolExecutor
    over: ThreadPoolExecutor
    idle: Callable[[], None]


class Peers:
    """The blocks in the slots of GPUs that reach each other's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lenders: dict[OperandBlock, LentBlock] = {}
        self._slots: dict[tuple[int, int], LentBlock] = {}
        self._members: list[_Member] = []

    def join(self, staging: ThreadPoolExecutor, over: ThreadPoolExecutor, idle: Callable[[], None]) -> None:
        """Add a GPU: ``staging`` are the threads that copy from the host, ``over`` is the one that submits copies from other
        GPUs, and ``idle`` waits until all work submitted to the GPU is done."""
        self._members.append(_Member(staging, over, idle))

    def take(
        self, block: OperandBlock, gpu: Device, address: int, nbytes: int
    ) -> tuple[LentBlock, LentBlock | None, list[Future[Event]]]:
        """Note that ``gpu`` is about to load ``block`` into the slot at ``address``. Returns the lent block; its lender, if
        another GPU has it, which keeps it until this copy is done; and the copies that still read the slot's old block."""
        own = LentBlock(block, gpu, address, nbytes)
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
        """End all copies of the GPUs that joined, after which each GPU may free memory that others copied from. Waits for a
        block that will not arrive raise LaunchError. Raises the errors of the GPUs."""
        members, self._members = self._members, []
        for member in members:
            member.staging.shutdown(cancel_futures=True)
        for lent in self._slots.values():
            lent.refuse(LaunchError("a copy between GPUs was cancelled before it began"))
        for member in members:
            member.over.shutdown(cancel_futures=True)
        with contextlib.ExitStack() as stack:  # every GPU, also after one has failed
            for member in members:
                stack.callback(member.idle)
