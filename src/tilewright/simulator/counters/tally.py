"""Turns accesses of warps into the hardware's counters: requests, sectors, wavefronts and bank conflicts.

The counters are summed over a run, by instruction and in total. The module also collects, for each source line, the
accesses that explain the counts: their cost, the least cost with which the same bytes can be accessed, and one warp as
an example.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...records.explanation import Access
from ...records.unit_counters import TENSOR_CYCLES, TENSOR_INSTRUCTIONS
from ..assembly.disassembly import access_group
from ..assembly.instructions import Instruction
from ..assembly.ptxas import MachineAccesses, PtxAccess
from ..assembly.source_files import file_label
from .hardware_names import FIELDS, names
from .sectors import (
    IDLE,
    LINE,
    SECTOR,
    WARP,
    Ints,
    atomic_sectors,
    by_warp,
    copied_sectors,
    count_distinct,
    distinct,
    first_lanes,
    global_sectors,
    local_sectors,
    shifted,
)
from .work import UnitWork

# ---- totals ----------------------------------------------------------------------------------------------------------

Key = tuple[int, str, str]  # index of the instruction, space, kind


@dataclass
class Tally:
    """The sums for one instruction over all warps and executions. A field stays 0 if the memory space of the
    instruction has no such counter."""

    space: str
    kind: str
    file: str
    line: int  # 0 where the PTX has no source lines
    nbytes: int  # per lane
    requests: int = 0
    lanes: int = 0
    bytes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    conflicts: int = 0
    cycles: int = 0  # of tensor cores

    def counters(self) -> dict[str, int]:
        """The sums of the tally, keyed by the names of the hardware's counters.

        >>> list(Tally("global", "ld", "k.cu", 7, 4, requests=1, lanes=32, bytes=128, sectors=4).counters().values())
        [1, 4]
        """
        return {name: getattr(self, field) for field, its in names(self.space, self.kind).items() for name in its}


@dataclass(frozen=True)
class Execution:
    """One instruction as the machine executes it in some warps: a ``table`` (w, 32) of addresses, and the warp numbers
    ``ids``."""

    space: str
    kind: str
    ins: Instruction | PtxAccess
    nbytes: int
    ids: Ints
    table: Ints

    @property
    def key(self) -> Key:
        """The key of the tally to which the execution adds: instruction, space and kind."""
        return (self.ins.index, self.space, self.kind)


@dataclass(frozen=True)
class WarpCosts:
    """The cost of one execution of an instruction in each of its warps. ``cost`` is the number of wavefronts for shared
    memory, and the number of sectors for other memory. ``passes`` is the cost without bank conflicts."""

    execution: Execution
    lanes: Ints  # active ones
    cost: Ints
    passes: Ints
    #: For the shared half of a copy past L1: the key of the copy's global half, and the sectors that must be added to it.
    copied: tuple[Key, Ints] | None = None


class Turns:
    """Counts how often each thread has executed an instruction, modulo the number of rounds of the PTX loop that one
    round of the machine's loop contains."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._turn = rounds, np.zeros(0, np.uint16)

    def next(self, threads: Ints) -> Ints:
        """Return, for threads that execute the instruction once more, how often each has executed it before, modulo the
        number of rounds.

        >>> turns = Turns(2)
        >>> turns.next(np.array([0, 5])), turns.next(np.array([5])), turns.next(np.array([0, 5]))
        (array([0, 0]), array([1]), array([1, 0]))
        """
        if (most := int(threads.max(initial=-1))) >= self._turn.size:
            self._turn = np.concatenate([self._turn, np.zeros(most + 1, np.uint16)])
        turn = self._turn[threads]
        self._turn[threads] = (turn + 1) % self._rounds
        return turn.astype(np.int64)


