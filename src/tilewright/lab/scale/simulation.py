"""What a simulation of a cluster returns: times, bytes, and what each worker's time is spent on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...large.streaming.plan.grid import Tile
from ...large.streaming.plan.plan import StreamPlan
from ...records.scaling import SPENT


class TileEvent(NamedTuple):
    """A tile was ``given`` to a worker, ``begun`` (its first multiplication) or ``stored``."""

    time_s: float
    worker: int
    what: str
    tile: Tile


@dataclass
class SimulatedWorker:
    """What a worker did. ``in_bytes`` were copied to its slots; ``received_bytes`` of them came from storage or from other
    workers. ``out_bytes`` are those of its tiles of C. ``spent_s`` has the seconds of each of SPENT."""

    tiles: list[Tile] = field(default_factory=list)
    in_bytes: int = 0
    received_bytes: int = 0
    out_bytes: int = 0
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))

    @property
    def busy_s(self) -> float:
        """Seconds in which it computed."""
        return self.spent_s["compute"]

    @property
    def idle_s(self) -> float:
        """Seconds in which it had no tile left."""
        return self.spent_s["balance"]

    @property
    def waiting_s(self) -> float:
        """Seconds in which it had a tile, or was to get one, and could not compute."""
        return sum(seconds for what, seconds in self.spent_s.items() if what not in ("compute", "balance"))


@dataclass(frozen=True)
class Simulation:
    """The predicted run of ``plan``: its time, what each worker did, and when each tile was given, begun and stored."""

    plan: StreamPlan
    total_s: float
    workers: tuple[SimulatedWorker, ...]
    events: tuple[TileEvent, ...]

    @property
    def shares(self) -> dict[str, float]:
        """The share of all workers' time that is spent on each of SPENT; the sum is 1."""
        whole = self.total_s * len(self.workers) or 1.0
        return {what: sum(worker.spent_s[what] for worker in self.workers) / whole for what in SPENT}

    @property
    def binds(self) -> str:
        """What decides the time: "compute" if at least half of it is spent on that, else what takes most of the rest."""
        shares = self.shares
        return "compute" if shares["compute"] >= 0.5 else self.loss

    @property
    def loss(self) -> str:
        """What takes most of the time that is not spent on computing."""
        shares = self.shares
        return max((what for what in SPENT if what != "compute"), key=shares.__getitem__)

    @property
    def moved_bytes(self) -> int:
        """Bytes copied into and out of the memories where blocks are multiplied."""
        return sum(worker.in_bytes + worker.out_bytes for worker in self.workers)

    @property
    def least_bytes(self) -> int:
        """The fewest bytes that any order of these workers' tiles moves, by the I/O lower bound."""
        parts = tuple(tuple(sorted(worker.tiles)) for worker in self.workers if worker.tiles)
        return replace(self.plan, parts=parts).least_bytes
