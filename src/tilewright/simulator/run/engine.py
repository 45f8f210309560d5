"""Runs a batch of blocks: it decides which lanes run which segment next, and where diverged lanes join again.

A segment is a part of the program that runs without interruption: a list of steps (Python functions), one for each
instruction, which are bound to the lanes once. The loop over these steps is the only Python code that runs for each
instruction. Lanes that are at the same segment of the program run together, as a group. The lowest segment in program
order runs first. So lanes that took different branches join where the branches join, in the order in which compilers
lay out code.

Every lane is in one of these states, in which ``at`` is the number of a segment:

| state | where the state is stored | what ends the state, and the next state |
| --- | --- | --- |
| ready | ``ready[at]`` | No lane is admitted, and ``at`` is the lowest segment with ready lanes: running. |
| running | locals of ``_run_group`` | The group diverges, waits, exits, or a lower segment is ready: any other state. |
| gathering | ``gathering.waiting[at]`` | All lanes that must execute the ``.sync`` together are there: admitted. |
| admitted | ``admitted`` | No other group has to run first: running. |
| at a barrier | ``barriers``, ``cluster_barriers`` | The barrier of the block or cluster opens: ready, at ``at + 1``. |
| parked | ``parked[at]`` | The phase of the mbarrier for which ``at`` waits completes: ready, at ``at``. |
| resting | ``resting[at]`` | No lane is ready: ready. A loop rests after some rounds; it may wait for other lanes. |
| exited | ``barriers.exited`` | Nothing. |

If no lane is ready or admitted, ``run`` takes the following steps in order, and starts again after the first step that
makes a lane ready or admitted:

1. The asynchronous copies complete, and parked lanes whose phase has completed continue.
2. Resting lanes continue. Parked lanes continue, too, with their wait ``expired``: the wait returns although its phase
   is not complete, as a wait on hardware may. If nothing changed since ``run`` last took this step, all resting and
   parked lanes wait for ever: this is a finding, and the run stops.
3. Gathering lanes continue without the lanes that are missing, which is a finding.
4. Lanes that are still at barriers wait for ever, which is a finding. These lanes exit.

In this module, ``sel`` selects lanes of the batch: their numbers in ascending order, or None for all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ..assembly.instructions import (
    Instruction,
    fences,
    is_collective,
    is_mbarrier_wait,
    is_warp_barrier,
    is_warpgroup_wide,
    loads_anew,
    stores,
)
from ..assembly.program import CONTROL, BasicBlock, Program
from ..findings import STEP_LIMIT
from ..machine.lanes import TIMERS, Lanes
from ..machine.mbarriers import note_waiting, report_endless
from ..machine.values import Array, Ints, per_lane
from ..ops import bind
from ..ops._table import Step
from ..ops.mbarrier import Wait
from ..ops.warp import WHOLE_WARP, companions
from .barriers import BarrierForm, Barriers, ClusterBarriers, Group, is_cluster_barrier

#: A loop rests after PATIENCE rounds, or after about POLLS segments that read what other threads may have written.
PATIENCE, POLLS = 1 << 16, 64

#: The segment at which lanes run next, and the lanes in the form of ``sel``.
Moved = tuple[int, "Ints | None"]


class Loop(NamedTuple):
    """A loop of the program, identified by its latest jump back: the segment that jumped, and the step at which it
    jumped."""

    last: int
    step: int


class StoppedError(Exception):
    """The run was stopped because the kernel does not end; a finding reports this defect."""


class Engine:
    """Binds a program to the lanes of a batch, and runs it for one set of blocks after another."""

    def __init__(self, program: Program, lanes: Lanes) -> None:
        self.program, self.lanes = program, lanes
        self.barriers, self.gathering, self.stillness = Barriers(lanes), Gathering(lanes), Stillness(lanes)
        self.cluster_barriers = ClusterBarriers(lanes, self.barriers.exited)
        self.segments = bind_segments(program, lanes)
        self.kernel_end = len(self.segments)  # the number of the segment at which lanes exit
        self.timed = bool(TIMERS & lanes.specials.keys())
        self.tick: Callable[[], None] = lambda: None  # called after each segment
        self.steps = 0  # of the whole launch, so ``run`` counts on
        self._forget_lanes()

    def _forget_lanes(self) -> None:
        self.ready: dict[int, list[Ints | None]] = {}
        self.resting: dict[int, list[Ints | None]] = {}
        self.parked: dict[int, list[Ints]] = {}
        self.admitted: list[Group] = []
        self.expired: set[int] = (
            set()
        )  # segments whose wait for an mbarrier lanes pass once, though no phase has completed
        self.polled: dict[int, Segment] = {}  # where lanes rest → the segment in which they polled
        self.polls: dict[
            int, int
        ] = {}  # segment that polls before a barrier → how often since all lanes had their turn
        self.loops: dict[int, Loop] = {}  # by their first segment
        self.stuck = False  # whether lanes waited for ever at a barrier
        for part in (self.barriers, self.cluster_barriers, self.gathering, self.stillness):
            part.clear()

    # ---- the loop

    def run(self) -> None:
        """Run until every lane has left the kernel. Raises StoppedError if the run takes more than ``max_steps``
        steps."""
        self._forget_lanes()
        if self.segments:
            self.ready[0] = [None]
        while True:
            if self.admitted:
                self._run_group(*self.admitted.pop(), admitted=True)
            elif self.ready:
                at = min(self.ready)
                self._run_group(at, self._merged(self.ready.pop(at)))
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
        if self.lanes.tensor_memory is not None and not self.stuck:
            self.lanes.tensor_memory.end()
        if self.lanes.shared.visits is not None and not self.stuck:
            self.lanes.shared.visits.report()

    def _run_group(self, at: int, sel: Ints | None, admitted: bool = False) -> None:
        """Run a group of lanes until it diverges, waits, rests, or another group must run first or join it."""
        patience, polled = PATIENCE, None
        while True:
            segment = self.segments[at]
            if segment.polls and segment.barrier is not None and not self._may_poll(at):
                self.resting.setdefault(at, []).append(sel)
                self.polled[at] = segment
                return
            # Where all lanes of the batch are here, none is missing.
            if segment.collective is not None and sel is not None and not admitted:
                self.stillness.disturbed = True
                self._admit(self.gathering.arrive(at, segment.collective, sel))
                return
            admitted = False
            if segment.wait is not None and at not in self.expired:
                passed = self._park(at, segment.wait, sel)
                if passed is not None and not passed.size:
                    return
                sel = sel if passed is None else passed
            self.expired.discard(at)
            self._execute(segment, sel)
            moved = self._end_segment(segment, at, sel)
            if moved is None:
                return
            if segment.polls:
                patience, polled = patience - PATIENCE // POLLS, segment
            if moved[0] <= at:
                patience -= 1
                self.loops[moved[0]] = Loop(at, self.steps)
            at, sel = moved
            if patience < 0:
                self.resting.setdefault(at, []).append(sel)
                self.polled[at] = polled or segment
                return
            if self.ready and at >= min(self.ready):
                self._push(at, sel)
                return

    def _may_poll(self, at: int) -> bool:
        """Count that lanes read what others may have written, and then meet at a barrier, where their patience ends: a lock
        that a whole block waits for. After POLLS times the lanes of other blocks go first."""
        self.polls[at] = self.polls.get(at, 0) + 1
        return self.polls[at] <= POLLS

    def _execute(self, segment: Segment, sel: Ints | None) -> None:
        for step in segment.steps:
            step(sel)
        if segment.warp_barrier is not None:
            self.gathering.meet([(segment.warp_barrier, sel)])
        self.stillness.disturbed |= segment.stores
        self.steps += len(segment.steps) + 1
        warps = self.lanes.warps if sel is None else int(np.count_nonzero(np.diff(self.lanes.base_warp[sel]))) + 1
        self.lanes.launch.warp_instructions += warps * segment.instructions
        self.tick()
        if self.timed:
            self.lanes.tick(self.steps)
        if self.steps > (limit := self.lanes.launch.options.max_steps):
            loop = self._endless_loop() or segment
            code = loop.end or loop.last
            text = f"still running after {limit:,} steps (max_steps): an endless loop, or a limit too low: {code.text}"
            self._report(code, sel, text, STEP_LIMIT)
            raise StoppedError

    def _endless_loop(self) -> Segment | None:
        """The last segment of the longest loop that still runs."""
        live = [(loop.last - first, loop.last) for first, loop in self.loops.items() if loop.step > self.steps // 2]
        return self.segments[max(live)[1]] if live else None

    def _admit(self, groups: list[Group]) -> None:
        """Let complete warps execute their collective instruction. Where lanes of a warp are at different barriers, all
        of these are synchronised here, and the lanes go on behind them; a single one is synchronised as it is executed."""
        barriers = [(ins, group) for at, group in groups if (ins := self.segments[at].warp_barrier) is not None]
        if len(barriers) > 1:
            self.gathering.meet(barriers)
        for at, group in groups:
            if self.segments[at].warp_barrier is not None and len(barriers) > 1:
                self._push(at + 1, group)
            else:
                self.admitted.append((at, group))

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
        """All other lanes had their turn: resting lanes go on, and waits for an mbarrier time out. Raises
        StoppedError if nothing can change for them."""
        self.ready, self.resting = self.resting, {}
        self.polls.clear()
        parked, self.parked = self.parked, {}
        for at, waiting in parked.items():
            self.ready.setdefault(at, []).extend(waiting)
        self.expired.update(parked)
        if not self.stillness.complete():
            return
        self._report_parked(parked)
        for at, groups in self.ready.items():
            if at in parked:
                continue
            sel = self._merged(groups)
            segment = self.polled[at]
            code = next((i for i in segment.code if loads_anew(i)), segment.end or segment.last)
            count = self.lanes.size if sel is None else sel.size
            others = int((self.barriers.waiting | self.cluster_barriers.waiting).sum())
            others += sum(group.size for _, group in self.gathering.waiting.values())
            text = f"{count} threads loop for ever: nothing that they read changes any more"
            text += f", and {others} wait at a barrier" if others else ""
            text += self.lanes.launch.text_of_blocks_not_run(int(self.lanes.blocks[-1]))
            self._report(code, sel, f"{text}: {code.text}")
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
        if at >= self.kernel_end:
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

    def _end_segment(self, segment: Segment, at: int, sel: Ints | None) -> Moved | None:
        """Where the lanes run on together; None if they diverge, wait or exit: then this has noted their new states."""
        end = segment.end
        if end is None:
            return self._continue(at + 1, sel)
        if segment.guard is not None:
            p = segment.guard if sel is None else segment.guard[sel]
            if end.guard and end.guard[1]:
                p = ~p
            if not p.any():
                return self._continue(at + 1, sel)
            if not p.all():
                active = self.lanes.every if sel is None else sel
                self._push(at + 1, active[~p])
                sel = active[p]
                moved = self._jump(segment, end, at, sel)
                if moved is not None:
                    self._push(*moved)
                return None
        return self._jump(segment, end, at, sel)

    def _continue(self, at: int, sel: Ints | None) -> Moved | None:
        if at >= self.kernel_end:
            self._exit(sel)
            return None
        return at, sel

    def _jump(self, segment: Segment, end: Instruction, at: int, sel: Ints | None) -> Moved | None:
        name = end.parts[0]
        if name == "bra":
            return self._continue(segment.targets[0], sel)
        self.stillness.disturbed = True
        active = self.lanes.every if sel is None else sel
        if name == "brx":
            assert segment.index is not None
            index = np.minimum(segment.index if sel is None else segment.index[sel], len(segment.targets) - 1)
            for i in np.unique(index):
                self._push(segment.targets[int(i)], active[index == i])
            return None
        if segment.ends_at_cluster_barrier:
            self._push_behind(self.cluster_barriers.pass_by(end, at, active))
            return None
        if segment.barrier is not None:
            if sel is None and segment.barrier.is_plain_sync():  # all lanes of all blocks are there: it opens at once
                self.lanes.clocks.sync_blocks(None)
                if self.lanes.mbarriers.log is not None:
                    self.lanes.mbarriers.log.apart("meet", self.lanes.every)
                return self._continue(at + 1, sel)
            self._push_behind(self.barriers.wait(segment.barrier, at, active))
            return None
        if name == "trap":
            text = f"the kernel traps (a failed assertion?): {end.text}"
            self.lanes.reports.report("trap", end, sel, np.ones(1, bool), None, text)
        self._exit(sel)
        return None

    def _push_behind(self, groups: list[Group]) -> None:
        """Make lanes ready that passed the barrier at the end of their segment."""
        for at, some in groups:
            self._push(at + 1, None if some.size == self.lanes.size else some)

    def _exit(self, sel: Ints | None) -> None:
        self.stillness.disturbed = True
        active = self.lanes.every if sel is None else sel
        if self.lanes.tensor_memory is not None:
            self.lanes.tensor_memory.leave(active)
        self.gathering.leave(active)
        self._push_behind(self.barriers.leave(active))
        self._push_behind(self.cluster_barriers.leave(active))


# ---- gathering -------------------------------------------------------------------------------------------------------
# Instructions that threads of a warp execute together (``.sync``): lanes that arrive early wait for the others.
#
# The instruction's mask names the threads that must arrive; without a mask, the whole warp must. Threads that have left
# the kernel are not waited for. Lanes may meet at different ``bar.warp.sync`` of the program, but only at the same
# instruction of any other kind.


_MASKED = ("shfl", "vote", "match", "redux", "elect", "bar")
Bits = NDArray[np.uint32]


class Gathering:
    """The lanes of a batch that wait for other lanes of their warp."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.bit = np.uint32(1) << lanes.lane.astype(np.uint32)  # of each lane in a mask of its warp
        self.warps = int(lanes.base_warp[-1]) + 1
        self.alive = self.masks_of(lanes.every)  # of each warp, the lanes that have not left the kernel
        self.waiting: dict[int, tuple[Instruction, Ints]] = {}  # segment → its instruction, and the lanes

    def clear(self) -> None:
        """Forget all lanes that wait or left, because new blocks start."""
        self.alive = self.masks_of(self.lanes.every)
        self.waiting.clear()

    def masks_of(self, lanes: Ints) -> Bits:
        """Convert lanes to one mask per warp."""
        return np.bincount(self.lanes.base_warp[lanes], self.bit[lanes], self.warps).astype(np.uint32)

    def leave(self, lanes: Ints) -> None:
        """Record that these lanes left the kernel, so that other lanes no longer wait for them."""
        self.alive &= ~self.masks_of(lanes)

    def arrive(self, at: int, ins: Instruction, lanes: Ints) -> list[Group]:
        """Let lanes arrive at an instruction; returns the lanes that may execute the instruction now, by segment. The
        others wait."""
        if at in self.waiting:
            lanes = np.union1d(lanes, self.waiting.pop(at)[1])
        if is_warpgroup_wide(ins):
            return self._arrive_by_warpgroups(at, ins, lanes)
        if self._are_whole_warps(lanes):
            return [(at, lanes)]
        self.waiting[at] = (ins, lanes)
        return self._release(
            [p for p, (i, _) in self.waiting.items() if p == at or (is_warp_barrier(ins) and is_warp_barrier(i))]
        )

    def _arrive_by_warpgroups(self, at: int, ins: Instruction, lanes: Ints) -> list[Group]:
        """``arrive`` for an instruction that four warps execute together."""
        group = self.lanes.of_block[lanes] * 8 + self.lanes.tid[lanes] // 128
        complete = np.bincount(group)[group] == 128
        if not complete.all():
            self.waiting[at] = (ins, lanes[~complete])
        return [(at, lanes[complete])] if complete.any() else []

    def give_up(self) -> list[Group]:
        """Release lanes when no more lanes can arrive: those whose condition holds, otherwise all lanes. Reports the
        lanes that did not arrive."""
        go = self._release([at for at, (ins, _) in self.waiting.items() if is_warp_barrier(ins)])
        for at in [at for at, (ins, _) in self.waiting.items() if not is_warp_barrier(ins)]:
            go += self._release([at])
        if go:
            return go
        released, self.waiting = self.waiting, {}
        for ins, lanes in released.values():
            absent = int(self._missing([(ins, lanes)])[0][0])
            count = absent.bit_count()
            text = f"waits for {count} other threads of its warp that never arrive (mask {absent:#010x}): {ins.text}"
            self.lanes.reports.report("divergent barrier", ins, lanes, np.ones(lanes.size, bool), None, text)
        return [(at, lanes) for at, (_, lanes) in released.items()]

    def _release(self, places: list[int]) -> list[Group]:
        """Of the lanes at these segments, which may meet one another, those whose companions have all arrived."""
        groups = [(at, *self.waiting.pop(at)) for at in places]
        go = []
        for (at, ins, lanes), absent in zip(groups, self._missing([group[1:] for group in groups]), strict=True):
            if (absent == 0).any():
                go.append((at, lanes[absent == 0]))
            if (absent != 0).any():
                self.waiting[at] = (ins, lanes[absent != 0])
        return go

    def _missing(self, groups: list[tuple[Instruction, Ints]]) -> list[Bits]:
        """For each lane the mask of the lanes of its warp that must still arrive; lanes with the same mask meet."""
        if not groups:
            return []
        lanes = np.concatenate([group for _, group in groups])
        masks = np.concatenate([self._masks(ins, group) for ins, group in groups])
        warps = self.lanes.base_warp[lanes]
        _, meeting = np.unique(warps << 32 | masks, return_inverse=True)
        present = np.bincount(meeting, self.bit[lanes]).astype(np.uint32)
        absent = masks.astype(np.uint32) & self.alive[warps] & ~present[meeting]
        return np.split(absent, np.cumsum([group.size for _, group in groups])[:-1])

    def meet(self, groups: Sequence[tuple[Instruction, Ints | None]]) -> None:
        """Let lanes continue that wait at barriers of their warp. Each lane is ordered with the lanes of its warp that
        have the same mask, even if those lanes are at another barrier instruction."""
        masks = np.full(self.lanes.size, WHOLE_WARP, np.int64)
        every = self.lanes.every
        for ins, some in groups:
            masks[every if some is None else some] = self._masks(ins, every if some is None else some)
        for ins, some in groups:
            meeting = companions(ins, self.lanes, masks, some)
        if len(groups) == 1:
            self.lanes.sync_warp(groups[0][1], meeting)
            return
        lanes = np.sort(np.concatenate([every if some is None else some for _, some in groups]))
        self.lanes.sync_warp(lanes, np.unique(self.lanes.base_warp[lanes] << 32 | masks[lanes], return_inverse=True)[1])

    def _masks(self, ins: Instruction, lanes: Ints) -> Ints:
        if ins.parts[0] not in _MASKED or not ins.operands:
            return np.full(lanes.size, WHOLE_WARP, np.int64)
        mask = self.lanes.source(ins.operands[-1], "u32", ins)
        return per_lane(mask, lanes).astype(np.int64)

    def _are_whole_warps(self, lanes: Ints) -> bool:
        """Whether lanes are full warps of 32 lanes each: the common case."""
        if self.lanes.threads % 32 or lanes.size % 32:
            return False
        rows = lanes.reshape(-1, 32)
        return bool((rows[:, 31] - rows[:, 0] == 31).all() and (rows[:, 0] % 32 == 0).all())