class Counters:
    """An observer that counts accesses and other work, by instruction and in total.

    If ``machine`` is given, which ``assembly.ptxas`` reads from the binary, the observer counts the instructions that
    the GPU executes; otherwise it counts the instructions of the PTX. If only a sample of the blocks runs,
    ``warp_weights`` takes warp numbers and returns how many warps of the grid each of them represents.
    """

    def __init__(
        self, machine: MachineAccesses | None = None, *, warp_weights: Callable[[Ints], Ints] | None = None
    ) -> None:
        self._seen: dict[Key, Tally] = {}
        self._sources: dict[int, Execution] = {}  # the global half of each copy, by instruction
        self._fresh: set[int] = set()  # copies whose shared half is still to come
        self._turns: dict[int, Turns] = {}
        self.machine = machine or MachineAccesses()
        self.doubts = {group for group, _ in self.machine.doubts}
        self.warp_weights = warp_weights or np.ones_like

    def on_access(
        self,
        space: str,
        kind: str,
        ins: Instruction | PtxAccess,
        warps: Ints,
        lanes: Ints,
        addresses: Ints,
        nbytes: int,
    ) -> None:
        """Count one execution, given as flat arrays over active threads; warp numbers are unique over the whole
        grid."""
        for costs in self.costs(space, kind, ins, warps, lanes, addresses, nbytes):
            self.add(costs)

    def costs(
        self,
        space: str,
        kind: str,
        ins: Instruction | PtxAccess,
        warps: Ints,
        lanes: Ints,
        addresses: Ints,
        nbytes: int,
    ) -> list[WarpCosts]:
        """Return the costs that ``on_access`` adds, before they are multiplied by the weights of the warps. The result
        has an entry for each width of the machine's accesses; it is empty if another instruction moves these bytes."""
        warps, lanes, addresses = (np.asarray(of_threads) for of_threads in (warps, lanes, addresses))
        widths = self.machine.rounds.get(ins.index)
        if widths is None:
            parts = [(np.s_[:], self.machine.widths.get(ins.index, nbytes))]
        else:
            turns = self._turns.setdefault(ins.index, Turns(len(widths)))
            width = np.array(widths)[turns.next(warps * WARP + lanes)]
            parts = [(width == size, size) for size in sorted(set(widths))]
        executions = [
            execution
            for some, size in parts
            if (execution := self._executed(space, kind, ins, warps[some], lanes[some], addresses[some], size))
        ]
        return [self._costs_of(execution) for execution in executions]

    def _costs_of(self, execution: Execution) -> WarpCosts:
        """The global half of a copy must be reported before its shared half."""
        space, kind, ins = execution.space, execution.kind, execution.ins
        copied = None
        if kind == "cp.async" and space == "shared":
            if ins.index not in self._fresh:  # every lane fills with zeros: a copy without a global half
                self._sources.pop(ins.index, None)
            self._fresh.discard(ins.index)
        cost, passes = self._cost(execution)
        if kind == "cp.async" and space == "global":
            self._sources[ins.index] = execution
            self._fresh.add(ins.index)
        elif kind == "cp.async" and self._past_l1(ins) and (read := self._sources.get(ins.index)):
            sources = _in_rows_of(execution, read)
            copied = read.key, copied_sectors(sources, execution.table) - global_sectors(sources, execution.nbytes)
        return WarpCosts(execution, (execution.table != IDLE).sum(axis=1), cost, passes, copied)

    def add(self, costs: WarpCosts) -> None:
        """Add costs to the sums; the cost of each warp is multiplied by the number of warps that it represents."""
        execution, ins = costs.execution, costs.execution.ins
        tally = self._seen.setdefault(
            execution.key, Tally(execution.space, execution.kind, ins.file, ins.line, execution.nbytes)
        )
        weights = self.warp_weights(execution.ids)
        active = int(costs.lanes @ weights)
        tally.requests += int(weights.sum())
        tally.lanes += active
        tally.bytes += active * execution.nbytes
        if execution.space == "shared":
            tally.wavefronts += int(costs.cost @ weights)
            tally.conflicts += int((costs.cost - costs.passes) @ weights)
        else:
            tally.sectors += int(costs.cost @ weights)
        if costs.copied is not None:
            read, more = costs.copied
            self._seen[read].sectors += int(more @ weights)

    def on_work(self, work: UnitWork, ins: Instruction, warps: Ints) -> None:
        """Count the work of an instruction in another unit than the load/store pipe, such as a tensor core, once for
        each of ``warps``."""
        key = (ins.index, work.space, work.kind)
        tally = self._seen.setdefault(key, Tally(work.space, work.kind, ins.file, ins.line, 0))
        times = int(self.warp_weights(warps).sum())
        tally.lanes += times * work.requests
        for name in ("requests", "bytes", "sectors", "wavefronts", "cycles"):
            setattr(tally, name, getattr(tally, name) + times * getattr(work, name))

    def _executed(
        self,
        space: str,
        kind: str,
        ins: Instruction | PtxAccess,
        warps: Ints,
        lanes: Ints,
        addresses: Ints,
        nbytes: int,
    ) -> Execution | None:
        """An access of ``nbytes`` per lane, as the machine executes it; None if nothing is counted."""
        if space not in FIELDS or not np.size(warps) or not nbytes:
            return None  # parameters and constants use no data pipe; 0 bytes: a neighbouring access moves them
        if space == "global" and kind in ATOMIC:
            kind = "red" if self.machine.words(ins) & {"RED", "REDG"} else "atom"
        ids, table = by_warp(warps, lanes, addresses)
        if ins.index in self.machine.elected:
            table = first_lanes(table)
        return Execution(space, kind, ins, nbytes, ids, table)

    def _cost(self, execution: Execution) -> tuple[Ints, Ints]:
        """``cost`` and ``passes`` of ``WarpCosts``."""
        table, nbytes, kind = execution.table, execution.nbytes, execution.kind
        if execution.space != "shared":
            local = execution.space == "local"
            sectors = (
                atomic_sectors(table) if kind in ATOMIC else (local_sectors if local else global_sectors)(table, nbytes)
            )
            return sectors, sectors
        if kind == "cp.async":
            if self._past_l1(execution.ins):
                return np.zeros_like(execution.ids), np.zeros_like(execution.ids)
            read = self._sources.get(execution.ins.index)
            sources = table if read is None else _in_rows_of(execution, read)
            # A lane that only writes zeros has no source: its target's address stands in for one.
            return copy_wavefronts(np.where(sources == IDLE, table, sources), table, nbytes)
        parts = self.machine.words(execution.ins)
        wavefronts, passes = shared_wavefronts(table, nbytes, "st" if "POPC" in parts else kind)
        return (2 * wavefronts, wavefronts + passes) if parts & {"CAS", "CAST"} else (wavefronts, passes)

    def _past_l1(self, ins: Instruction | PtxAccess) -> bool:
        """Whether a copy is ``cp.async.cg``."""
        return bool(self.machine.words(ins) & {"CG", "BYPASS"})

    def tallies(self) -> dict[Key, Tally]:
        """Return the sums of each instruction, keyed by instruction, space and kind."""
        found = dict(self._seen)
        executed = {index: tally.requests for (index, _, _), tally in self._seen.items()}
        for access, like in self.machine.issues.items():
            key = (access.index, access.space, access.kind)
            tally = found.get(key, Tally(access.space, access.kind, access.file, access.line, access.nbytes))
            found[key] = replace(tally, requests=max(tally.requests, executed.get(like, 0)))
        return found

    def doubtful(self, tally: Tally) -> bool:
        """Whether the binary may execute the accesses of this tally in another way than they are counted."""
        return access_group(tally.file, tally.line, tally.space, tally.kind) in self.doubts

    def approximate(self) -> frozenset[str]:
        """Return the counters, by the hardware's names, whose values are approximate. A counter is approximate if
        doubtful accesses add to it. The counters of tensor cores are also approximate if the binary uses tensor cores
        to set registers, as ptxas does even in kernels without products. The counters of tensor cores are approximate,
        too, if the kernel has products in tensor memory, because the work of such products is not counted."""
        found = {name for tally in self.tallies().values() if self.doubtful(tally) for name in tally.counters()}
        if self.machine.moves or self.products_uncounted():
            found |= {TENSOR_INSTRUCTIONS, TENSOR_CYCLES}
        return frozenset(found)

    def products_uncounted(self) -> int:
        """The number of products by ``tcgen05``; no counter is known for their work."""
        return sum(tally.requests for tally in self._seen.values() if tally.kind == "tcgen05")

    def total(self) -> dict[str, int]:
        """Return the value of every counter that is not 0, by the hardware's name."""
        sums: Counter[str] = Counter()
        for tally in self.tallies().values():
            sums.update(tally.counters())
        return dict(+sums)


