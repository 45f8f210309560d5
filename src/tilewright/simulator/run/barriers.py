"""Barriers of blocks and of clusters: which threads wait at which barrier, when a barrier opens, and errors in the use
of barriers.

A barrier of a block (PTX ISA 9.7.13.1) opens when as many threads have arrived as its instruction says. A barrier of a
cluster has two instructions (9.7.13.4): every thread first arrives, and later, after any other work, waits for the
phase in which it arrived. A phase of a cluster's barrier is complete when all threads of the cluster that have not left
the kernel have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..assembly.instructions import Instruction
from ..findings import BARRIER_MISUSE, BY_THE_LETTER
from ..machine.lanes import Lanes
from ..machine.values import Array, Bools, Ints, per_lane
from ..ops import UnknownInstruction

#: Lanes that are at the same segment of the program: the number of the segment, and the lanes. A barrier ends its segment,
#: so lanes that pass the barrier continue with the segment after the one that is named here.
Group = tuple[int, Ints]

# ---- of a block ------------------------------------------------------------------------------------------------------


@dataclass
class BarrierForm:
    """A barrier instruction, bound to the lanes: its kind, and for each lane the number of its barrier and the number
    of threads for which it waits (0: all)."""

    ins: Instruction
    kind: str  # "sync", "arrive" or "red"
    number: Array
    count: Array

    @classmethod
    def of(cls, ins: Instruction, lanes: Lanes) -> BarrierForm:
        """Parse a barrier instruction. Raises UnknownInstruction for a form of barrier instruction that is not
        supported."""
        flags = [p for p in ins.parts[1:] if p not in ("cta", "aligned")]
        kind = flags[0] if flags else ""
        operands = list(ins.operands)
        if kind == "red":
            operands = operands[1:-1]
        known = {"sync", "arrive", "red", "popc", "and", "or", "u32", "pred"}
        if kind not in ("sync", "arrive", "red") or set(flags) - known or not 1 <= len(operands) <= 2:
            raise UnknownInstruction(ins)
        combines = any(how in flags for how in ("popc", "and", "or"))
        if (kind == "red") != combines or (kind == "red" and not lanes.is_register(ins.operands[0])):
            raise UnknownInstruction(ins)
        if kind == "arrive" and len(operands) < 2:
            raise UnknownInstruction(ins, "arrives without the number of threads that must meet")
        number, count = (lanes.source(o, "u32", ins) for o in [*operands, "0"][:2])
        return cls(ins, kind, number, count)

    def is_plain_sync(self) -> bool:
        """Whether the instruction is ``bar.sync`` for all threads of the block."""
        return self.kind == "sync" and self.count.ndim == 0 and not int(self.count)


class Barriers:
    """The barriers of all blocks of a batch."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.waiting = np.zeros(lanes.size, bool)
        self.exited = np.zeros(lanes.size, bool)
        self.number = np.zeros(lanes.size, np.int64)  # the barrier at which a lane waits
        self.need = np.zeros(lanes.size, np.int64)  # for how many threads; 0 for the whole block
        self.at = np.zeros(lanes.size, np.int64)  # the segment in which it waits
        # (block, barrier) → for each bar.arrive: the number of threads, and what these know of other warps (see Clocks)
        self.arrived: dict[tuple[int, int], list[tuple[int, Ints]]] = {}
        self.forms: dict[int, BarrierForm] = {}

    def clear(self) -> None:
        """Forget all lanes that wait, arrived or left, because new blocks start."""
        self.waiting.fill(False)
        self.exited.fill(False)
        self.arrived.clear()

    def wait(self, form: BarrierForm, at: int, lanes: Ints) -> list[Group]:
        """Let these lanes arrive at a barrier of their block; returns the lanes that can continue, by the segment in
        which they waited."""
        self.forms[at] = form
        numbers, counts = per_lane(form.number, lanes), per_lane(form.count, lanes)
        if form.kind != "arrive":
            self.waiting[lanes] = True
            self.number[lanes], self.need[lanes], self.at[lanes] = numbers, counts, at
            return self.open_complete(lanes)
        clocks = self.lanes.clocks
        keys = self.lanes.of_block[lanes] * 1024 + numbers
        for key in np.unique(keys):
            some = lanes[keys == key]
            place = (int(key) // 1024, int(key) % 1024)
            self.arrived.setdefault(place, []).append((self._count(some), clocks.knowledge(some)))
        clocks.advance(lanes)
        return [*self.open_complete(lanes), (at, lanes)]

    def leave(self, lanes: Ints) -> list[Group]:
        """Record that these lanes left the kernel; returns the lanes that can continue for this reason."""
        self.exited[lanes] = True
        return self.open_complete(lanes) if self.waiting.any() else []

    def open_complete(self, lanes: Ints) -> list[Group]:
        """Open every complete barrier of the blocks of these lanes; returns the lanes that waited at these barriers, by
        segment."""
        threads, released = self.lanes.threads, []
        for block in np.unique(self.lanes.of_block[lanes]):
            of_block = slice(int(block) * threads, (int(block) + 1) * threads)
            waiting = np.flatnonzero(self.waiting[of_block]) + of_block.start
            for number in np.unique(self.number[waiting]):
                group = waiting[self.number[waiting] == number]
                arrived = self.arrived.get((int(block), int(number)), [])
                need, exited = int(self.need[group].max()), int(self.exited[of_block].sum())
                count = self._count(group) if need else group.size
                if count + sum(n for n, _ in arrived) < (need or threads - exited):
                    continue
                self.arrived.pop((int(block), int(number)), None)
                self._report_divergence(group, self.exited[of_block], 0 if need else exited)
                released += self._open(group, int(block), need, [known for _, known in arrived])
        return released

    def _count(self, group: Ints) -> int:
        """How many threads a group of a block counts as: a last warp of fewer than 32 counts as 32 (PTX ISA 9.7.13.1)."""
        last = self.lanes.threads // 32 * 32  # the first thread of the warp that is not full
        return int(group.size) + (-self.lanes.threads % 32 if self._has_last_warp(group, last) else 0)

    def _has_last_warp(self, group: Ints, last: int) -> bool:
        """Whether all threads of the block from ``last`` on are in a group, and there are any."""
        return int((self.lanes.tid[group] >= last).sum()) == self.lanes.threads - last > 0

    def _open(self, group: Ints, block: int, need: int, arrived: list[Ints]) -> list[Group]:
        self.waiting[group] = False
        if self.lanes.mbarriers.log is not None:
            self.lanes.mbarriers.log.apart("meet", group)
        if not need or group.size == self.lanes.threads:
            self.lanes.clocks.sync_blocks(np.array([block]))
        else:
            self.lanes.clocks.meet(group, arrived)
        released = []
        for at in np.unique(self.at[group]):
            some = group[self.at[group] == at]
            form = self.forms[int(at)]
            if form.kind == "red":
                self._reduce(form.ins, group, some)
            released.append((int(at), some))
        return released

    def _reduce(self, ins: Instruction, group: Ints, lanes: Ints) -> None:
        """``bar.red``: give these lanes the predicate of all threads of the group, counted or combined."""
        how = next((h for h in ("popc", "and", "or") if h in ins.parts), "")
        source = ins.operands[-1]
        p = self.lanes.source(source.lstrip("!"), "pred", ins)
        values = per_lane(p, group) ^ source.startswith("!")
        result = {"popc": int(values.sum()), "and": bool(values.all()), "or": bool(values.any())}[how]
        kind = "u32" if how == "popc" else "pred"
        self.lanes.source(ins.operands[0], kind, ins)[lanes] = result

    def _report_divergence(self, group: Ints, exited: Ints, gone: int) -> None:
        """Report a barrier that ``gone`` threads never reach, or that one warp reaches at several places.

        Since Volta, the hardware opens a barrier without threads that have left; the language forbids it. Warps may wait at
        different barrier instructions, the threads of one warp may not.
        """
        lanes, places = self.lanes, self.at[group]
        ins = self.forms[int(places[0])].ins
        if gone:
            block = int(lanes.of_block[group[0]])
            _, first = lanes.place(block * lanes.threads + int(np.argmax(exited)))
            text = (
                f"{gone} of {lanes.threads} threads of the block left the kernel without reaching it, the first {first}"
            )
            text = f"{text}: {ins.text}"
            lanes.reports.report("divergent barrier", ins, group, np.ones(1, bool), None, text, BY_THE_LETTER)
        if (places != places[0]).any():
            warps = lanes.base_warp[group]
            least, most = np.full(int(warps.max()) + 1, places.max()), np.zeros(int(warps.max()) + 1, np.int64)
            np.minimum.at(least, warps, places)
            np.maximum.at(most, warps, places)
            split = (least < most)[warps]
            if split.any():
                others = ", ".join(sorted({self.forms[int(at)].ins.place(ins) for at in np.unique(places[split])}))
                text = f"threads of one warp wait at different barriers ({others}): {ins.text}"
                lanes.reports.report("divergent barrier", ins, group, split, None, text)

    def report_stuck(self) -> None:
        """Report lanes that still wait at a barrier when no lane can run; these lanes then leave the kernel."""
        stuck = np.flatnonzero(self.waiting)
        for at in np.unique(self.at[stuck]):
            some = stuck[self.at[stuck] == at]
            ins, need = self.forms[int(at)].ins, int(self.need[some[0]])
            block = int(self.lanes.of_block[some[0]])
            here = some[self.lanes.of_block[some] == block].size
            missing = f"{here} threads of the block wait for ever where {need or self.lanes.threads} must meet"
            text = f"{missing}, because the others wait elsewhere or have left: {ins.text}"
            self.lanes.reports.report("endless wait", ins, some, np.ones(1, bool), None, text)
        self.exited[stuck] = True
        self.waiting[stuck] = False


# ---- of a cluster ----------------------------------------------------------------------------------------------------


class ClusterBarriers:
    """The barriers of all clusters of a batch. ``exited`` marks the lanes that have left the kernel."""

    def __init__(self, lanes: Lanes, exited: Bools) -> None:
        self.lanes, self.exited = lanes, exited
        clusters = lanes.copies // lanes.cluster.size
        self.of = lanes.of_block // lanes.cluster.size  # the cluster of each lane, within the batch
        self.waiting = np.zeros(lanes.size, bool)
        self.at = np.zeros(lanes.size, np.int64)  # the segment in which a lane waits
        self.phase = np.zeros(clusters, np.int64)  # phases that are complete
        self.turn = np.zeros(lanes.size, np.int64)  # the phases at which a lane has arrived
        self.owes = np.zeros(lanes.size, bool)  # whether it has yet to wait for the last of them
        self.by = np.zeros(lanes.size, np.int64)  # the instruction by which it arrived
        # What arrivals publish, and how far they have got: of the present phase, and of the one that is complete.
        self.rows, self.done = (np.zeros((2, clusters, lanes.clocks.columns), np.int64) for _ in range(2))
        self.relaxed = False  # whether some thread published less than all
        self.instructions: dict[int, Instruction] = {}

    def clear(self) -> None:
        """Forget all lanes, because new blocks start."""
        for array in (self.waiting, self.phase, self.turn, self.owes, self.rows, self.done):
            array.fill(0)
        self.relaxed = False

    def pass_by(self, ins: Instruction, at: int, lanes: Ints) -> list[Group]:
        """Execute ``barrier.cluster.arrive`` or ``.wait`` by these lanes; returns the lanes that can continue, by the
        segment in which these lanes were."""
        self.instructions[at] = ins
        return self._arrive(ins, at, lanes) if "arrive" in ins.parts else self._wait(ins, at, lanes)

    def leave(self, lanes: Ints) -> list[Group]:
        """Record that these lanes left the kernel; returns the lanes that can continue for this reason."""
        return self._complete(lanes) if self.turn.any() else []

    def _arrive(self, ins: Instruction, at: int, lanes: Ints) -> list[Group]:
        if (again := self.owes[lanes]).any():
            text = f"arrives a second time without waiting for the first: {ins.text}"
            self.lanes.reports.report(BARRIER_MISUSE, ins, lanes, again, None, text)
        self.turn[lanes], self.owes[lanes], self.by[lanes] = self.phase[self.of[lanes]] + 1, True, ins.index
        clocks, relaxed = self.lanes.clocks, "relaxed" in ins.parts
        self.relaxed |= relaxed
        reached = clocks.knowledge_of_clusters(lanes)
        published = clocks.knowledge_of_clusters(lanes, fenced=True) if relaxed else reached
        for row, new in zip(self.rows, (published, reached), strict=True):
            np.maximum(row, new, out=row)
        clocks.advance(lanes)
        return [*self._complete(lanes), (at, lanes)]

    def _wait(self, ins: Instruction, at: int, lanes: Ints) -> list[Group]:
        if not (owes := self.owes[lanes]).all():
            text = f"waits without having arrived: {ins.text}"
            self.lanes.reports.report(BARRIER_MISUSE, ins, lanes, ~owes, None, text)
        self.owes[lanes] = False
        early = self.turn[lanes] > self.phase[self.of[lanes]]
        late = lanes[early]
        self.waiting[late], self.at[late] = True, at
        return self._pass(at, lanes[~early])

    def _pass(self, at: int, lanes: Ints) -> list[Group]:
        """These lanes have waited: all that was published before is ordered before what they do from now on."""
        if not lanes.size:
            return []
        published, reached = self.done
        self.lanes.clocks.learn(lanes, published)
        if self.relaxed:
            blocks = np.unique(self.lanes.of_block[lanes])
            self.lanes.clocks.outlive(blocks, reached[blocks // self.lanes.cluster.size])
        return [(at, lanes)]

    def _complete(self, lanes: Ints) -> list[Group]:
        """End the phase of every cluster of these lanes at which all have arrived; returns the lanes that go on."""
        here: Bools = np.reshape(self.turn > self.phase[self.of], (self.phase.size, -1))
        all_arrived = np.all(here | self.exited.reshape(here.shape), axis=1) & np.any(here, axis=1)
        clusters = np.intersect1d(np.flatnonzero(all_arrived), self.of[lanes])
        if not clusters.size:
            return []
        for cluster in clusters[~here[clusters].all(axis=1)]:
            self._report_absent(int(cluster), here[cluster])
        self.done[:, clusters], self.rows[:, clusters] = self.rows[:, clusters], 0
        self.phase[clusters] += 1
        if self.lanes.mbarriers.log is not None:
            self.lanes.mbarriers.log.apart("meet", np.flatnonzero(np.isin(self.of, clusters)))
        released = np.flatnonzero(self.waiting & np.isin(self.of, clusters))
        self.waiting[released] = False
        return [
            go for at in np.unique(self.at[released]) for go in self._pass(int(at), released[self.at[released] == at])
        ]

    def _report_absent(self, cluster: int, here: Bools) -> None:
        """Threads left the kernel without arriving: the hardware goes on without them; the language forbids it."""
        lanes, size = self.lanes, here.size
        arrived = cluster * size + np.flatnonzero(here)
        ins = lanes.program.code[int(self.by[arrived[0]])]
        block, thread = lanes.place(cluster * size + int(np.argmin(here)))
        text = f"{size - arrived.size} of {size} threads of the cluster left the kernel without reaching it, the first "
        text += f"{thread} of block {block}: {ins.text}"
        lanes.reports.report("divergent barrier", ins, arrived, np.ones(1, bool), None, text, BY_THE_LETTER)

    def report_stuck(self) -> None:
        """Report lanes that still wait at a barrier when no lane can run; these lanes then leave the kernel."""
        stuck = np.flatnonzero(self.waiting)
        for at in np.unique(self.at[stuck]):
            some = stuck[self.at[stuck] == at]
            ins, size = self.instructions[int(at)], self.lanes.threads * self.lanes.cluster.size
            of = self.of[some[0]]
            here = int((self.turn > self.phase[self.of]).reshape(-1, size)[of].sum())
            text = (
                f"threads of the cluster wait for ever, because only {here} of {size} have arrived and the others wait "
            )
            self.lanes.reports.report("endless wait", ins, some, np.ones(1, bool), None, f"{text}elsewhere: {ins.text}")
        self.exited[stuck] = True
        self.waiting[stuck] = False


def is_cluster_barrier(ins: Instruction) -> bool:
    """Whether an instruction is ``barrier.cluster``. Raises UnknownInstruction for a form of ``barrier.cluster`` that
    does not exist."""
    flags = ins.parts[1:]
    if "cluster" not in flags or ins.parts[0] != "barrier":
        return False
    order = {"arrive": {"release", "relaxed"}, "wait": {"acquire"}}.get(next(iter(flags[1:]), ""), set())
    if flags[:1] != ("cluster",) or flags[1] not in ("arrive", "wait") or set(flags[2:]) - order - {"aligned"}:
        raise UnknownInstruction(ins)
    return True