# ---- segments --------------------------------------------------------------------------------------------------------
# A program bound to the lanes that run it: segments that run without a break, each a list of steps to call.


@dataclass
class Segment:
    """Instructions that run one after another, bound to the lanes. Only the last instruction of a segment may be a
    control instruction."""

    last: Instruction
    end: Instruction | None  # the control instruction
    collective: Instruction | None  # the first instruction, if a warp executes it together (``.sync``)
    warp_barrier: Instruction | None  # the same, if it is bar.warp.sync: the only instruction
    wait: Wait | None  # the first instruction, if it waits for an mbarrier
    polls: bool  # whether it reads what other threads may have just written
    stores: bool
    instructions: int
    steps: list[Step] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)  # the instruction of each step
    # Of the control instruction:
    guard: Array | None = None
    targets: list[int] = field(default_factory=list)  # segments to which it jumps
    index: Array | None = None  # of brx: the number of the target of each lane
    barrier: BarrierForm | None = None
    ends_at_cluster_barrier: bool = False


def bind_segments(program: Program, lanes: Lanes) -> list[Segment]:
    """Make the segments of a program in order. The index after the last segment means the end of the kernel.

    Raises UsageError for an instruction that is unknown or invalid.
    """
    pieces = [piece for block in program.blocks for piece in _pieces(program, block)]
    segment_at = {first: i for i, (first, _) in enumerate(pieces)} | {len(program.code): len(pieces)}
    has_fences = any(fences(ins) for ins in program.code)
    return [_bind(program, lanes, program.code[first : last + 1], segment_at, has_fences) for first, last in pieces]