def _in_rows_of(execution: Execution, read: Execution) -> Ints:
    """The addresses that a copy reads, in the rows of the table of those it writes."""
    sources = np.full_like(execution.table, IDLE)
    rows = np.searchsorted(read.ids, execution.ids)
    known = np.isin(execution.ids, read.ids)
    sources[known] = read.table[rows[known]]
    return sources


# ---- banks -----------------------------------------------------------------------------------------------------------
# Shared memory: 32 banks of 4 bytes, and the wavefronts (turns of all banks) that the accesses of a warp take.
#
# The rules were derived from an H200 (ncu 2025.3) with one-warp patterns: 360 of loads and stores (``tests/data/shared-
# memory-wavefronts-h200.jsonl``) and 1017 of every kind (``shared-memory-patterns-h200.jsonl``). They reproduce all
# wavefronts and conflicts of 1376 of these; for one copy they give 7 wavefronts where 8 are always counted.
#
# **Passes.** A request is served in passes: one per warp for up to 4 bytes per lane, one per half warp for 8 bytes, one
# per quarter warp for 16 bytes; for matrices (``ldmatrix``, ``stmatrix``) one for each 8 rows of 16 bytes. A pass without
# active lanes costs nothing. Bank conflicts = wavefronts - passes. 1- and 2-byte accesses count as the words that hold
# them.
#
# **Loads, stores, matrices.** A pass costs the largest number of *different* words that it wants from one bank.
#
# **Wide loads merge.** If every lane of the warp wants the same address as lane^1, or every lane the same as lane^2, an
# 8-byte load takes one pass for the warp and a 16-byte load one for each half. An inactive lane agrees with any. The rule
# must hold in the whole warp: with pairs in one half only, or pairs in one half and lane^2 in the other, a 16-byte load
# takes 4 passes (ncu's per-instruction column, a model and not a counter, says 3). Stores, matrices and atomics never
# merge.
#
# **Atomics.** Lanes take turns: a pass costs the largest number of *lanes* on one bank, 32 if all want one word. A
# compare-and-swap takes each turn twice, which does not count as a conflict. Adding the constant 1 without using the
# result (``ATOMS.POPC.INC``) lets the bank count lanes: it costs as much as a store.
#
# **Copies.** ``cp.async.cg`` bypasses L1 and the pipe that counts: no wavefronts. ``cp.async.ca`` is a crossbar: lanes
# queue, in order, at the L1 bank of their source; each turn serves the first lane of every queue, except lanes whose
# target bank is taken already; the queue that was served least goes first. With contiguous sources that is the largest
# number of lanes on one target bank. Two limits: in kernels of several warps the count varies from launch to launch (164
# to 248 conflicts of ``async_copies`` in ``twelve.cu``), with the order in which data arrives; and a pass reads at most
# four lines of 128 bytes, so copies from scattered sources take more passes than these rules give.


