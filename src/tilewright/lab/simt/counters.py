"""From the addresses a warp touches to what the hardware counts: requests, sectors, wavefronts, bank conflicts.

The arithmetic is vectorised over warps: one call takes one instruction as executed by all warps of many blocks,
as flat arrays over the active threads (warp, lane, byte address). Warps whose addresses differ only by a shift
that moves no sector and no bank are counted once, which makes regular kernels cost one warp, whatever their grid.

Global memory (S0.3): a request is one warp's instruction, a sector is 32 aligned bytes; a request moves each sector
that one of its threads touches once. All global counters of five kernels agree with an H200
(``tests/data/five-kernels-h200.json``).

Shared memory: 32 banks of 4 bytes. The rule was measured on an H200 with 360 one-warp patterns and gives all 360
wavefront and all 360 conflict counts (``tests/data/shared-memory-wavefronts-h200.jsonl``):

- a request is served in passes, and a pass costs the largest number of *different* words that it wants from one
  bank; conflicts = wavefronts - passes;
- up to 4 bytes a lane: one pass a warp; 8 bytes: one a half warp; 16 bytes: one a quarter warp;
- loads merge: an 8-byte load takes one pass for the warp, a 16-byte load one for each half warp, when every lane
  of that group asks for the same address as lane^1, or every lane for the same as lane^2. Stores never merge.

Not told apart by those patterns, and assumed: each half of a 16-byte load merges on its own; a lane that is not
active agrees with its neighbours; a pass without active lanes costs nothing; 1- and 2-byte accesses go by the
words they lie in; an ``ldmatrix`` row counts as a 16-byte access that never merges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counter_names import FIELDS, LABELS, SHARED_SUMS, names
from .ptx import Instruction
from .sass import Access, Machine

Ints = NDArray[np.int64]
Key = tuple[int, str, str]  # index of the instruction, space, kind

WARP = 32
SECTOR = 32  # bytes
BANK_ROW = 128  # bytes: 32 banks of 4
#: The "address" of a lane that is not active: above every real one, so that sorting puts it last.
IDLE = np.int64(1) << 62
#: A fixed odd multiplier a lane: rows of addresses become one number each, to find equal rows.
_HASH = np.random.default_rng(0).integers(1 << 62, size=WARP, dtype=np.uint64) * 2 + 1
_LANE = np.arange(WARP)


def by_warp(warps: Ints, lanes: Ints, addresses: Ints) -> tuple[Ints, Ints]:
    """Flat arrays over active threads → warp numbers (w,), ascending, and a table (w, 32) of addresses or ``IDLE``.

    >>> ids, table = by_warp(np.array([7, 7]), np.array([0, 31]), np.array([256, 260]))
    >>> ids.tolist(), table.shape, table[0, 0].item(), table[0, 1] == IDLE
    ([7], (1, 32), 256, np.True_)
    """
    warps, lanes, addresses = (np.asarray(a, dtype=np.int64) for a in (warps, lanes, addresses))
    if warps.size % WARP == 0:
        rows = warps.reshape(-1, WARP)  # the usual case: every lane of every warp, in order
        if (lanes.reshape(-1, WARP) == _LANE).all() and (rows == rows[:, :1]).all() and (np.diff(rows[:, 0]) > 0).all():
            return rows[:, 0], addresses.reshape(-1, WARP)
    ids, place = np.unique(warps, return_inverse=True)
    table = np.full((ids.size, WARP), IDLE)
    table[place, lanes] = addresses
    return ids, table


def _distinct(table: Ints) -> tuple[Ints, Ints | slice]:
    """The different rows of a table, and for each row of the table which of them it equals."""
    if (table == table[:1]).all():
        return table[:1], np.zeros(len(table), dtype=np.int64)
    _, first, place = np.unique(table.view(np.uint64) @ _HASH, return_index=True, return_inverse=True)
    if (table[first[place]] == table).all():
        return table[first], place
    return table, slice(None)  # two different rows hashed alike: count each


def _shifted(table: Ints, granule: int) -> Ints:
    """Every row minus its own smallest address rounded down to ``granule``; lanes not active stay ``IDLE``."""
    shifted = table - (table.min(axis=1, keepdims=True) & -granule)
    idle = table == IDLE
    if idle.any():
        shifted[idle] = IDLE
    return shifted


def global_sectors(table: Ints, nbytes: int) -> Ints:
    """32-byte sectors each warp touches with ``nbytes`` bytes a lane: (w, 32) addresses → (w,).

    >>> lanes = np.arange(32)
    >>> global_sectors(np.stack([4 * lanes, 4 * lanes + 4, 0 * lanes, 128 * lanes]), 4).tolist()
    [4, 5, 1, 32]
    """
    if not table.size:
        return np.zeros(0, dtype=np.int64)
    rows, place = _distinct(_shifted(table, SECTOR))
    idle = rows == IDLE
    sectors = rows // SECTOR
    if ((rows % SECTOR + nbytes > SECTOR) & ~idle).any():  # a lane lies across sectors
        ends = np.where(idle, IDLE // SECTOR, (rows + nbytes - 1) // SECTOR)
        sectors = np.concatenate([sectors, ends], axis=1)
    ordered = np.sort(sectors, axis=1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    new &= ordered != IDLE // SECTOR
    return new.sum(axis=1)[place]


def local_sectors(table: Ints, nbytes: int) -> Ints:
    """Sectors of local memory, which lays word i of 32 neighbouring threads side by side (CUDA programming guide).

    >>> local_sectors(np.zeros((1, 32), dtype=np.int64), 4).tolist()  # every thread its first word: 128 bytes
    [4]
    """
    words = max(1, nbytes // 4)
    places = [np.where(table == IDLE, IDLE, (table // 4 + i) * BANK_ROW + 4 * _LANE) for i in range(words)]
    return np.sum([global_sectors(place, 4) for place in places], axis=0, dtype=np.int64)


def _pass_cost(units: Ints, banks: int) -> Ints:
    """The largest number of different units that a row wants from one bank; 0 where no lane is active."""
    ordered = np.sort(units, axis=1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    new &= ordered != IDLE
    row = np.nonzero(new)[0]
    cells = np.bincount(row * banks + ordered[new] % banks, minlength=len(units) * banks)
    return cells.reshape(-1, banks).max(axis=1)


def _agree(units: Ints, step: int) -> NDArray[np.bool_]:
    """Whether every lane of a row asks for the same as lane^step."""
    other = units[:, np.arange(units.shape[1]) ^ step]
    return ((units == other) | (units == IDLE) | (other == IDLE)).all(axis=1)


def shared_wavefronts(table: Ints, nbytes: int, *, merges: bool) -> tuple[Ints, Ints]:
    """Wavefronts and passes of each warp, by the measured rule: (w, 32) addresses → (w,), (w,).

    ``nbytes`` a lane is 1, 2, 4, 8 or 16, and addresses are multiples of it. ``merges`` is true for loads.
    Bank conflicts are wavefronts - passes.

    >>> lanes = np.arange(32)[None, :]
    >>> [int(shared_wavefronts(s * 4 * lanes, 4, merges=True)[0][0]) for s in (0, 1, 2, 32, 33)]
    [1, 1, 2, 32, 1]
    >>> same = 0 * lanes
    >>> [int(shared_wavefronts(same, 16, merges=m)[0][0]) for m in (True, False)]  # a broadcast float4
    [2, 4]
    """
    if not table.size:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # Words of wide accesses stay together, so the unit is the access: 8 bytes share two banks, 16 bytes four.
    unit = max(4, nbytes)
    rows, place = _distinct(_shifted(table, unit))
    units = np.where(rows == IDLE, IDLE, rows // unit)
    if unit == 4:
        cost = _pass_cost(units, BANK_ROW // unit)
        return cost[place], (cost > 0).astype(np.int64)[place]
    half = BANK_ROW // unit  # lanes of a pass: 16 of 8 bytes, 8 of 16
    groups = units.reshape(-1, 2 * half)
    split = _pass_cost(groups.reshape(-1, half), half).reshape(-1, 2)
    cost, passes = split.sum(axis=1), (split > 0).sum(axis=1)
    if merges:
        whole = _agree(groups, 1) | _agree(groups, 2)
        cost[whole] = _pass_cost(groups[whole], half)
        passes[whole] = cost[whole] > 0
    a_warp = (len(units), WARP // (2 * half))
    return cost.reshape(a_warp).sum(axis=1)[place], passes.reshape(a_warp).sum(axis=1)[place]


@dataclass
class Tally:
    """What one instruction did in all: sums over warps and executions. Fields a space does not count stay 0."""

    space: str
    kind: str
    file: str
    line: int  # 0 where the PTX has no source lines
    nbytes: int  # a lane
    requests: int = 0
    lanes: int = 0
    bytes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    conflicts: int = 0

    def counters(self) -> dict[str, int]:
        """Under the hardware's names.

        >>> list(Tally("global", "ld", "k.cu", 7, 4, requests=1, lanes=32, bytes=128, sectors=4).counters().values())
        [1, 4, 128]
        """
        values = {name: getattr(self, field) for field, (name, _) in names(self.space, self.kind).items()}
        if self.space == "shared":
            values |= {name: getattr(self, field) for field, name in SHARED_SUMS.items()}
        return values


class Counters:
    """Watches a run and counts, in total, by source line and by instruction.

    With ``machine``, learnt from the binary (:func:`tilewright.lab.simt.sass.match`), the counts are those of the
    instructions the GPU executes; without it those of the PTX as it stands. ``standing_for`` tells how many warps of the
    grid each warp number stands for, where only a sample of the blocks is run.
    """

    def __init__(self, machine: Machine | None = None, *, standing_for: Callable[[Ints], Ints] | None = None) -> None:
        self._seen: dict[Key, Tally] = {}
        self.machine = machine or Machine()
        self.standing_for = standing_for or np.ones_like

    def on_access(
        self, space: str, kind: str, ins: Instruction | Access, warps: Ints, lanes: Ints, addresses: Ints, nbytes: int
    ) -> None:
        """Count one execution: flat arrays over active threads; warp numbers are unique over the whole grid."""
        if space not in FIELDS or not np.size(warps):
            return  # parameters and constants go through no data pipe
        nbytes = self.machine.widths.get(ins.index, nbytes)
        if not nbytes:
            return
        key = (ins.index, space, kind)
        tally = self._seen.setdefault(key, Tally(space, kind, ins.file, ins.line, nbytes))
        ids, table = by_warp(warps, lanes, addresses)
        times = self.standing_for(ids)
        active = int((table != IDLE).sum(axis=1) @ times)
        tally.requests += int(times.sum())
        tally.lanes += active
        tally.bytes += active * nbytes
        if space == "shared":
            wavefronts, passes = shared_wavefronts(table, nbytes, merges=kind == "ld")
            tally.wavefronts += int(wavefronts @ times)
            tally.conflicts += int((wavefronts - passes) @ times)
        else:
            count = global_sectors if space == "global" else local_sectors
            tally.sectors += int(count(table, nbytes) @ times)

    def tallies(self) -> dict[Key, Tally]:
        """By instruction, space and kind."""
        found = dict(self._seen)
        executed = {index: tally.requests for (index, _, _), tally in self._seen.items()}
        for access, like in self.machine.issues.items():
            key = (access.index, access.space, access.kind)
            tally = found.get(key, Tally(access.space, access.kind, access.file, access.line, access.nbytes))
            found[key] = replace(tally, requests=max(tally.requests, executed.get(like, 0)))
        return found

    def total(self) -> dict[str, int]:
        """Every counter that is not 0, by the hardware's name."""
        return self._by(lambda key, tally: ()).get((), {})

    def by_line(self) -> dict[tuple[str, int], dict[str, int]]:
        """File and source line → counters, ascending."""
        return self._by(lambda key, tally: (tally.file, tally.line))

    def by_instruction(self) -> dict[int, dict[str, int]]:
        """Index of the instruction → counters, ascending."""
        return self._by(lambda key, tally: key[0])

    def _by(self, group: Callable[[Key, Tally], Any]) -> dict[Any, dict[str, int]]:
        sums: dict[Any, Counter[str]] = {}
        for key, tally in self.tallies().items():
            sums.setdefault(group(key, tally), Counter()).update(tally.counters())
        return {place: dict(+counter) for place, counter in sorted(sums.items())}

    def __str__(self) -> str:
        rows = [(f"{count:,}", LABELS.get(name, ""), name) for name, count in self.total().items()]
        wide = max((len(count) for count, _, _ in rows), default=0)
        words = max((len(text) for _, text, _ in rows), default=0)
        return "\n".join(f"{count:>{wide}}  {text:<{words}}  {name}" for count, text, name in rows)
