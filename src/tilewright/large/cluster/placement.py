"""Asks the workers of a cluster which devices, memory and rates they have for a product, checks that the answers agree,
and chooses the devices that compute.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import math
import queue
import secrets
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from ...errors import ClusterError, TilewrightError
from ...host.machine import bytes_text
from ...host.steps import announced
from ...product.plan import Choice
from ..streaming.plan.cost import Rates
from ..streaming.plan.cuts import Room
from .connect import SCHEDULER_LOST, STEP_S, last_heard, wait_unless_stopped, when_ended, why_ended, workers_alive
from .order import ProductOrder, RemotePlace, TaskFailure, WorkerFacts
from .session import worker_facts

#: Workers are waited for until nothing was heard of them for ANSWER_S seconds: they may have to compile, on a busy machine.
#: After the first answer the others get as long again as that took, but at least OTHERS_S.
ANSWER_S, OTHERS_S = 120.0, 10.0
#: Seconds between two looks at what the scheduler has heard.
HEARD_S = 1.0
#: Workers that may die before they answer.
MOST_LOST = 3

#: The answer of a task that failed: what it returned, or what was raised.
Failure = TaskFailure | BaseException


@dataclasses.dataclass(frozen=True)
class ClusterPlacement:
    """The devices that compute a product on a cluster: all devices of every worker that answered. ``ClusterPlacement``
    has the interface of ``places.Placement``.
    """

    facts: tuple[WorkerFacts, ...]
    choice: Choice[Any]
    room: Room
    gpus: tuple[Any, ...] = ()

    @property
    def triangle(self) -> bool:
        """False, because workers always compute all of C, even if it is symmetric."""
        return False

    @property
    def places(self) -> list[RemotePlace]:
        """All devices of all workers."""
        return [RemotePlace(each.worker, device) for each in self.facts for device in each.devices]

    @property
    def names(self) -> list[str]:
        """The devices, as text."""
        return [str(place) for place in self.places]

    @property
    def summary(self) -> str:
        """A line of text about the number of workers, their hosts, devices and memory."""
        hosts = len({each.host for each in self.facts})
        devices = collections.Counter(device.partition(":")[0] for each in self.facts for device in each.devices)
        threads = sorted({each.threads for each in self.facts})
        counted = f"{threads[0]}" if len(threads) == 1 else f"{threads[0]} to {threads[-1]}"
        what = f"{devices['cuda']} GPUs" if devices["cuda"] else f"{counted} thread{'' if threads == [1] else 's'} each"
        memory = bytes_text(min(each.memory for each in self.facts))
        workers, on = len(self.facts), f"{hosts} host{'' if hosts == 1 else 's'}"
        return f"{workers} worker{'' if workers == 1 else 's'} on {on}, {what}, memory limit {memory}"

    @property
    def kernel_fact(self) -> str:
        """A text with everything about the kernel that can change the bits of the result. This text is the same for all
        workers.
        """
        return self.facts[0].kernel

    @property
    def threads(self) -> int:
        """The largest number of threads of a worker."""
        return max(each.threads for each in self.facts)

    @property
    def memory(self) -> int:
        """The smallest memory limit of a worker in bytes."""
        return min(each.memory for each in self.facts)

    def rates(self, *_: Any) -> Rates:
        """Return the rates of a typical worker while all workers work at the same time."""
        shared = [_shared(each, self.facts) for each in self.facts]
        middle = {
            name: statistics.median_low(getattr(rates, name) for rates in shared)
            for name in ("flops", "in_bytes", "out_bytes", "read_bytes", "copy_s", "wave_s")
        }
        return dataclasses.replace(shared[0], **middle, most_read_bytes=middle["read_bytes"] * len(self.places))


class Looks:
    """The tasks that ask workers which devices, memory and rates they have for a product. Each worker is asked once."""

    def __init__(self, client: Any, order: ProductOrder, known: Iterable[str] = ()) -> None:
        """Workers that are ``known`` are not asked."""
        self._client, self._order = client, order
        self._tasks: dict[str, Any] = dict.fromkeys(known)
        self._ended: queue.SimpleQueue[tuple[str, str, WorkerFacts | Failure]] = queue.SimpleQueue()
        #: Workers that were lost before they answered.
        self.lost = 0

    @property
    def pending(self) -> int:
        """The number of workers that were asked and have not answered yet."""
        return sum(task is not None for task in self._tasks.values())

    def ask(self, alive: frozenset[str]) -> None:
        """Ask the workers that have joined for their facts, and forget the workers that are gone.

        All new workers are asked at the same time. For this reason, workers that share a disk or a processor measure
        the rate that each of them gets while the others use it too.
        """
        for worker in self._tasks.keys() - alive:
            task = self._tasks.pop(worker)
            self.lost += task is not None
            _release(task)
        for worker in sorted(alive - self._tasks.keys()):
            name = f"tilewright-facts-{self._order.key}-{secrets.token_hex(4)}"
            task = self._client.submit(worker_facts, self._order, workers=[worker], pure=False, key=name)
            self._tasks[worker] = task
            when_ended(self._client, task, functools.partial(self._tell, worker, name))

    def answers(self) -> Iterator[tuple[str, WorkerFacts | Failure]]:
        """Yield each worker that has answered since the last call, with its answer."""
        with contextlib.suppress(queue.Empty):
            while True:
                worker, name, answer = self._ended.get_nowait()
                task = self._tasks.get(worker)
                if task is not None and task.key == name:  # a worker that was lost and is back was asked again
                    _release(task)
                    self._tasks[worker] = None
                    yield worker, answer

    def close(self) -> None:
        """Release the tasks of workers that have not answered."""
        for task in self._tasks.values():
            _release(task)
        self._tasks.clear()

    def _tell(self, worker: str, name: str, answer: WorkerFacts | Failure) -> None:
        self._ended.put((worker, name, answer))


def _release(task: Any) -> None:
    if task is not None:
        task.release()


class _Hearing:
    """The time at which the scheduler last got a message from a worker."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._heard = last_heard(client)
        self._looked_s = self._changed_s = time.monotonic()

    def silent_s(self) -> float:
        """The seconds since the scheduler last got a message from any of the workers that can begin tasks."""
        now = time.monotonic()
        if now > self._looked_s + HEARD_S:
            heard, self._looked_s = last_heard(self._client), now
            if heard and heard != self._heard:
                self._heard, self._changed_s = heard, now
        return now - self._changed_s


