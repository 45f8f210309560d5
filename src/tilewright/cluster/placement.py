"""The workers of a cluster as the places of a product: asked what they can do, compared, and planned for."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ClusterError, TilewrightError
from ..host.machine import bytes_text
from ..planning.choice import Choice
from ..streaming.plan.cost import Rates
from ..streaming.plan.cuts import Room
from .connect import wait_until_ended
from .order import ProductOrder, RemotePlace, WorkerFacts
from .session import look

#: Seconds in which a worker must answer what it can do; the first time it may compile.
ANSWER_S = 120.0


@dataclasses.dataclass(frozen=True)
class ClusterPlacement:
    """Where a product runs: on every device of every worker that answered; see ``places.Placement``."""

    facts: tuple[WorkerFacts, ...]
    choice: Choice[Any]
    room: Room
    gpus: tuple[Any, ...] = ()

    @property
    def places(self) -> list[RemotePlace]:
        """One for each device of each worker."""
        return [RemotePlace(each.worker, device) for each in self.facts for device in each.devices]

    @property
    def names(self) -> list[str]:
        """The places, as text."""
        return [str(place) for place in self.places]

    @property
    def summary(self) -> str:
        """The workers in a line."""
        hosts, devices = (
            len({each.host for each in self.facts}),
            collections.Counter(device.partition(":")[0] for each in self.facts for device in each.devices),
        )
        threads = sorted({each.threads for each in self.facts})
        counted = f"{threads[0]}" if len(threads) == 1 else f"{threads[0]} to {threads[-1]}"
        what = f"{devices['cuda']} GPUs" if devices["cuda"] else f"{counted} thread{'' if threads == [1] else 's'} each"
        memory = bytes_text(min(each.memory for each in self.facts))
        workers, on = len(self.facts), f"{hosts} host{'' if hosts == 1 else 's'}"
        return f"{workers} worker{'' if workers == 1 else 's'} on {on}, {what}, memory limit {memory}"

    @property
    def kernel_fact(self) -> str:
        """What the bits depend on: the same on all workers."""
        return self.facts[0].kernel

    @property
    def threads(self) -> int:
        """Threads of the worker that has the most."""
        return max(each.threads for each in self.facts)

    @property
    def memory(self) -> int:
        """Bytes of the smallest memory limit."""
        return min(each.memory for each in self.facts)

    def rates(self, *_: Any) -> Rates:
        """The rates of a typical worker while all work at the same time."""
        shared = [_shared(each, self.facts) for each in self.facts]
        middle = {
            name: statistics.median_low(getattr(rates, name) for rates in shared)
            for name in ("flops", "in_bytes", "out_bytes", "read_bytes", "copy_s", "wave_s")
        }
        return dataclasses.replace(shared[0], **middle, most_read_bytes=middle["read_bytes"] * len(self.places))


def ask_workers(client: Any, order: ProductOrder, workers: Sequence[str]) -> tuple[WorkerFacts, ...]:
    """What these workers say of themselves, all asked at once, so that those that share a disk or a processor measure it
    shared. Raises the first error of a worker, ClusterError where none answers in time."""
    asked = {
        worker: client.submit(
            look, order, workers=[worker], allow_other_workers=False, pure=False, key=f"look-{order.key}-{worker}"
        )
        for worker in workers
    }
    with contextlib.suppress(Exception):  # raised below, with the worker's name
        wait_until_ended(list(asked.values()), ANSWER_S)
    answers = []
    for worker, future in asked.items():
        if future.status == "error":
            raise _explained(worker, future.exception())
        if future.status == "finished":
            answers.append(future.result())
    client.cancel([future for future in asked.values() if future.status == "pending"])
    if not answers:
        raise ClusterError(f"none of {len(workers)} workers answered in {ANSWER_S:.0f} s: they may be busy or paused")
    return tuple(answers)


def place_on(client: Any, order: ProductOrder) -> ClusterPlacement:
    """The placement of a product on all workers. If some have GPUs, only these compute.

    Raises ClusterError where workers would compute other bits than others.
    """
    facts = ask_workers(client, order, list(client.scheduler_info(n_workers=-1)["workers"]))
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
    """Raise ClusterError unless the result has the same bits whoever computes it."""
    first = facts[0]
    for other in facts[1:]:
        for what in ("version", "kernel"):
            one, another = getattr(first, what), getattr(other, what)
            if one != another:
                raise ClusterError(
                    f"worker {first.worker} has {what} {one}, and {other.worker} has {another}: bits would depend on who "
                    f"computes; {_SAME}, on one kind of processor, or name the workers of one kind"
                )


def _explained(worker: str, error: BaseException) -> TilewrightError:
    """An error of a worker that was asked, in one line."""
    if isinstance(error, TilewrightError):
        return error
    if isinstance(error, ImportError):
        return ClusterError(f"worker {worker} lacks something that this process has ({error}): {_SAME}")
    return ClusterError(f"worker {worker} cannot take part: {type(error).__name__}: {error}")


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
    """The address of each worker that can get tasks, and its host, from what a scheduler says."""
    return {
        address: str(each.get("host", ""))
        for address, each in info["workers"].items()
        if each.get("status") != "closing"
    }
