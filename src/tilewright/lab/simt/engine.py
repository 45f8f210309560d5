"""Runs a batch of blocks: which lanes run what next, where they meet again, and who waits at a barrier.

Lanes that stand at the same basic block run together. The lowest block in program order goes first, so lanes that
took different ways meet where the ways join, as compilers lay code out. A block is a list of steps bound once; the
loop over them is all the Python there is per instruction. Lanes that poll memory in a loop let others run in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...errors import UsageError
from .barriers import barrier_form, report_divergence
from .ops import bind
from .ops._table import Step
from .program import CONTROL, Program
from .ptx import Instruction
from .shadow import Ints
from .state import Array, Lanes

#: Lanes that poll yield to those that wait behind them after this many rounds.
PATIENCE = 64


class StepLimitError(Exception):
    """More steps than allowed."""


@dataclass
class Run:
    """A basic block, bound to the lanes: straight steps, then at most one control instruction."""

    steps: list[Step]
    end: Instruction | None
    polls: bool
    guard: Array | None = None
    targets: list[int] = field(default_factory=list)
    index: Array | None = None


class Engine:
    """Binds a program to the lanes of a batch and runs it for one set of blocks after the other."""

    def __init__(self, program: Program, lanes: Lanes) -> None:
        self.program, self.lanes = program, lanes
        self.runs = [self._bind(b.first, b.last) for b in program.blocks]
        self.done = len(self.runs)
        self.ready: dict[int, list[Ints | None]] = {}
        self.waiting = np.zeros(lanes.size, bool)
        self.exited = np.zeros(lanes.size, bool)
        self.bar = np.zeros(lanes.size, np.int64)  # which barrier a waiting lane waits at
        self.need = np.zeros(lanes.size, np.int64)  # for how many threads; 0 for the whole block
        self.at = np.zeros(lanes.size, np.int64)  # which block of the program it waits in
        self.arrived: dict[tuple[int, int], int] = {}  # bar.arrive: (block, barrier) → threads
        self.steps = 0

    def _bind(self, first: int, last: int) -> Run:
        code, lanes = self.program.code[first : last + 1], self.lanes
        end = code[-1] if code[-1].parts[0] in CONTROL else None
        if end is not None and end.opcode.startswith(("bar.warp.sync", "barrier.warp")):
            end = None
        straight = code[:-1] if end is not None else code
        polls = any(i.parts[0] == "atom" or {"volatile", "acquire", "relaxed"} & set(i.parts) for i in code)
        steps = [self._warp_sync if i.opcode.startswith("bar.warp") else bind(i, lanes) for i in straight]
        run = Run(steps, end, polls)
        if end is None:
            return run
        if end.guard:
            run.guard = lanes.source(end.guard[0], "pred", end)
        name = end.parts[0]
        if name == "bra":
            run.targets = [self._target(end, end.operands[0])]
        elif name == "brx":
            run.targets = [self._target(end, t) for t in self.program.tables.get(end.operands[1], [])]
            run.index = lanes.source(end.operands[0], "u32", end)
        elif name in ("bar", "barrier"):
            barrier_form(end)
        return run

    def _warp_sync(self, sel: Ints | None) -> None:
        self.lanes.sync_warp(sel)

    def _target(self, ins: Instruction, label: str) -> int:
        at = self.program.labels.get(label)
        if at is None:
            raise UsageError(f"{ins.place()}: no label {label}")
        return self.program.block_at[at]

    # ---- the loop

    def run(self, limit: int) -> None:
        """Run until every lane has left the kernel. Raises StepLimitError beyond ``limit`` steps in all."""
        self.waiting.fill(False)
        self.exited.fill(False)
        self.arrived.clear()
        self.ready = {0: [None]}
        while True:
            while self.ready:
                self._go(limit)
            if not self.waiting.any():
                return
            self._stuck()

    def _go(self, limit: int) -> None:
        at = min(self.ready)
        sel = self._together(self.ready.pop(at))
        rounds = 0
        while True:
            run = self.runs[at]
            for step in run.steps:
                step(sel)
            self.steps += len(run.steps) + 1
            if self.steps > limit:
                self._over(run, sel, limit)
            moved = self._leave(run, at, sel)
            if moved is None:
                return
            at, sel = moved
            rounds += run.polls
            if self.ready:
                if at >= min(self.ready):
                    self._push(at, sel)
                    return
                if rounds > PATIENCE:
                    self._push(at, sel)
                    self._let_others()
                    return

    def _let_others(self) -> None:
        """Give those that stand further on, whom a polling loop may be waiting for, a turn."""
        last = max(self.ready)
        sel = self._together(self.ready.pop(last))
        at = last
        for _ in range(PATIENCE):
            for step in self.runs[at].steps:
                step(sel)
            self.steps += len(self.runs[at].steps) + 1
            moved = self._leave(self.runs[at], at, sel)
            if moved is None:
                return
            at, sel = moved
        self._push(at, sel)

    def _push(self, at: int, sel: Ints | None) -> None:
        if at >= self.done:
            self._exit(sel)
        else:
            self.ready.setdefault(at, []).append(sel)

    def _together(self, groups: list[Ints | None]) -> Ints | None:
        """Groups that meet, as one, in order of lane; None is all lanes."""
        if len(groups) == 1:
            return groups[0]
        mask = np.zeros(self.lanes.size, bool)
        for group in groups:
            mask[slice(None) if group is None else group] = True
        return None if mask.all() else np.flatnonzero(mask)

    def _leave(self, run: Run, at: int, sel: Ints | None) -> tuple[int, Ints | None] | None:
        """The end of a block: where the lanes go on together, or None when they part or stop."""
        end = run.end
        if end is None:
            return self._on(at + 1, sel)
        if run.guard is not None:
            p = run.guard if sel is None else run.guard[sel]
            if end.guard and end.guard[1]:
                p = ~p
            if not p.any():
                return self._on(at + 1, sel)
            if not p.all():
                who = self.lanes.every if sel is None else sel
                self._push(at + 1, who[~p])
                sel = who[p]
                moved = self._jump(run, end, at, sel)
                if moved is not None:
                    self._push(*moved)
                return None
        return self._jump(run, end, at, sel)

    def _on(self, at: int, sel: Ints | None) -> tuple[int, Ints | None] | None:
        if at >= self.done:
            self._exit(sel)
            return None
        return at, sel

    def _jump(self, run: Run, end: Instruction, at: int, sel: Ints | None) -> tuple[int, Ints | None] | None:
        name = end.parts[0]
        if name == "bra":
            return self._on(run.targets[0], sel)
        if name == "brx":
            who = self.lanes.every if sel is None else sel
            assert run.index is not None
            index = np.minimum(run.index if sel is None else run.index[sel], len(run.targets) - 1)
            for i in np.unique(index):
                self._push(run.targets[int(i)], who[index == i])
            return None
        if name in ("bar", "barrier"):
            return self._arrive(end, at, sel)
        if name == "trap":
            self.lanes.report("trap", end, sel, np.ones(1, bool), None, "the kernel traps (a failed assertion)")
        self._exit(sel)
        return None

    def _exit(self, sel: Ints | None) -> None:
        who = self.lanes.every if sel is None else sel
        self.exited[who] = True
        if self.waiting.any():
            self._release(np.unique(self.lanes.of_block[who]))

    # ---- barriers

    def _arrive(self, ins: Instruction, at: int, sel: Ints | None) -> tuple[int, Ints | None] | None:
        barrier, need, kind = barrier_form(ins)
        lanes = self.lanes
        if sel is None and not need and kind == "sync":
            lanes.pass_barrier(None)
            return self._on(at + 1, sel)
        who = lanes.every if sel is None else sel
        if kind == "arrive":
            for block, count in zip(*np.unique(lanes.of_block[who], return_counts=True), strict=True):
                key = (int(block), barrier)
                self.arrived[key] = self.arrived.get(key, 0) + int(count)
            self._push(at + 1, sel)
        else:
            self.waiting[who] = True
            self.bar[who], self.need[who], self.at[who] = barrier, need, at
        self._release(np.unique(lanes.of_block[who]))
        return None

    def _release(self, blocks: Ints) -> None:
        """Let go whoever waits at a barrier of these blocks that is complete."""
        lanes, threads = self.lanes, self.lanes.threads
        for block in blocks:
            mine = slice(int(block) * threads, (int(block) + 1) * threads)
            here = np.flatnonzero(self.waiting[mine]) + mine.start
            if not here.size:
                continue
            for barrier in np.unique(self.bar[here]):
                group = here[self.bar[here] == barrier]
                need = int(self.need[group].max())
                key = (int(block), int(barrier))
                present = group.size + self.arrived.get(key, 0)
                if present < (need or threads - int(self.exited[mine].sum())):
                    continue
                self.arrived.pop(key, None)
                end = self.runs[int(self.at[group[0]])].end
                assert end is not None
                report_divergence(self.lanes, end, group, self.at[group], 0 if need else int(self.exited[mine].sum()))
                self._open(group, lanes.every[mine])

    def _open(self, group: Ints, block: Ints) -> None:
        self.waiting[group] = False
        self.lanes.pass_barrier(block)
        for at in np.unique(self.at[group]):
            some = group[self.at[group] == at]
            end = self.runs[int(at)].end
            assert end is not None
            if "red" in end.parts:
                self._reduce(end, some)
            self._push(int(at) + 1, None if some.size == self.lanes.size else some)

    def _reduce(self, ins: Instruction, lanes: Ints) -> None:
        """``bar.red``: the predicate of all threads of the block, counted or combined."""
        how = next((h for h in ("popc", "and", "or") if h in ins.parts), "")
        source = ins.operands[-1]
        p = self.lanes.source(source.lstrip("!"), "pred", ins)
        values = (p[lanes] if p.ndim else np.broadcast_to(p, lanes.shape)) ^ source.startswith("!")
        result = {"popc": int(values.sum()), "and": bool(values.all()), "or": bool(values.any())}[how]
        kind = "u32" if how == "popc" else "pred"
        self.lanes.source(ins.operands[0], kind, ins)[lanes] = result

    # ---- the end of patience

    def _stuck(self) -> None:
        """Nobody can run and some wait: report and let go those that wait, as if they had left."""
        lanes = self.lanes
        who = np.flatnonzero(self.waiting)
        for at in np.unique(self.at[who]):
            some = who[self.at[who] == at]
            end = self.runs[int(at)].end
            assert end is not None
            text = f"{some.size} threads wait for ever at {end.text}: the others wait elsewhere or have left"
            lanes.report("endless wait", end, some, np.ones(1, bool), None, text)
        self.exited[who] = True
        self.waiting[who] = False

    def _over(self, run: Run, sel: Ints | None, limit: int) -> None:
        code = run.end or self.program.code[0]
        text = f"still running after {limit} steps: an endless loop, or one that waits for a block that is not running"
        self.lanes.report("endless wait", code, sel, np.ones(1, bool), None, text)
        raise StepLimitError
