"""Computes the 32-byte sectors of global and local memory that warps touch, from tables of their addresses.

The computation of sectors is vectorised over warps. A table (w, 32) holds one instruction as executed by w warps; it
has a byte address for each active lane, and ``IDLE`` for each inactive one. The sectors of warps whose addresses differ
only by a multiple of the sector size are computed once. So for a kernel with regular accesses, the time to compute its
sectors does not depend on the size of the grid.

A request is one instruction of one warp. A request moves every sector that its threads touch, each of them once (row
S0.3 of docs/sources.md). For every kernel of ``tests/data/five.cu`` and ``twelve.cu``, an H200 counted exactly the
sectors that this module computes. Two kinds of access, atomics and copies past L1, follow other rules. The rules for
these two kinds were derived from counts on an H200, and reproduce the counts of all 175 one-warp patterns in
``tests/data/global-memory-patterns-h200.jsonl``:

- **Atomics and reductions**: lanes that access the same address take turns, and each turn moves the sector again. An
  atomic counts a sector as often as lanes access the most used address in the sector: 32 times if 32 lanes add to one
  variable.
- **Copies past L1** (``cp.async.cg``): the counter counts the sectors of *shared* memory that are filled, once for each
  128-byte line of global memory from which they are filled. A ``cp.async.cg`` counts 16 sectors if a warp copies 512
  bytes in order, and 32 if the 16 bytes of each lane go to separate sectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

WARP = 32
SECTOR = 32  # bytes
LINE = 128  # bytes
#: The "address" of a lane that is not active. It is larger than every real address, so that sorting puts it last.
IDLE = np.int64(1) << 62
#: A fixed odd multiplier per lane: hashes each row of addresses to one number, to find equal rows.
_HASH = np.random.default_rng(0).integers(1 << 62, size=WARP, dtype=np.uint64) * 2 + 1
_LANE = np.arange(WARP)


# ---- tables ----------------------------------------------------------------------------------------------------------


def by_warp(warps: Ints, lanes: Ints, addresses: Ints) -> tuple[Ints, Ints]:
    """Convert flat arrays over active threads to the warp numbers (w,), ascending, and a table (w, 32) of addresses or
    ``IDLE``.

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


def first_lanes(table: Ints) -> Ints:
    """Return a copy of the table in which only the first active lane of each warp has an address; all other lanes are
    ``IDLE``.

    >>> (first_lanes(np.array([[IDLE, 8, 12]])) != IDLE).tolist()
    [[False, True, False]]
    """
    active = table != IDLE
    return np.where(active & (np.cumsum(active, axis=1) == 1), table, IDLE)


def distinct(table: Ints) -> tuple[Ints, Ints | slice]:
    """Return the distinct rows of a table, and for each row of the table the index of the equal row among the distinct
    ones."""
    if (table == table[:1]).all():
        return table[:1], np.zeros(len(table), dtype=np.int64)
    _, first, place = np.unique(table.view(np.uint64) @ _HASH, return_index=True, return_inverse=True)
    if (table[first[place]] == table).all():
        return table[first], place
    return table, slice(None)  # two different rows hashed alike: count each


def shifted(table: Ints, granule: int) -> Ints:
    """Subtract from every row its own smallest address, rounded down to a multiple of ``granule``; inactive lanes stay
    ``IDLE``."""
    moved = table - (table.min(axis=1, keepdims=True) & -granule)
    idle = table == IDLE
    if idle.any():
        moved[idle] = IDLE
    return moved


def count_distinct(table: Ints) -> Ints:
    """Return the number of distinct values in each row; ``IDLE`` does not count.

    >>> count_distinct(np.array([[3, 5, 3, IDLE]])).tolist()
    [2]
    """
    ordered = np.sort(table, axis=1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (new & (ordered != IDLE)).sum(axis=1)


# ---- sectors ---------------------------------------------------------------------------------------------------------


def global_sectors(table: Ints, nbytes: int) -> Ints:
    """Return the number of sectors that loads and stores of ``nbytes`` bytes per lane touch in each warp: (w, 32)
    addresses → (w,).

    >>> lanes = np.arange(32)
    >>> global_sectors(np.stack([4 * lanes, 4 * lanes + 4, 0 * lanes, 128 * lanes]), 4).tolist()
    [4, 5, 1, 32]
    """
    if not table.size:
        return np.zeros(0, dtype=np.int64)
    rows, place = distinct(shifted(table, SECTOR))
    idle = rows == IDLE
    sectors = np.where(idle, IDLE, rows // SECTOR)
    if ((rows % SECTOR + nbytes > SECTOR) & ~idle).any():  # an access straddles two sectors
        sectors = np.concatenate([sectors, np.where(idle, IDLE, (rows + nbytes - 1) // SECTOR)], axis=1)
    return count_distinct(sectors)[place]


def atomic_sectors(table: Ints) -> Ints:
    """Return the number of sectors that atomics and reductions in global memory count, for each warp: (w, 32) addresses
    → (w,).

    >>> lanes = np.arange(32)
    >>> atomic_sectors(np.stack([4 * lanes, 0 * lanes, 4 * (lanes // 2)])).tolist()
    [4, 32, 4]
    """
    if not table.size:
        return np.zeros(0, dtype=np.int64)
    rows, place = distinct(shifted(table, SECTOR))
    ordered = np.sort(rows, axis=1)
    # Of lanes that want the same address, the k-th takes turn k.
    starts = np.ones(ordered.shape, dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    turn = _LANE - np.maximum.accumulate(np.where(starts, _LANE, 0), axis=1)
    return count_distinct(np.where(ordered == IDLE, IDLE, ordered // SECTOR * WARP + turn))[place]


def copied_sectors(sources: Ints, targets: Ints) -> Ints:
    """Return the number of sectors that copies past L1 with 16 bytes per lane count: two tables (w, 32), of global and
    of shared addresses → (w,).

    >>> lanes = np.arange(32)[None, :]
    >>> [copied_sectors(16 * lanes, step * lanes).tolist() for step in (16, 128)]
    [[16], [32]]
    """
    into, line = targets // SECTOR, sources // LINE
    # Shared memory has far fewer than 2³² sectors, so each pair of line and sector gets its own number.
    return count_distinct(np.where((targets == IDLE) | (sources == IDLE), IDLE, (line << 32) + into))


def local_sectors(table: Ints, nbytes: int) -> Ints:
    """Return the number of sectors of local memory. Local memory stores word i of 32 neighbouring threads together
    (CUDA programming guide).

    >>> local_sectors(np.zeros((1, 32), dtype=np.int64), 4).tolist()  # every thread its first word: 128 bytes
    [4]
    """
    words = max(1, nbytes // 4)
    places = [np.where(table == IDLE, IDLE, (table // 4 + i) * LINE + 4 * _LANE) for i in range(words)]
    return np.sum([global_sectors(place, 4) for place in places], axis=0, dtype=np.int64)