#: The kinds of access whose lanes take turns at a bank even if they access the same word.
ATOMIC = ("atom", "red")


def shared_wavefronts(table: Ints, nbytes: int, kind: str) -> tuple[Ints, Ints]:
    """Return the wavefronts and the passes of each warp, for accesses to shared memory other than copies: (w, 32)
    addresses → (w,), (w,).

    ``nbytes``, the bytes of each lane, is 1, 2, 4, 8 or 16, and every address is a multiple of ``nbytes``. ``kind`` is
    one of the kinds of :class:`Observer`: ld, st, atom, red, ldmatrix or stmatrix. The number of bank conflicts is the
    number of wavefronts minus the number of passes.

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
    """Return the wavefronts and passes of copies from global to shared memory through L1: two tables (w, 32) → (w,),
    (w,).

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


# ---- accesses by source line -----------------------------------------------------------------------------------------

#: The number of executions of an instruction that are examined to find the example.
LOOKED_AT = 16


#: What comes before the name by which a header of a library is included.
_TO_HEADERS = r".*/(include|nvrtc-bundled-headers|cccl)/"


@dataclass
class _Example:
    """The most expensive request of one instruction, among the requests that were examined."""

    looked_at: int = 0
    cost: int = -1
    origin: int = 0
    lanes: tuple[int | None, ...] = ()