def ask_workers(client: Any, order: ProductOrder) -> tuple[WorkerFacts, ...]:
    """Ask all workers which devices, memory and rates they have for a product, and return their answers.

    The function waits for the first answer as long as the scheduler gets messages from workers, because a worker on a
    busy machine may need minutes to compile. After the first answer the function waits only a short time for the other
    workers, which can join later. Raises the first error of a worker, and ClusterError if the scheduler gets no message
    from any worker, or if the workers die.
    """
    answers: list[WorkerFacts] = []
    begun, until = time.monotonic(), math.inf
    hearing = _Hearing(client)
    with contextlib.closing(Looks(client, order)) as looks, announced("waiting for workers, which may have to compile"):
        while not answers or (looks.pending and time.monotonic() < until):
            looks.ask(workers_alive(client))
            for worker, answer in looks.answers():
                if not isinstance(answer, WorkerFacts):
                    raise explained(answer, f"worker {worker} cannot take part")
                answers.append(answer)
                until = min(until, time.monotonic() + max(OTHERS_S, time.monotonic() - begun))
            if not answers and looks.lost > MOST_LOST:
                raise ClusterError(f"{looks.lost} workers died before they said what they can do{why_ended()}")
            if not answers and hearing.silent_s() > ANSWER_S:
                raise ClusterError(
                    f"no worker answered, and for {ANSWER_S:.0f} s nothing was heard of any that begins tasks: they may be "
                    f"paused or gone{why_ended()}"
                )
            wait_unless_stopped(STEP_S / 4)
    return tuple(sorted(answers, key=lambda facts: facts.worker))


def place_on(client: Any, order: ProductOrder) -> ClusterPlacement:
    """Return the placement of a product on all workers. If some workers have GPUs, only these workers compute.

    Raises ClusterError if different workers would compute different bits.
    """
    facts = ask_workers(client, order)
    with_gpus = tuple(each for each in facts if each.devices != ("cpu",))
    facts = with_gpus or facts
    check_alike(facts)
    room = min((each.room for each in facts), key=lambda room: room.place)
    try:
        choice = facts[0].chosen.choice()
    except KeyError:
        raise ClusterError(
            f"the workers have a kernel {facts[0].chosen.name} that this process has not: {_SAME}"
        ) from None
    return ClusterPlacement(facts, choice, room)


_SAME = "install the same version of Tilewright on all"


def check_alike(facts: Sequence[WorkerFacts]) -> None:
    """Raise ClusterError unless all workers would compute the same bits."""
    first = facts[0]
    for other in facts[1:]:
        for what in ("version", "kernel", "dtype"):
            one, another = getattr(first, what), getattr(other, what)
            if one != another:
                raise ClusterError(
                    f"worker {first.worker} has {what} {one}, and {other.worker} has {another}: bits would depend on who "
                    f"computes; {_SAME}, on one kind of processor, or name the workers of one kind"
                )


def explained(failure: Failure, what: str) -> TilewrightError:
    """Return the error that the client raises for a failed task. ``what`` says what failed."""
    if isinstance(failure, TaskFailure):
        return failure.error(what)
    if isinstance(failure, (CancelledError, asyncio.CancelledError)):
        return ClusterError(SCHEDULER_LOST)
    if isinstance(failure, ImportError):
        return ClusterError(f"{what}: it lacks something that this process has ({failure}); {_SAME}")
    if type(failure).__name__ == "KilledWorker":
        return ClusterError(f"{what}: it died again and again; its log says why, and with less memory it may do better")
    found = ClusterError(f"{what}: {type(failure).__name__}: {failure}")
    found.__cause__ = failure
    return found


def _shared(facts: WorkerFacts, all_facts: Sequence[WorkerFacts]) -> Rates:
    """The rates of a worker on the CPU while its neighbours compute as well; those of GPUs are their own."""
    if facts.devices != ("cpu",):
        return facts.rates
    threads = sum(each.threads for each in all_facts if each.host == facts.host)
    share = min(1.0, facts.cores / threads)
    return dataclasses.replace(
        facts.rates,
        flops=facts.rates.flops * share,
        copy_s=facts.rates.copy_s / share,
        wave_s=facts.rates.wave_s / share,
    )


def workers_of(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the address and host of each worker that can get tasks, according to the scheduler's information."""
    return {
        address: str(each.get("host", ""))
        for address, each in info["workers"].items()
        if each.get("status") != "closing"
    }
