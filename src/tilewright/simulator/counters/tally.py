"""Turns accesses of warps into the hardware's counters: requests, sectors, wavefronts and bank conflicts.

The rules are in ``sectors`` and ``banks``; this module sums over a run, by instruction and in total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...records.unit_counters import TENSOR_CYCLES, TENSOR_INSTRUCTIONS
from ..assembly.disassembly import access_group
from ..assembly.instructions import Instruction
from ..assembly.ptxas import MachineAccesses, PtxAccess
from .banks import ATOMIC, copy_wavefronts, shared_wavefronts
from .hardware_names import FIELDS, names
from .sectors import (
    IDLE,
    WARP,
    Ints,
    atomic_sectors,
    by_warp,
    copied_sectors,
    first_lanes,
    global_sectors,
    local_sectors,
)
from .work import UnitWork

Key = tuple[int, str, str]  # index of the instruction, space, kind


@dataclass
class Tally:
    """Sums for one instruction over all warps and executions. Fields that a space does not count stay 0."""

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
        """Its sums, under the hardware's names.

        >>> list(Tally("global", "ld", "k.cu", 7, 4, requests=1, lanes=32, bytes=128, sectors=4).counters().values())
        [1, 4]
        """
        return {name: getattr(self, field) for field, its in names(self.space, self.kind).items() for name in its}


@dataclass(frozen=True)
class Execution:
    """One instruction as the machine executes it in some warps: ``table`` (w, 32) of addresses, warp numbers ``ids``."""

    space: str
    kind: str
    ins: Instruction | PtxAccess
    nbytes: int
    ids: Ints
    table: Ints

    @property
    def key(self) -> Key:
        """The key of its tally: instruction, space and kind."""
        return (self.ins.index, self.space, self.kind)


@dataclass(frozen=True)
class WarpCosts:
    """What an execution costs in each of its warps: ``cost`` is wavefronts in shared memory, elsewhere sectors, and
    ``passes`` the same without bank conflicts."""

    execution: Execution
    lanes: Ints  # active ones
    cost: Ints
    passes: Ints
    #: Of the shared half of a copy past L1: the key of its global half, and the sectors that it takes more.
    copied: tuple[Key, Ints] | None = None


class Turns:
    """How often each thread has executed an instruction, modulo the rounds that one round of the machine's loop holds."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._turn = rounds, np.zeros(0, np.uint16)

    def next(self, threads: Ints) -> Ints:
        """The turns of threads that execute the instruction once more, the first of which is 0.

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
    """An observer that counts, by instruction and in total.

    With ``machine``, which ``assembly.ptxas`` reads from the binary, the counts are those of the instructions that the GPU
    executes; without it, those of the PTX. If only a sample of the blocks runs, ``standing_for`` returns for warp numbers
    how many warps of the grid each represents.
    """

    def __init__(
        self, machine: MachineAccesses | None = None, *, standing_for: Callable[[Ints], Ints] | None = None
    ) -> None:
        self._seen: dict[Key, Tally] = {}
        self._sources: dict[int, Execution] = {}  # the global half of each copy, by instruction
        self._fresh: set[int] = set()  # copies whose shared half is still to come
        self._turns: dict[int, Turns] = {}
        self.machine = machine or MachineAccesses()
        self.doubts = {group for group, _ in self.machine.doubts}
        self.standing_for = standing_for or np.ones_like

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
        """Count one execution: flat arrays over active threads; warp numbers are unique over the whole grid."""
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
        """What ``on_access`` adds, before warps are weighted: the accesses of the machine, one for each width, none where
        another instruction moves these bytes."""
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
        """Add costs, those of each warp as often as it stands for others."""
        execution, ins = costs.execution, costs.execution.ins
        tally = self._seen.setdefault(
            execution.key, Tally(execution.space, execution.kind, ins.file, ins.line, execution.nbytes)
        )
        weights = self.standing_for(execution.ids)
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
        """Count what an instruction did in another unit, once for each of ``warps``."""
        key = (ins.index, work.space, work.kind)
        tally = self._seen.setdefault(key, Tally(work.space, work.kind, ins.file, ins.line, 0))
        times = int(self.standing_for(warps).sum())
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
        """The sums of each instruction, by instruction, space and kind."""
        found = dict(self._seen)
        executed = {index: tally.requests for (index, _, _), tally in self._seen.items()}
        for access, like in self.machine.issues.items():
            key = (access.index, access.space, access.kind)
            tally = found.get(key, Tally(access.space, access.kind, access.file, access.line, access.nbytes))
            found[key] = replace(tally, requests=max(tally.requests, executed.get(like, 0)))
        return found

    def doubtful(self, tally: Tally) -> bool:
        """Whether the binary may execute these accesses in another way than is counted."""
        return access_group(tally.file, tally.line, tally.space, tally.kind) in self.doubts

    def approximate(self) -> frozenset[str]:
        """The counters, by the hardware's name, to which doubtful accesses add, and those of tensor cores where these also
        set registers."""
        tallies = self.tallies().values()
        found = {name for tally in tallies if self.doubtful(tally) for name in tally.counters()}
        if self.machine.moves and any(tally.cycles for tally in tallies):
            found |= {TENSOR_INSTRUCTIONS, TENSOR_CYCLES}
        return frozenset(found)

    def total(self) -> dict[str, int]:
        """Every counter that is not 0, by the hardware's name."""
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
