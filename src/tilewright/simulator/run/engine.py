"""Runs a batch of blocks: which lanes run which segment next, and where diverged lanes join again.

Lanes at the same segment of the program run together. The lowest segment in program order runs first, so lanes that took
different branches join where the branches join, as compilers lay code out. Where a warp must execute an instruction
together (``.sync``), lanes that arrive early wait. A segment is a list of steps bound once; the loop over them is all the
Python that runs per instruction.

Lanes in a loop rest after some rounds and let all others run, because they may be waiting for these.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..assembly.effects import is_warp_barrier, loads_anew
from ..assembly.instructions import Instruction
from ..assembly.program import Program
from ..findings import STEP_LIMIT
from ..machine.endless_waits import note_waiting, report_endless
from ..machine.lanes import TIMERS, Lanes
from ..machine.values import Ints
from ..ops.mbarrier import Wait
from .barriers import Barriers
from .cluster_barriers import ClusterBarriers
from .gathering import Gathering
from .segments import Segment, bind_segments
from .stillness import Stillness

#: A loop rests after PATIENCE rounds, or after about POLLS segments that read what other threads may have written.
PATIENCE, POLLS = 1 << 16, 64

#: The segment at which lanes go on, and the lanes; None for all.
Moved = tuple[int, "Ints | None"]


class StoppedError(Exception):
    """The run was stopped because the kernel does not end; a finding says so."""


class Engine:
    """Binds a program to the lanes of a batch and runs it for one set of blocks after the other."""

    def __init__(self, program: Program, lanes: Lanes) -> None:
        self.program, self.lanes = program, lanes
        self.barriers, self.gathering, self.stillness = Barriers(lanes), Gathering(lanes), Stillness(lanes)
        self.cluster_barriers = ClusterBarriers(lanes, self.barriers.exited)
        self.segments = bind_segments(program, lanes)
        self.done = len(self.segments)
        self.ready: dict[int, list[Ints | None]] = {}
        self.resting: dict[int, list[Ints | None]] = {}
        self.admitted: list[tuple[int, Ints]] = []  # lanes whose warp is complete at a collective instruction
        self.parked: dict[int, list[Ints]] = {}  # lanes that wait for a phase of an mbarrier
        self.expired: set[int] = set()  # waits that return in vain, as their time limit allows
        self.polled: dict[int, Segment] = {}  # where lanes rest → the segment in which they polled
        # first segment of a loop → step of its latest jump back, and its last segment
        self.loops: dict[int, tuple[int, int]] = {}
        self.steps = 0
        self.stuck = False
        self.tick: Callable[[], None] = lambda: None
        self.timed = bool(TIMERS & lanes.specials.keys())

    # ---- the loop

    def run(self) -> None:
        """Run until every lane has left the kernel. Raises StoppedError where that takes more than ``max_steps``."""
        self.barriers.clear()
        self.cluster_barriers.clear()
        self.gathering.clear()
        self.stillness.clear()
        self.admitted.clear()
        self.resting.clear()
        self.parked.clear()
        self.expired.clear()
        self.loops.clear()
        self.ready = {0: [None]} if self.segments else {}
        while True:
            if self.admitted:
                self._go(*self.admitted.pop(), admitted=True)
            elif self.ready:
                at = min(self.ready)
                self._go(at, self._merged(self.ready.pop(at)))
            elif self.lanes.mbarriers.deliver() or (self.parked and self._unpark()):
                continue
            elif self.resting or self.parked:
                self._wake()
            elif self.gathering.waiting:
                self._admit(self.gathering.give_up())
            elif self.barriers.waiting.any() or self.cluster_barriers.waiting.any():
                self.stuck = True
                self.barriers.report_stuck()
                self.cluster_barriers.report_stuck()
            else:
                break
        self.lanes.mbarriers.report_left()
        self.lanes.transfers.end()
        self.lanes.register_pool.report()
        if self.lanes.shared.visits is not None and not self.stuck:
            self.lanes.shared.visits.report()

    def _go(self, at: int, sel: Ints | None, admitted: bool = False) -> None:
        """Run a group of lanes until it diverges, waits, rests, or another group must run first or join it."""
        patience, polled = PATIENCE, None
        while True:
            segment = self.segments[at]
            if segment.collective is not None and sel is not None and not admitted:
                self.stillness.disturbed = True
                self._admit(self.gathering.admit(at, segment.collective, sel))
                return
            admitted = False
            if segment.wait is not None and at not in self.expired:
                passed = self._park(at, segment.wait, sel)
                if passed is not None and not passed.size:
                    return
                sel = sel if passed is None else passed
            self.expired.discard(at)
            self._execute(segment, sel)
            moved = self._leave(segment, at, sel)
            if moved is None:
                return
            if segment.polls:
                patience, polled = patience - PATIENCE // POLLS, segment
            if moved[0] <= at:
                patience -= 1
                self.loops[moved[0]] = (self.steps, at)
            at, sel = moved
            if patience < 0:
                self.resting.setdefault(at, []).append(sel)
                self.polled[at] = polled or segment
                return
            if self.ready and at >= min(self.ready):
                self._push(at, sel)
                return

    def _execute(self, segment: Segment, sel: Ints | None) -> None:
        for step in segment.steps:
            step(sel)
        if segment.collective is not None and is_warp_barrier(segment.collective):
            self.gathering.meet([(segment.collective, sel)])
        self.stillness.disturbed |= segment.stores
        self.steps += len(segment.steps) + 1
        warps = self.lanes.warps if sel is None else int(np.count_nonzero(np.diff(self.lanes.base_warp[sel]))) + 1
        self.lanes.launch.warp_instructions += warps * segment.instructions
        self.tick()
        if self.timed:
            self.lanes.tick(self.steps)
        if self.steps > (limit := self.lanes.launch.options.max_steps):
            loop = self._loop() or segment
            code = loop.end or loop.last
            text = f"still running after {limit:,} steps (max_steps): an endless loop, or a limit too low: {code.text}"
            self._report(code, sel, text, STEP_LIMIT)
            raise StoppedError

    def _loop(self) -> Segment | None:
        """The last segment of the longest loop that still runs."""
        live = [(last - first, last) for first, (when, last) in self.loops.items() if when > self.steps // 2]
        return self.segments[max(live)[1]] if live else None

    def _admit(self, groups: list[tuple[int, Ints]]) -> None:
        """Let complete warps execute their collective instruction; they may meet at several warp barriers."""
        barriers = [(self.segments[at].last, group) for at, group in groups if self._is_barrier(at)]
        if len(barriers) > 1:
            self.gathering.meet(barriers)
        for at, group in groups:
            if self._is_barrier(at) and len(barriers) > 1:
                self._push(at + 1, group)
            else:
                self.admitted.append((at, group))

    def _is_barrier(self, at: int) -> bool:
        segment = self.segments[at]
        return segment.collective is not None and is_warp_barrier(segment.collective)

    def _park(self, at: int, wait: Wait, sel: Ints | None) -> Ints | None:
        """Let the lanes whose phase has not completed wait here; returns the others, None for all."""
        active = self.lanes.every if sel is None else sel
        passed = wait.passed(active)
        if passed.all():
            return None
        if self.lanes.mbarriers.log is not None:
            note_waiting(self.lanes.mbarriers, "wait", wait.stuck(active[~passed]))
        self.parked.setdefault(at, []).append(active[~passed])
        return active[passed]

    def _unpark(self) -> bool:
        """Let parked lanes go on whose phase has completed meanwhile; returns whether there were any."""
        for at, groups in list(self.parked.items()):
            lanes = np.sort(np.concatenate(groups))
            wait = self.segments[at].wait
            assert wait is not None
            passed = wait.passed(lanes)
            if passed.any():
                self._push(at, lanes[passed] if passed.sum() < self.lanes.size else None)
                self.parked[at] = [lanes[~passed]]
            if passed.all():
                del self.parked[at]
        return bool(self.ready)

    def _wake(self) -> None:
        """All other lanes had their turn: resting lanes go on, and waits for an mbarrier return in vain. Raises
        StoppedError if nothing can change for them."""
        self.ready, self.resting = self.resting, {}
        parked, self.parked = self.parked, {}
        for at, waiting in parked.items():
            self.ready.setdefault(at, []).extend(waiting)
        self.expired.update(parked)
        if not self.stillness.complete():
            return
        self._report_parked(parked)
        for at, groups in self.ready.items():
            sel = self._merged(groups)
            if at in parked:
                continue
            segment = self.polled[at]
            code = next((i for i in segment.code if loads_anew(i)), segment.end or segment.last)
            count = self.lanes.size if sel is None else sel.size
            others = int((self.barriers.waiting | self.cluster_barriers.waiting).sum())
            others += sum(group.size for _, group in self.gathering.waiting.values())
            text = f"{count} threads loop for ever: nothing that they read changes any more"
            text += f", and {others} wait at a barrier" if others else ""
            self._report(code, sel, f"{text}{self.lanes.launch.not_begun(int(self.lanes.blocks[-1]))}: {code.text}")
        raise StoppedError

    def _report_parked(self, parked: dict[int, list[Ints]]) -> None:
        """Report lanes that wait for ever for phases of mbarriers."""
        waits = []
        for at, groups in parked.items():
            wait = self.segments[at].wait
            assert wait is not None
            waits.append(wait.stuck(np.sort(np.concatenate(groups))))
        if waits:
            report_endless(self.lanes.mbarriers, waits, int(self.barriers.waiting.sum()))

    def _report(self, ins: Instruction, sel: Ints | None, text: str, kind: str = "endless wait") -> None:
        self.lanes.reports.report(kind, ins, sel, np.ones(1, bool), None, text)

    def _push(self, at: int, sel: Ints | None) -> None:
        if at >= self.done:
            self._exit(sel)
        else:
            self.ready.setdefault(at, []).append(sel)

    def _merged(self, groups: list[Ints | None]) -> Ints | None:
        """Several groups as one, in order of lane; None is all lanes."""
        if len(groups) == 1:
            return groups[0]
        mask = np.zeros(self.lanes.size, bool)
        for group in groups:
            mask[slice(None) if group is None else group] = True
        return None if mask.all() else np.flatnonzero(mask)

    # ---- the end of a segment

    def _leave(self, segment: Segment, at: int, sel: Ints | None) -> Moved | None:
        """Where the lanes go on together; None if they diverge, wait or end."""
        end = segment.end
        if end is None:
            return self._go_on(at + 1, sel)
        if segment.guard is not None:
            p = segment.guard if sel is None else segment.guard[sel]
            if end.guard and end.guard[1]:
                p = ~p
            if not p.any():
                return self._go_on(at + 1, sel)
            if not p.all():
                active = self.lanes.every if sel is None else sel
                self._push(at + 1, active[~p])
                sel = active[p]
                moved = self._jump(segment, end, at, sel)
                if moved is not None:
                    self._push(*moved)
                return None
        return self._jump(segment, end, at, sel)

    def _go_on(self, at: int, sel: Ints | None) -> Moved | None:
        if at >= self.done:
            self._exit(sel)
            return None
        return at, sel

    def _jump(self, segment: Segment, end: Instruction, at: int, sel: Ints | None) -> Moved | None:
        name = end.parts[0]
        if name == "bra":
            return self._go_on(segment.targets[0], sel)
        self.stillness.disturbed = True
        active = self.lanes.every if sel is None else sel
        if name == "brx":
            assert segment.index is not None
            index = np.minimum(segment.index if sel is None else segment.index[sel], len(segment.targets) - 1)
            for i in np.unique(index):
                self._push(segment.targets[int(i)], active[index == i])
            return None
        if segment.of_cluster:
            self._pass_on(self.cluster_barriers.pass_by(end, at, active))
            return None
        if segment.form is not None:
            if (
                sel is None
                and segment.form.kind == "sync"
                and segment.form.count.ndim == 0
                and not int(segment.form.count)
            ):
                self.lanes.clocks.sync_blocks(None)
                if self.lanes.mbarriers.log is not None:
                    self.lanes.mbarriers.log.apart("meet", self.lanes.every)
                return self._go_on(at + 1, sel)
            self._pass_on(self.barriers.wait(segment.form, at, active))
            return None
        if name == "trap":
            text = f"the kernel traps (a failed assertion?): {end.text}"
            self.lanes.reports.report("trap", end, sel, np.ones(1, bool), None, text)
        self._exit(sel)
        return None

    def _pass_on(self, groups: list[tuple[int, Ints]]) -> None:
        for at, some in groups:
            self._push(at + 1, None if some.size == self.lanes.size else some)

    def _exit(self, sel: Ints | None) -> None:
        self.stillness.disturbed = True
        active = self.lanes.every if sel is None else sel
        self.gathering.leave(active)
        self._pass_on(self.barriers.leave(active))
        self._pass_on(self.cluster_barriers.leave(active))
