"""From what a warp accesses to what the hardware counts: requests, sectors, wavefronts, bank conflicts, by its own names.

``sectors`` and ``banks`` have the rules; here they are summed up over a run, by instruction and by source line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..assembly.instructions import Instruction
from ..assembly.ptxas import MachineAccesses, PtxAccess
from .banks import ATOMIC, copy_wavefronts, shared_wavefronts
from .hardware_names import FIELDS, names
from .sectors import IDLE, Ints, atomic_sectors, by_warp, copied_sectors, first_lanes, global_sectors, local_sectors

Key = tuple[int, str, str]  # index of the instruction, space, kind


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
        """What counts are kept by: instruction, space and kind."""
        return (self.ins.index, self.space, self.kind)


class Counters:
    """Watches a run and counts, in total and by instruction.

    With ``machine``, learnt from the binary (``assembly.ptxas``), the counts are those of the instructions the GPU executes;
    without it those of the PTX as it stands. ``standing_for`` tells how many warps of the grid each warp number stands for,
    where only a sample of the blocks is run.
    """

    def __init__(
        self, machine: MachineAccesses | None = None, *, standing_for: Callable[[Ints], Ints] | None = None
    ) -> None:
        self._seen: dict[Key, Tally] = {}
        self._sources: dict[int, Execution] = {}  # the global halves of copies, and of which the other is to come
        self._fresh: set[int] = set()
        self.machine = machine or MachineAccesses()
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
        done = self.executed(space, kind, ins, warps, lanes, addresses, nbytes)
        if done is None:
            return
        if kind == "cp.async" and space == "shared":
            if ins.index not in self._fresh:  # every lane fills with zeros: a copy without a global half
                self._sources.pop(ins.index, None)
            self._fresh.discard(ins.index)
        tally = self._seen.setdefault(done.key, Tally(done.space, done.kind, ins.file, ins.line, done.nbytes))
        times = self.standing_for(done.ids)
        active = int((done.table != IDLE).sum(axis=1) @ times)
        tally.requests += int(times.sum())
        tally.lanes += active
        tally.bytes += active * done.nbytes
        cost, passes = self.cost(done)
        if space == "shared":
            tally.wavefronts += int(cost @ times)
            tally.conflicts += int((cost - passes) @ times)
        else:
            tally.sectors += int(cost @ times)
        if kind == "cp.async" and space == "global":
            self._sources[ins.index] = done
            self._fresh.add(ins.index)
        elif kind == "cp.async" and self._past_l1(ins) and (read := self._sources.get(ins.index)):
            sources = _in_rows_of(done, read)
            more = copied_sectors(sources, done.table) - global_sectors(sources, done.nbytes)
            self._seen[read.key].sectors += int(more @ times)

    def executed(
        self,
        space: str,
        kind: str,
        ins: Instruction | PtxAccess,
        warps: Ints,
        lanes: Ints,
        addresses: Ints,
        nbytes: int,
    ) -> Execution | None:
        """What the machine does where the PTX does this; None where it is nothing that is counted."""
        nbytes = self.machine.widths.get(ins.index, nbytes)
        if space not in FIELDS or not np.size(warps) or not nbytes:
            return None  # parameters and constants go through no data pipe; a neighbour moves what has no bytes
        if space == "global" and kind in ATOMIC:
            kind = "red" if self.machine.words(ins) & {"RED", "REDG"} else "atom"
        ids, table = by_warp(warps, lanes, addresses)
        if ins.index in self.machine.elected:
            table = first_lanes(table)
        return Execution(space, kind, ins, nbytes, ids, table)

    def cost(self, done: Execution) -> tuple[Ints, Ints]:
        """Of each warp: sectors, twice; or of shared memory wavefronts, and those it takes without bank conflicts.

        A copy must be reported with its global half first.
        """
        table, nbytes, kind = done.table, done.nbytes, done.kind
        if done.space != "shared":
            local = done.space == "local"
            sectors = (
                atomic_sectors(table) if kind in ATOMIC else (local_sectors if local else global_sectors)(table, nbytes)
            )
            return sectors, sectors
        if kind == "cp.async":
            if self._past_l1(done.ins):
                return np.zeros_like(done.ids), np.zeros_like(done.ids)
            read = self._sources.get(done.ins.index)
            sources = table if read is None else _in_rows_of(done, read)
            # A lane that copies nothing and writes zeros has no source; beside its target is as good as any.
            return copy_wavefronts(np.where(sources == IDLE, table, sources), table, nbytes)
        words = self.machine.words(done.ins)
        wavefronts, passes = shared_wavefronts(table, nbytes, "st" if "POPC" in words else kind)
        return (2 * wavefronts, wavefronts + passes) if words & {"CAS", "CAST"} else (wavefronts, passes)

    def _past_l1(self, ins: Instruction | PtxAccess) -> bool:
        """Whether a copy is ``cp.async.cg``."""
        return bool(self.machine.words(ins) & {"CG", "BYPASS"})

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
        sums: Counter[str] = Counter()
        for tally in self.tallies().values():
            sums.update(tally.counters())
        return dict(+sums)


def _in_rows_of(done: Execution, read: Execution) -> Ints:
    """The addresses that a copy reads, in the rows of the table of those it writes."""
    sources = np.full_like(done.table, IDLE)
    rows = np.searchsorted(read.ids, done.ids)
    known = np.isin(done.ids, read.ids)
    sources[known] = read.table[rows[known]]
    return sources