def least_sectors(table: Ints, nbytes: int) -> Ints:
    """Return the fewest sectors into which the distinct bytes that each warp accesses fit: (w, 32) addresses → (w,).

    >>> lanes = np.arange(32)
    >>> least_sectors(np.stack([4 * lanes, 4096 * lanes, 0 * lanes]), 4).tolist()
    [4, 4, 1]
    """
    return -(-count_distinct(table) * nbytes // SECTOR)


class Survey:
    """An observer that passes every cost on to ``counters``, and also records the least costs and the examples.

    ``main`` is the kernel's own file. An access in a library's header is counted at the user's line that calls it.
    """

    def __init__(self, counters: Counters, main: str) -> None:
        self.counters, self.main = counters, main
        self._least: dict[Key, int] = {}
        self._examples: dict[Key, _Example] = {}
        self._places: dict[int, tuple[str, int, str]] = {}  # of the user, and in the header of a library

    def add(self, costs: WarpCosts) -> None:
        """Add the costs that ``counters.costs`` returned."""
        self.counters.add(costs)
        execution, space = costs.execution, costs.execution.space
        assert isinstance(execution.ins, Instruction)
        self._place(execution.ins)
        example = self._examples.setdefault(execution.key, _Example())
        look = example.looked_at < LOOKED_AT
        if space == "shared" and not look:
            return
        if space != "shared":
            table, weights = execution.table, self.counters.warp_weights(execution.ids)
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
        self._least[key] = self._least.get(key, 0) + least * int(self.counters.warp_weights(warps).sum())

    def _place(self, ins: Instruction) -> None:
        if ins.index not in self._places:
            users, inside = ins.users, ""
            if users != ins.where:
                inside = f"{re.sub(_TO_HEADERS, '', ins.file)}:{ins.line}"
            self._places[ins.index] = (file_label(users.file, self.main), users.line, inside)

    def _look(self, example: _Example, costs: WarpCosts) -> None:
        table, cost = costs.execution.table, costs.cost
        # On a tie take the request with the most lanes: a full warp shows more than a remainder.
        worst = int(np.argmax(cost * 64 + costs.lanes))
        if cost[worst] > example.cost:
            example.cost = int(cost[worst])
            example.origin = int(table[worst].min()) // LINE * LINE
            example.lanes = tuple(None if at == IDLE else int(at) - example.origin for at in table[worst])

    def instructions(self) -> list[Access]:
        """Return the accesses of each instruction, with their costs and an example."""
        parts = []
        for key, tally in self.counters.tallies().items():
            if not tally.lanes:
                continue  # issued without active lanes
            least = self._least.get(key, 0) if tally.space != "shared" else tally.wavefronts - tally.conflicts
            example = self._examples.get(key, _Example())
            file, line, inside = self._places.get(key[0]) or (file_label(tally.file, self.main), tally.line, "")
            parts.append(
                Access(
                    *(line, tally.space, tally.kind, tally.nbytes, tally.requests, tally.bytes),
                    *(tally.sectors, tally.wavefronts, tally.conflicts, least),
                    *(example.origin, list(example.lanes), file, not self.counters.doubtful(tally)),
                    inside=inside,
                )
            )
        return parts


def by_line(parts: Iterable[Access]) -> list[Access]:
    """Merge accesses of the same line, space, kind and width; returns them in order of the source line."""
    by_place: dict[tuple[str, int, str, str, int], list[Access]] = {}
    for part in parts:
        by_place.setdefault((part.file, part.line, part.space, part.kind, part.nbytes), []).append(part)
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
    inside = ", ".join(dict.fromkeys(part.inside for part in parts if part.inside))
    return Access(
        *place, **sums, origin=dearest.origin, lanes=dearest.lanes, file=dearest.file, exact=exact, inside=inside
    )
