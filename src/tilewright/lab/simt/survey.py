"""What each source line asks of memory, beside what the same bytes would cost at best, with one warp as an example.

The counters say what the hardware would count; this keeps what a reader needs to see why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from ...explanation import Access
from .counters import IDLE, SECTOR, Counters, Ints, by_warp, global_sectors, local_sectors, shared_wavefronts
from .ptx import Instruction

#: Executions of an instruction that are looked at for the example.
LOOKED_AT = 16
ROW = 128


@dataclass
class _Example:
    """The dearest request seen of one instruction."""

    looked_at: int = 0
    cost: int = -1
    origin: int = 0
    lanes: tuple[int | None, ...] = ()


def least_sectors(table: Ints, nbytes: int) -> Ints:
    """Sectors that the different bytes of each warp fill when packed: (w, 32) addresses → (w,).

    >>> lanes = np.arange(32)
    >>> least_sectors(np.stack([4 * lanes, 4096 * lanes, 0 * lanes]), 4).tolist()
    [4, 4, 1]
    """
    ordered = np.sort(table, axis=1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return -(-(new & (ordered != IDLE)).sum(axis=1) * nbytes // SECTOR)


class Survey:
    """An observer that passes everything on to ``counters`` and remembers examples and best cases.

    ``main`` is the file whose lines are wanted: what was inlined from another file counts at the line that called it.
    """

    def __init__(self, counters: Counters, main: str) -> None:
        self.counters, self.main = counters, PurePosixPath(main).name
        self._least: dict[tuple[int, str, str], int] = {}
        self._examples: dict[tuple[int, str, str], _Example] = {}
        self._lines: dict[int, int] = {}

    def on_access(
        self, space: str, kind: str, ins: Instruction, warps: Ints, lanes: Ints, addresses: Ints, nbytes: int
    ) -> None:
        self.counters.on_access(space, kind, ins, warps, lanes, addresses, nbytes)
        nbytes = self.counters.machine.widths.get(ins.index, nbytes)
        if space not in ("global", "shared", "local") or not np.size(warps) or not nbytes:
            return
        key = (ins.index, space, kind)
        self._lines.setdefault(ins.index, self._line(ins))
        example = self._examples.setdefault(key, _Example())
        if space == "shared" and example.looked_at >= LOOKED_AT:
            return
        ids, table = by_warp(warps, lanes, addresses)
        if space != "shared":
            least = least_sectors(table, nbytes) if space == "global" else local_sectors(table, nbytes)
            self._least[key] = self._least.get(key, 0) + int(least @ self.counters.standing_for(ids))
        if example.looked_at < LOOKED_AT:
            example.looked_at += 1
            self._look(example, space, kind, table, nbytes)

    def _look(self, example: _Example, space: str, kind: str, table: Ints, nbytes: int) -> None:
        if space == "shared":
            cost, _ = shared_wavefronts(table, nbytes, merges=kind == "ld")
        else:
            cost = (global_sectors if space == "global" else local_sectors)(table, nbytes)
        # Of equals the one with most lanes: a full warp shows more than a remainder.
        worst = int(np.argmax(cost * 64 + (table != IDLE).sum(axis=1)))
        if cost[worst] > example.cost:
            example.cost = int(cost[worst])
            example.origin = int(table[worst].min()) // ROW * ROW
            example.lanes = tuple(None if at == IDLE else int(at) - example.origin for at in table[worst])

    def _line(self, ins: Instruction) -> int:
        places = [ins.where, ins.inlined_at]
        return next((p.line for p in places if p and PurePosixPath(p.file).name == self.main), ins.line)

    def accesses(self) -> list[Access]:
        """Line by line, accesses of one kind and width together, in order of the source."""
        found: dict[tuple[int, str, str, int], list[Access]] = {}
        for key, tally in self.counters.tallies().items():
            least = self._least.get(key, 0) if tally.space != "shared" else tally.wavefronts - tally.conflicts
            example = self._examples.get(key, _Example())
            line = self._lines.get(key[0], tally.line)
            found.setdefault((line, tally.space, tally.kind, tally.nbytes), []).append(
                Access(
                    *(line, tally.space, tally.kind, tally.nbytes, tally.requests, tally.bytes),
                    *(tally.sectors, tally.wavefronts, tally.conflicts, least),
                    *(example.origin, list(example.lanes)),
                )
            )
        return [_together(found[place]) for place in sorted(found)]


def _together(parts: Iterable[Access]) -> Access:
    """Accesses of one line as one, with the example of the dearest request."""
    parts = list(parts)
    dearest = max(parts, key=lambda part: part.cost / part.requests if part.requests else 0)
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("requests", "bytes", "sectors", "wavefronts", "conflicts", "least")
    }
    place = (dearest.line, dearest.space, dearest.kind, dearest.nbytes)
    return Access(*place, **sums, origin=dearest.origin, lanes=dearest.lanes)