def _pieces(program: Program, block: BasicBlock) -> list[tuple[int, int]]:
    """The parts of a basic block, cut before a wait for an mbarrier, before an instruction that a warp executes together,
    and also after a warp barrier."""
    starts = {block.first}
    for i in range(block.first, block.last + 1):
        if is_mbarrier_wait(program.code[i]) or is_collective(program.code[i]):
            starts.add(i)
        if is_warp_barrier(program.code[i]):
            starts.add(i + 1)
    edges = [*sorted(starts - {block.last + 1}), block.last + 1]
    return [(first, stop - 1) for first, stop in pairwise(edges)]


def _bind(
    program: Program, lanes: Lanes, code: list[Instruction], segment_at: dict[int, int], has_fences: bool
) -> Segment:
    end = code[-1] if code[-1].parts[0] in CONTROL and not is_warp_barrier(code[-1]) else None
    straight = [i for i in (code if end is None else code[:-1]) if not is_warp_barrier(i)]
    collective = code[0] if is_collective(code[0]) else None
    segment = Segment(
        last=code[-1],
        end=end,
        collective=collective,
        warp_barrier=collective if collective is not None and is_warp_barrier(collective) else None,
        wait=Wait(code[0], lanes) if is_mbarrier_wait(code[0]) else None,
        polls=any(loads_anew(i) for i in code),
        stores=any(stores(i) for i in code),
        instructions=len(code),
    )
    for ins in straight:
        for step in _steps(ins, lanes, has_fences):
            segment.steps.append(step)
            segment.code.append(ins)
    if end is not None:
        _bind_control(segment, end, program, lanes, segment_at)
    return segment


