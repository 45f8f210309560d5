"""The barrier of a cluster: which threads arrived, which wait, when a phase is complete, and errors (PTX ISA 9.7.13.4).

Every thread arrives and, after any other work, waits for the phase in which it arrived. A phase is complete when all threads
of the cluster have arrived that have not left the kernel.
"""

from __future__ import annotations

import numpy as np

from ..assembly.instructions import Instruction
from ..findings import BARRIER_MISUSE
from ..machine.lanes import Lanes
from ..machine.values import Bools, Ints
from ..ops import UnknownInstruction


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
        """Forget all lanes: new blocks start."""
        for array in (self.waiting, self.phase, self.turn, self.owes, self.rows, self.done):
            array.fill(0)
        self.relaxed = False

    def pass_by(self, ins: Instruction, at: int, lanes: Ints) -> list[tuple[int, Ints]]:
        """These lanes execute ``barrier.cluster.arrive`` or ``.wait``; returns the lanes that go on, by the segment in which
        they were."""
        self.instructions[at] = ins
        return self._arrive(ins, at, lanes) if "arrive" in ins.parts else self._wait(ins, at, lanes)

    def leave(self, lanes: Ints) -> list[tuple[int, Ints]]:
        """These lanes left the kernel; returns the lanes that can go on because of that."""
        return self._complete(lanes) if self.turn.any() else []

    def _arrive(self, ins: Instruction, at: int, lanes: Ints) -> list[tuple[int, Ints]]:
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

    def _wait(self, ins: Instruction, at: int, lanes: Ints) -> list[tuple[int, Ints]]:
        if not (owes := self.owes[lanes]).all():
            text = f"waits without having arrived: {ins.text}"
            self.lanes.reports.report(BARRIER_MISUSE, ins, lanes, ~owes, None, text)
        self.owes[lanes] = False
        early = self.turn[lanes] > self.phase[self.of[lanes]]
        late = lanes[early]
        self.waiting[late], self.at[late] = True, at
        return self._pass(at, lanes[~early])

    def _pass(self, at: int, lanes: Ints) -> list[tuple[int, Ints]]:
        """These lanes have waited: all that was published before is ordered before what they do from now on."""
        if not lanes.size:
            return []
        published, reached = self.done
        self.lanes.clocks.learn(lanes, published)
        if self.relaxed:
            blocks = np.unique(self.lanes.of_block[lanes])
            self.lanes.clocks.outlive(blocks, reached[blocks // self.lanes.cluster.size])
        return [(at, lanes)]

    def _complete(self, lanes: Ints) -> list[tuple[int, Ints]]:
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
        lanes.reports.report("divergent barrier", ins, arrived, np.ones(1, bool), None, text)

    def report_stuck(self) -> None:
        """No lane can run and some wait: report these and let them leave."""
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
    """Whether an instruction is ``barrier.cluster``. Raises UnknownInstruction for a form that there is not."""
    flags = ins.parts[1:]
    if "cluster" not in flags or ins.parts[0] != "barrier":
        return False
    order = {"arrive": {"release", "relaxed"}, "wait": {"acquire"}}.get(next(iter(flags[1:]), ""), set())
    if flags[:1] != ("cluster",) or flags[1] not in ("arrive", "wait") or set(flags[2:]) - order - {"aligned"}:
        raise UnknownInstruction(ins)
    return True
