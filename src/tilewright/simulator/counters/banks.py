"""Shared memory: 32 banks of 4 bytes, and the wavefronts (turns of all banks) that the accesses of a warp take.

The rules were derived from an H200 (ncu 2025.3) with one-warp patterns: 360 of loads and stores
(``tests/data/shared-memory-wavefronts-h200.jsonl``) and 1017 of every kind (``shared-memory-patterns-h200.jsonl``). They
reproduce all wavefronts and conflicts of 1376 of these; for one copy they give 7 wavefronts where 8 are always counted.

**Passes.** A request is served in passes: one per warp for up to 4 bytes per lane, one per half warp for 8 bytes, one per
quarter warp for 16 bytes; for matrices (``ldmatrix``, ``stmatrix``) one for each 8 rows of 16 bytes. A pass without active
lanes costs nothing. Bank conflicts = wavefronts - passes. 1- and 2-byte accesses count as the words that hold them.

**Loads, stores, matrices.** A pass costs the largest number of *different* words that it wants from one bank.

**Wide loads merge.** If every lane of the warp wants the same address as lane^1, or every lane the same as lane^2, an
8-byte load takes one pass for the warp and a 16-byte load one for each half. An inactive lane agrees with any. The rule
must hold in the whole warp: with pairs in one half only, or pairs in one half and lane^2 in the other, a 16-byte load takes
4 passes (ncu's per-instruction column, a model and not a counter, says 3). Stores, matrices and atomics never merge.

**Atomics.** Lanes take turns: a pass costs the largest number of *lanes* on one bank, 32 if all want one word. A
compare-and-swap takes each turn twice, which does not count as a conflict. Adding the constant 1 without using the result
(``ATOMS.POPC.INC``) lets the bank count lanes: it costs as much as a store.

**Copies.** ``cp.async.cg`` bypasses L1 and the pipe that counts: no wavefronts. ``cp.async.ca`` is a crossbar: lanes queue,
in order, at the L1 bank of their source; each turn serves the first lane of every queue, except lanes whose target bank is
taken already; the queue that was served least goes first. With contiguous sources that is the largest number of lanes on
one target bank. Two limits: in kernels of several warps the count varies from launch to launch (164 to 248 conflicts of
``async_copies`` in ``twelve.cu``), with the order in which data arrives; and a pass reads at most four lines of 128 bytes,
so copies from scattered sources take more passes than these rules give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .sectors import IDLE, LINE, WARP, Ints, distinct, shifted

#: Kinds of access whose lanes take turns at a bank, even for the same word.
ATOMIC = ("atom", "red")


def shared_wavefronts(table: Ints, nbytes: int, kind: str) -> tuple[Ints, Ints]:
    """Wavefronts and passes of each warp, except for copies: (w, 32) addresses → (w,), (w,).

    ``nbytes`` per lane is 1, 2, 4, 8 or 16, and addresses are multiples of it. ``kind`` is that of :class:`Observer`: ld,
    st, atom, red, ldmatrix or stmatrix. Bank conflicts are wavefronts - passes.

    >>> lanes = np.arange(32)[None, :]
    >>> [int(shared_wavefronts(s * 4 * lanes, 4, "ld")[0][0]) for s in (0, 1, 2, 32, 33)]
    [1, 1, 2, 32, 1]
    >>> same = 0 * lanes
    >>> [int(shared_wavefronts(same, 16, kind)[0][0]) for kind in ("ld", "st", "atom")]  # all lanes at one address
    [2, 4, 32]
    """
    if not table.size:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # Words of one wide access are not separated, so the unit is the access: 8 bytes use two banks, 16 bytes four.
    unit = max(4, nbytes)
    rows, place = distinct(shifted(table, unit))
    units = np.where(rows == IDLE, IDLE, rows // unit)
    banks = LINE // unit  # banks of one unit; a pass has as many lanes
    cost = _pass_cost(units.reshape(-1, banks), banks, each_lane=kind in ATOMIC)
    passes = (cost > 0).astype(np.int64)
    cost, passes = (x.reshape(len(units), -1) for x in (cost, passes))
    if kind == "ld" and banks < WARP:
        whole = _agree(units, 1) | _agree(units, 2)
        merged = _pass_cost(units[whole].reshape(-1, 2 * banks), banks).reshape(-1, WARP // (2 * banks))
        cost[whole], passes[whole] = 0, 0
        cost[whole, : merged.shape[1]], passes[whole, : merged.shape[1]] = merged, merged > 0
    return cost.sum(axis=1)[place], passes.sum(axis=1)[place]


def copy_wavefronts(sources: Ints, targets: Ints, nbytes: int) -> tuple[Ints, Ints]:
    """Wavefronts and passes of copies from global to shared memory through L1: two tables (w, 32) → (w,), (w,).

    >>> lanes = np.arange(32)[None, :]
    >>> [int(copy_wavefronts(16 * lanes, step * lanes, 16)[0][0]) for step in (16, 128)]
    [4, 32]
    """
    banks = LINE // nbytes  # banks of one access; a pass has as many lanes
    idle = (targets == IDLE).reshape(-1, banks)
    out_of, into = ((table // nbytes % banks).reshape(-1, banks) for table in (sources, targets))
    routes = np.where(idle, -1, out_of * banks + into)
    rows, place = np.unique(routes, axis=0, return_inverse=True)
    cost = np.array([_crossbar(divmod(r, banks) for r in row if r >= 0) for row in rows.tolist()], np.int64)
    cost = cost[place].reshape(len(targets), -1)
    return cost.sum(axis=1), (cost > 0).sum(axis=1)


def _crossbar(routes: Iterable[tuple[int, int]]) -> int:
    """Turns that a pass of copies takes: source and target bank of each lane, in order.

    >>> _crossbar([(0, 0), (1, 1), (2, 2)]), _crossbar([(0, 0), (1, 0), (2, 2)]), _crossbar([(0, 0), (0, 1)])
    (1, 2, 2)
    """
    queues: dict[int, list[int]] = {}
    for source, target in routes:
        queues.setdefault(source, []).append(target)
    served: Counter[int] = Counter()
    turns = 0
    while any(served[source] < len(queue) for source, queue in queues.items()):
        turns += 1
        taken = set()
        for source in sorted(queues, key=lambda source: (served[source], source)):
            queue = queues[source]
            if served[source] < len(queue) and queue[served[source]] not in taken:
                taken.add(queue[served[source]])
                served[source] += 1
    return turns


def _pass_cost(units: Ints, banks: int, *, each_lane: bool = False) -> Ints:
    """The largest number of different units, or of lanes, that a row wants from one bank; 0 where no lane is active."""
    ordered = np.sort(units, axis=1)
    counted = ordered != IDLE
    if not each_lane:
        counted[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row = np.nonzero(counted)[0]
    cells = np.bincount(row * banks + ordered[counted] % banks, minlength=len(units) * banks)
    return cells.reshape(-1, banks).max(axis=1)


def _agree(units: Ints, step: int) -> NDArray[np.bool_]:
    """Whether every lane of a row wants the same as lane^step; an inactive lane agrees with any."""
    partner = units[:, np.arange(units.shape[1]) ^ step]
    return ((units == partner) | (units == IDLE) | (partner == IDLE)).all(axis=1)