def _steps(ins: Instruction, lanes: Lanes, has_fences: bool) -> list[Step]:
    """The step of an instruction and, in a program with fences, the steps that record what it publishes or learns."""
    step, parts, clocks = bind(ins, lanes), set(ins.parts), lanes.clocks
    # Operations on an mbarrier or tensor memory, and fences of proxies, publish and learn by themselves.
    if not has_fences or ins.parts[0] in ("mbarrier", "tcgen05") or {"proxy", "mbarrier_init"} & parts:
        return [step]
    wide, near = bool({"gl", "gpu", "sys"} & parts), "cluster" in parts
    fence: list[Step] = [partial(clocks.fence, wide=wide, near=near)] if fences(ins) else []
    if ins.parts[0] in ("fence", "membar"):
        return fence
    signal: list[Step] = [clocks.signal] if (stores(ins) or ins.parts[0] == "atom") and "local" not in parts else []
    look: list[Step] = [clocks.look] if loads_anew(ins) else []
    return [*fence, step, *signal, *look]


def _bind_control(
    segment: Segment, end: Instruction, program: Program, lanes: Lanes, segment_at: dict[int, int]
) -> None:
    name = end.parts[0]
    if end.guard:
        segment.guard = lanes.source(end.guard[0], "pred", end)
    segment.ends_at_cluster_barrier = is_cluster_barrier(end)
    if segment.ends_at_cluster_barrier:
        return
    if name in ("bar", "barrier"):
        segment.barrier = BarrierForm.of(end, lanes)
        return
    labels = [end.operands[0]] if name == "bra" else program.tables.get(end.operands[1]) if name == "brx" else []
    if labels is None:
        raise UsageError(f"{end.place()}: no table of branch targets {end.operands[1]}")
    for label in labels:
        if label not in program.labels:
            raise UsageError(f"{end.place()}: no label {label}")
        segment.targets.append(segment_at[program.labels[label]])
    if name == "brx":
        segment.index = lanes.source(end.operands[0], "u32", end)


# ---- stillness -------------------------------------------------------------------------------------------------------
# Detects a loop that can never end: its threads return with the same registers, and memory has not changed.
#
# A thread's next step depends on its registers and on what it loads. If every thread that can run has completed a round of
# its loop and neither changed, the loop repeats for ever.


class Stillness:
    """Compares the registers of all lanes between laps, to find out whether a kernel can still end. In one lap, every
    lane that can run runs once."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.clear()

    def clear(self) -> None:
        """Forget all laps, because new blocks start."""
        self.laps, self.next = 0, 1  # laps done; the lap at which registers are copied next
        self.disturbed = False  # whether memory was written since the copy, or lanes met, left or took a branch table
        self.seen: dict[str, Array] = {}  # the copy

    def complete(self) -> bool:
        """End a lap; returns whether nothing changed in it. To save time, only some laps are compared, and the distance
        from one such lap to the next doubles."""
        self.laps += 1
        if self.seen:
            still = not self.disturbed and all((self.seen[n] == r).all() for n, r in self.lanes.registers.items())
            self.seen.clear()
            return still
        if self.laps >= self.next:
            self.next = self.laps * 2
            self.disturbed = False
            self.seen = {name: register.copy() for name, register in self.lanes.registers.items()}
        return False
