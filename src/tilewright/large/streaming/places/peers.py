"""Copies blocks between GPUs: a block that another GPU has is copied over the link between the two GPUs and not read
from the host again.

The first GPU that loads a block lends it: other GPUs copy the block from the memory of this GPU as soon as the block
has arrived there. The lender overwrites the block only after all copies from it are done. A GPU waits only for work
that was submitted, to any GPU, before the wait. Because of this rule, GPUs cannot wait for each other in a circle.
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
    """A block in the memory of a GPU that other GPUs may copy.

    ``done`` gets the event that signals the arrival of the block, as soon as all copies that load the block are
    submitted. ``readers`` get the events that signal that another GPU has copied the block.
    """

    block: OperandBlock
    gpu: Device
    address: int
    nbytes: int
    done: Future[Event] = field(default_factory=Future)
    readers: list[Future[Event]] = field(default_factory=list)

    def arrived(self, event: Event) -> None:
        """Set ``done`` to the event that signals that the block has arrived. The event is recorded on the stream that
        loads the block.
        """
        with contextlib.suppress(InvalidStateError):  # ``refuse`` was called meanwhile
            self.done.set_result(event)

    def refuse(self, error: BaseException) -> None:
        """Make all waits for the block raise ``error``, because the block will not arrive."""
        with contextlib.suppress(InvalidStateError):
            self.done.set_exception(error)


class _Member(NamedTuple):
    staging: ThreadPoolExecutor
    over: ThreadPoolExecutor
    idle: Callable[[], None]


class Peers:
    """The blocks in the memories of all GPUs that can access each other's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lenders: dict[OperandBlock, LentBlock] = {}
        self._slots: dict[tuple[int, int], LentBlock] = {}
        self._members: list[_Member] = []

    def join(self, staging: ThreadPoolExecutor, over: ThreadPoolExecutor, idle: Callable[[], None]) -> None:
        """Add a GPU. ``staging`` are the threads that copy from the host, and ``over`` is the thread that submits copies
        from other GPUs.

        ``idle`` waits until all work that was submitted to the GPU is done.
        """
        self._members.append(_Member(staging, over, idle))

    def take(
        self, block: OperandBlock, gpu: Device, address: int, nbytes: int
    ) -> tuple[LentBlock, LentBlock | None, list[Future[Event]]]:
        """Record that ``gpu`` is about to load ``block`` into the memory at ``address``.

        Returns three values: the lent block of ``gpu``; the lent block of another GPU from which to copy, or None; and
        the copies that still read the previous block at ``address``. The memory of the other GPU's block stays
        unchanged until the copy from it is done.
        """
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
        """End all copies between the GPUs. After ``settle`` each GPU may free its memory.

        Waits for a block that will not arrive raise LaunchError. Raises the errors that occurred on the GPUs.
        """
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
