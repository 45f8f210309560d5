"""The three lanes of a simulated worker, and what its time is spent on."""

from __future__ import annotations

from collections.abc import Sequence

from ..streaming.plan.cost import Rates
from ..streaming.plan.grid import Tile
from .simulation import SimulatedWorker
from .tile_work import History, LoadPiece, StepGroup, TileWork


class WorkerLanes:
    """The lanes of a worker. Pieces are numbered over all of its tiles; a list has the time at which each was done, and the
    share of the time it took that others' use of the storage cost."""

    def __init__(self, number: int, rates: Rates, part: Sequence[Tile], history: History) -> None:
        self.number, self.rates, self.done, self.history = number, rates, SimulatedWorker(), history
        self.corner = part[0] if part else Tile(0, 0)
        #: Each tile's work and the time at which it was received.
        self.works: list[tuple[TileWork, float]] = []
        self.loads: list[LoadPiece] = []
        #: Each group with its tile's number, and the load pieces that its first and last step need.
        self.groups: list[tuple[StepGroup, int, int, int]] = []
        self.loaded: list[tuple[float, float]] = []
        self.spans: list[tuple[float, float]] = []
        self.stored: list[tuple[float, float]] = []
        #: When the piece under way began, None where a lane has none.
        self.load_s: float | None = None
        self.group_s: float | None = None
        self.store_s: float | None = None
        self.group_known = False
        self.computed, self.computed_tiles, self.free_s, self.wake_s = 0, 0, 0.0, -1.0

    @property
    def follows_a_tile(self) -> bool:
        """Whether the group under way is the first of a tile after another, whose store takes time from the processors."""
        return self.computed > 0 and self.groups[self.computed - 1][1] != self.groups[self.computed][1]

    def spend(self, seconds: float, waited: float) -> None:
        """Count time that the worker waited for a copy; ``waited`` is the share that others' copies cost."""
        self.done.spent_s["storage"] += seconds * waited
        self.done.spent_s["link"] += seconds * (1 - waited)

    def account(self, now: float, start_s: float, given_s: float, first: int, after: int) -> None:
        """Count what the worker waited for until now: for the tile, given at ``given_s``, where the cluster started at
        ``start_s``; then for the first ``first`` pieces or for store number ``after`` (−1: none)."""
        free_s, spent = self.free_s, self.done.spent_s
        if given_s > free_s:
            starting_s = max(0.0, min(start_s, given_s) - free_s)
            spent["start"] += starting_s
            spent["scheduler"] += given_s - free_s - starting_s
            free_s = given_s
        loaded = self.loaded[first - 1] if first else (0.0, 0.0)
        stored = self.stored[after] if after >= 0 else (0.0, 0.0)
        self.spend(now - free_s, max(loaded, stored)[1])
