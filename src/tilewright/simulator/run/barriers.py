"""Block barriers: which lanes wait at which, when one opens, and what is wrong where lanes meet (PTX ISA 9.7.13.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.values import Array, Ints
from ..ops import UnknownInstruction


@dataclass
class Form:
    """A barrier instruction on the lanes: its number and thread count (0: all), and what it does."""

    ins: Instruction
    kind: str  # "sync", "arrive" or "red"
    number: Array
    count: Array

    @classmethod
    def of(cls, ins: Instruction, lanes: Lanes) -> Form:
        """The form of a barrier instruction. Raises UnknownInstruction for one that is not known."""
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
            raise UnknownInstruction(ins, "arrives without saying how many threads are to come")
        number, count = (lanes.source(o, "u32", ins) for o in [*operands, "0"][:2])
        return cls(ins, kind, number, count)


class Barriers:
    """The barriers of all blocks of a batch."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.waiting = np.zeros(lanes.size, bool)
        self.exited = np.zeros(lanes.size, bool)
        self.number = np.zeros(lanes.size, np.int64)  # which barrier a waiting lane waits at
        self.need = np.zeros(lanes.size, np.int64)  # for how many threads; 0 for the whole block
        self.at = np.zeros(lanes.size, np.int64)  # which run of the program it waits in
        self.arrived: dict[tuple[int, int], list[tuple[int, Ints]]] = {}  # (block, barrier) → threads, what they know
        self.forms: dict[int, Form] = {}

    def clear(self) -> None:
        """Forget all lanes that wait, arrived or left: the blocks start."""
        self.waiting.fill(False)
        self.exited.fill(False)
        self.arrived.clear()

    def wait(self, form: Form, at: int, who: Ints) -> list[tuple[int, Ints]]:
        """These lanes come to a barrier; returns the lanes that go on, by the run they waited in."""
        self.forms[at] = form
        numbers, counts = (np.broadcast_to(x if x.ndim == 0 else x[who], who.shape) for x in (form.number, form.count))
        if form.kind != "arrive":
            self.waiting[who] = True
            self.number[who], self.need[who], self.at[who] = numbers, counts, at
            return self.open_complete(who)
        clocks = self.lanes.clocks
        keys = self.lanes.of_block[who] * 1024 + numbers
        for key in np.unique(keys):
            some = who[keys == key]
            place = (int(key) // 1024, int(key) % 1024)
            self.arrived.setdefault(place, []).append((self._warps(some), clocks.knowledge(some)))
        clocks.advance(who)
        return [*self.open_complete(who), (at, who)]

    def leave(self, who: Ints) -> list[tuple[int, Ints]]:
        """These lanes left the kernel; returns the lanes that can go on because of that."""
        self.exited[who] = True
        return self.open_complete(who) if self.waiting.any() else []

    def open_complete(self, who: Ints) -> list[tuple[int, Ints]]:
        """Open every complete barrier of the blocks of these lanes."""
        threads, gone = self.lanes.threads, []
        for block in np.unique(self.lanes.of_block[who]):
            mine = slice(int(block) * threads, (int(block) + 1) * threads)
            here = np.flatnonzero(self.waiting[mine]) + mine.start
            for number in np.unique(self.number[here]):
                group = here[self.number[here] == number]
                arrived = self.arrived.get((int(block), int(number)), [])
                need, exited = int(self.need[group].max()), int(self.exited[mine].sum())
                come = self._warps(group) if need else group.size
                if come + sum(n for n, _ in arrived) < (need or threads - exited):
                    continue
                self.arrived.pop((int(block), int(number)), None)
                self._report_divergence(group, self.exited[mine], 0 if need else exited)
                gone += self._open(group, int(block), need, [known for _, known in arrived])
        return gone

    def _warps(self, group: Ints) -> int:
        """Threads that these of a block count as: a warp's last threads, fewer than 32, count as 32 (PTX ISA 9.7.13.1)."""
        last = self.lanes.threads // 32 * 32  # the first thread of the warp that is not full
        return int(group.size) + (-self.lanes.threads % 32 if self._ends(group, last) else 0)

    def _ends(self, group: Ints, last: int) -> bool:
        """Whether all threads of the last warp are in a group."""
        return int((self.lanes.tid[group] >= last).sum()) == self.lanes.threads - last > 0

    def _open(self, group: Ints, block: int, need: int, arrived: list[Ints]) -> list[tuple[int, Ints]]:
        self.waiting[group] = False
        if not need or group.size == self.lanes.threads:
            self.lanes.clocks.sync_blocks(np.array([block]))
        else:
            self.lanes.clocks.meet(group, arrived)
        gone = []
        for at in np.unique(self.at[group]):
            some = group[self.at[group] == at]
            form = self.forms[int(at)]
            if form.kind == "red":
                self._reduce(form.ins, group, some)
            gone.append((int(at), some))
        return gone

    def _reduce(self, ins: Instruction, group: Ints, lanes: Ints) -> None:
        """``bar.red``: the predicate of all threads of the block, counted or combined."""
        how = next((h for h in ("popc", "and", "or") if h in ins.parts), "")
        source = ins.operands[-1]
        p = self.lanes.source(source.lstrip("!"), "pred", ins)
        values = (p[group] if p.ndim else np.broadcast_to(p, group.shape)) ^ source.startswith("!")
        result = {"popc": int(values.sum()), "and": bool(values.all()), "or": bool(values.any())}[how]
        kind = "u32" if how == "popc" else "pred"
        self.lanes.source(ins.operands[0], kind, ins)[lanes] = result

    def _report_divergence(self, group: Ints, exited: Ints, gone: int) -> None:
        """Report a barrier that ``gone`` threads never reach, or that one warp reaches at several places.

        Hardware since Volta lets threads that have left be missing; the language does not. Warps may wait at different
        barrier instructions, the threads of one warp may not.
        """
        lanes, places = self.lanes, self.at[group]
        ins = self.forms[int(places[0])].ins
        if gone:
            block = int(lanes.of_block[group[0]])
            _, first = lanes.place(block * lanes.threads + int(np.argmax(exited)))
            text = (
                f"{gone} of {lanes.threads} threads of the block left the kernel without reaching it, the first {first}"
            )
            lanes.reports.report("divergent barrier", ins, group, np.ones(1, bool), None, f"{text}: {ins.text}")
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
        """No lane can run and some wait: report these and let them leave."""
        who = np.flatnonzero(self.waiting)
        for at in np.unique(self.at[who]):
            some = who[self.at[who] == at]
            ins, need = self.forms[int(at)].ins, int(self.need[some[0]])
            block = int(self.lanes.of_block[some[0]])
            here = some[self.lanes.of_block[some] == block].size
            missing = f"{here} threads of the block wait for ever where {need or self.lanes.threads} must meet"
            text = f"{missing}, for the others wait elsewhere or have left: {ins.text}"
            self.lanes.reports.report("endless wait", ins, some, np.ones(1, bool), None, text)
        self.exited[who] = True
        self.waiting[who] = False
