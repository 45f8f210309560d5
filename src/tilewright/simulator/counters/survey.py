"""The accesses of each source line: their cost, the least cost of the same bytes, and one warp as an example.

``tally`` says what the hardware would count; this module records what explains the counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...records.explanation import Access
from ..assembly.instructions import Instruction
from ..assembly.source_files import file_label
from .sectors import IDLE, LINE, SECTOR, Ints, count_distinct
from .tally import Counters, Key, WarpCosts
from .work import UnitWork

#: Executions of an instruction that are examined for the example.
LOOKED_AT = 16


@dataclass
class _Example:
    """The most expensive request examined of one instruction."""

    looked_at: int = 0
    cost: int = -1
    origin: int = 0
    lanes: tuple[int | None, ...] = ()


def least_sectors(table: Ints, nbytes: int) -> Ints:
    """Sectors that the distinct bytes of each warp fill when packed: (w, 32) addresses → (w,).

    >>> lanes = np.arange(32)
    >>> least_sectors(np.stack([4 * lanes, 4096 * lanes, 0 * lanes]), 4).tolist()
    [4, 4, 1]
    """
    return -(-count_distinct(table) * nbytes // SECTOR)


class Survey:
    """Forwards every cost to ``counters`` and records least costs and examples.

    ``main`` is the kernel's own file. An access in a header that is not the user's counts at the line of the call.
    """

    def __init__(self, counters: Counters, main: str) -> None:
        self.counters, self.main = counters, main
        self._least: dict[Key, int] = {}
        self._examples: dict[Key, _Example] = {}
        self._places: dict[int, tuple[str, int]] = {}

    def add(self, costs: WarpCosts) -> None:
        """Add what ``counters.costs`` found."""
        self.counters.add(costs)
        execution, space = costs.execution, costs.execution.space
        assert isinstance(execution.ins, Instruction)
        self._place(execution.ins)
        example = self._examples.setdefault(execution.key, _Example())
        look = example.looked_at < LOOKED_AT
        if space == "shared" and not look:
            return
        if space != "shared":
            table, weights = execution.table, self.counters.standing_for(execution.ids)
            least = least_sectors(table, execution.nbytes) if space == "global" else costs.cost
            self._least[execution.key] = self._least.get(execution.key, 0) + int(least @ weights)
        if look:
            example.looked_at += 1
            self._look(example, costs)

    def on_work(self, work: UnitWork, ins: Instruction, warps: Ints) -> None:
        self.counters.on_work(work, ins, warps)
        self._place(ins)
        least = work.wavefronts if work.space == "shared" else work.sectors
        key = (ins.index, work.space, work.kind)
        self._least[key] = self._least.get(key, 0) + least * int(self.counters.standing_for(warps).sum())

    def _place(self, ins: Instruction) -> None:
        if ins.index not in self._places:
            self._places[ins.index] = (file_label(ins.users.file, self.main), ins.users.line)

    def _look(self, example: _Example, costs: WarpCosts) -> None:
        table, cost = costs.execution.table, costs.cost
        # On a tie take the request with the most lanes: a full warp shows more than a remainder.
        worst = int(np.argmax(cost * 64 + costs.lanes))
        if cost[worst] > example.cost:
            example.cost = int(cost[worst])
            example.origin = int(table[worst].min()) // LINE * LINE
            example.lanes = tuple(None if at == IDLE else int(at) - example.origin for at in table[worst])

    def accesses(self) -> list[Access]:
        """Accesses in order of the source line; those of one line, space, kind and width are merged."""
        by_place: dict[tuple[str, int, str, str, int], list[Access]] = {}
        for key, tally in self.counters.tallies().items():
            if not tally.lanes:
                continue  # issued without active lanes
            least = self._least.get(key, 0) if tally.space != "shared" else tally.wavefronts - tally.conflicts
            example = self._examples.get(key, _Example())
            file, line = self._places.get(key[0]) or (file_label(tally.file, self.main), tally.line)
            by_place.setdefault((file, line, tally.space, tally.kind, tally.nbytes), []).append(
                Access(
                    *(line, tally.space, tally.kind, tally.nbytes, tally.requests, tally.bytes),
                    *(tally.sectors, tally.wavefronts, tally.conflicts, least),
                    *(example.origin, list(example.lanes), file, not self.counters.doubtful(tally)),
                )
            )
        return [_merged(by_place[place]) for place in sorted(by_place)]


def _merged(parts: Iterable[Access]) -> Access:
    """Accesses of one line as one, with the example of the instruction whose requests cost most."""
    parts = list(parts)
    dearest = max(parts, key=lambda part: part.cost / part.requests if part.requests else 0)
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("requests", "bytes", "sectors", "wavefronts", "conflicts", "least")
    }
    exact = all(part.exact for part in parts)
    place = (dearest.line, dearest.space, dearest.kind, dearest.nbytes)
    return Access(*place, **sums, origin=dearest.origin, lanes=dearest.lanes, file=dearest.file, exact=exact)
