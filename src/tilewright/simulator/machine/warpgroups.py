"""Tracks incomplete products of warpgroups: the registers and the shared memory that a ``wgmma`` still uses (PTX ISA
9.7.16.7).

The simulator executes a ``wgmma`` when it is issued. Until a warp has waited for the group of the ``wgmma``, the
accumulators, the registers of A and the tiles in shared memory count as in use. The simulator watches registers that
are operands of a ``wgmma``, and registers to which these are copied. A plain ``mov`` of an accumulator is allowed
before the wait: the copy then counts as in use, too, because compilers place such copies between products and remove
them later. Every other access to a register in use is a finding. A ``wgmma`` is also a finding if its registers were
written before, and no ``wgmma.fence`` was executed after that write.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..assembly.dataflow import operand_names
from ..assembly.instructions import Instruction, is_warpgroup_wide
from ..assembly.program import is_special
from ..findings import ACCUMULATOR, MISSING_FENCE
from .clocks import Clocks
from .event_log import EventLog
from .reports import Reports, in_library_if_both
from .threads import Threads
from .transfers import Transfer
from .values import Ints

#: Commits that are remembered for each warp: ``wgmma.wait_group`` leaves at most seven groups under way.
_MARKS = 8
#: What products read: the first lane of each warpgroup, and the transfer (None if races are not checked there).
Reading = list[tuple[int, Transfer | None]]


class Warpgroups:
    """The products of a batch of blocks that are not complete yet. ``code`` is the program's code."""

    def __init__(self, threads: Threads, clocks: Clocks, reports: Reports, code: list[Instruction]) -> None:
        self.threads, self.clocks, self.reports, self.code = threads, clocks, reports, code
        self.log: EventLog | None = None
        self.rows = {name: i for i, name in enumerate(_watched(code))}
        warps = int(threads.base_warp[-1]) + 1
        # By register and warp: the number of the product that uses it, negative as a part of A; 0 for none.
        self.used = np.zeros((len(self.rows), warps), np.int32)
        # By register and warp: the instruction that wrote it after the last wgmma.fence, plus 1; 0 for none.
        self.written = np.zeros((len(self.rows), warps), np.int32)
        self.fenced, self.last, self.commits = (
            np.zeros(warps, bool),
            np.zeros(warps, np.int64),
            np.zeros(warps, np.int64),
        )
        self.marks = np.zeros((warps, _MARKS), np.int64)  # the last product of each of the latest groups
        self.clear()

    def clear(self) -> None:
        """Forget all products, because new blocks start."""
        for array in (self.used, self.written, self.fenced, self.last, self.commits, self.marks):
            array.fill(0)
        self.products: list[Instruction] = []
        #: For each product: its number, the first warp of its group, and the transfer that it reads.
        self.reading: list[tuple[int, int, Transfer]] = []
        #: By first warp of a group: the knowledge of the lanes that last completed a product.
        self.known: dict[int, Ints] = {}

    def watch(self, ins: Instruction) -> Callable[[Ints | None], None] | None:
        """Make a step that is run before an instruction that uses a watched register. Return None for other
        instructions."""
        name = ins.parts[0]
        if not self.rows or name == "wgmma":
            return None
        stores = name in ("st", "red") or not ins.operands or ins.operands[0].startswith("[")
        written = [] if stores else self._rows_of(ins.operands[:1])
        read = self._rows_of(ins.operands if stores else ins.operands[1:])
        if not written and not read:
            return None
        copies = name == "mov" and len(written) == len(read) == 1

        def step(sel: Ints | None) -> None:
            warps = self._warps(sel)
            if len(self.products):
                self._check(ins, sel, warps, [] if copies else read, written, read if copies else [])
            if copies:
                for state in (self.used, self.written):
                    state[written[0], warps] = state[read[0], warps]
            else:
                for row in written:
                    self.written[row, warps] = ins.index + 1

        return step

    # ---- wgmma

    def fence(self, sel: Ints | None) -> None:
        """Execute ``wgmma.fence`` by these lanes."""
        warps = self._warps(sel)
        self.written[:, warps] = 0
        self.fenced[warps] = True

    def issue(self, ins: Instruction, groups: Ints, sums: list[str], parts: list[str], reading: Reading) -> None:
        """Record that warpgroups (g, 128) start a product. ``sums`` are the registers of D whose values are read,
        ``parts`` are the registers of A, and ``reading`` has the transfers by which each group reads shared memory."""
        warps = self.threads.base_warp[groups[:, ::32]].reshape(-1)
        d, a = self._rows_of(sums), self._rows_of(parts)
        self._check_fence(ins, groups, warps, [*d, *a])
        self._check(ins, groups.reshape(-1), warps, a, [], [])
        self.products.append(ins)
        if self.log is not None:
            self.log.apart("product", groups.reshape(-1), ins)
        number = len(self.products)
        self.used[_grid(a, warps)] = -number
        self.used[_grid(self._rows_of(ins.operands[:1]), warps)] = number
        self.last[warps] = number
        self.reading += [(number, int(self.threads.base_warp[lane]), t) for lane, t in reading if t is not None]

    def commit(self, sel: Ints | None) -> None:
        """Execute ``wgmma.commit_group`` by these lanes."""
        warps = self._warps(sel)
        self.commits[warps] += 1
        self.marks[warps, self.commits[warps] % _MARKS] = self.last[warps]

    def wait(self, keep: int, sel: Ints | None) -> None:
        """Execute ``wgmma.wait_group`` by these lanes: all groups except the latest ``keep`` are complete.

        If one warp has waited for a product, the product is complete for all four warps, because they executed it
        together.
        """
        warps = self._warps(sel)
        group = self.commits[warps] - keep
        done = np.where(group > 0, self.marks[warps, group % _MARKS], 0)
        if not done.any():
            return
        used = self.used[:, warps]
        used[np.abs(used) <= done] = 0
        self.used[:, warps] = used
        upto = np.zeros(len(self.last), np.int64)
        upto[warps] = done
        lanes = self.threads.every if sel is None else sel
        group = self._group(lanes)
        for first in np.unique(group).tolist():
            self._finish(first, int(upto[first : first + 4].max()), lanes[group == first])

    def _finish(self, first: int, last: int, lanes: Ints) -> None:
        """These lanes of the warpgroup whose first warp is ``first`` have waited for its products up to ``last``."""
        stamp = int(self.clocks.stamp[lanes[0]])
        complete = [t for number, own, t in self.reading if own == first and number <= last]
        for transfer in complete:
            transfer.finish(stamp)
        known = [self.known[first]] if first in self.known else []
        if complete or known:
            self.clocks.meet(lanes, known)
        if complete:
            self.known[first] = self.clocks.knowledge(lanes)
            self.reading = [one for one in self.reading if one[2] not in complete]

    def _group(self, lanes: Ints) -> Ints:
        """The first warp of each lane's warpgroup."""
        return np.asarray(self.threads.base_warp[lanes] - self.threads.tid[lanes] // 32 % 4)

    # ---- findings

    def _check(
        self, ins: Instruction, sel: Ints | None, warps: Ints, read: list[int], written: list[int], passed: list[int]
    ) -> None:
        """Report registers that a product under way still uses: read accumulators, and written ones, unless by a copy of
        an accumulator (``passed``)."""
        wrong = np.zeros(len(warps), bool)
        found = (0, "")
        for row in read:
            wrong |= self.used[row, warps] > 0
            found = (row, "reads") if wrong.any() and not found[1] else found
        for row in written:
            bad = self.used[row, warps] != 0
            for source in passed:
                bad &= self.used[source, warps] == 0
            wrong |= bad
            found = (row, "writes") if bad.any() and not found[1] else found
        if not found[1]:
            return
        row, does = found
        product = self.products[abs(int(self.used[row, warps[np.argmax(self.used[row, warps] != 0)]])) - 1]
        what = "an accumulator" if (self.used[row, warps] > 0).any() else "a part of A"
        name = list(self.rows)[row]
        text = f"{does} {name}, {what} of the wgmma at {product.place(ins)}, which has not completed"
        remedy = "wgmma.commit_group and a wgmma.wait_group that includes it must come between"
        lanes = self.threads.every if sel is None else sel
        bad_lanes = np.isin(self.threads.base_warp[lanes], warps[wrong])
        self.reports.report(ACCUMULATOR, ins, sel, bad_lanes, None, f"{text} ({remedy}): {ins.text}")

    def _check_fence(self, ins: Instruction, groups: Ints, warps: Ints, rows: list[int]) -> None:
        """Report registers of a product that were written with no wgmma.fence after it, or that there was none at all."""
        written = self.written[_grid(rows, warps)]
        wrong = ~self.fenced[warps] | written.any(axis=0)
        if not wrong.any():
            return
        text, writer = "no wgmma.fence comes before the first wgmma", ins
        if written.any():
            row, column = (int(i[0]) for i in np.nonzero(written))
            writer = self.code[int(written[row, column]) - 1]
            text = f"uses {list(self.rows)[rows[row]]}, which {writer.place(ins)} wrote with no wgmma.fence after it"
        lanes = groups.reshape(-1)
        bad = np.isin(self.threads.base_warp[lanes], warps[wrong])
        self.reports.report(
            MISSING_FENCE, ins, lanes, bad, None, f"{text}: {ins.text}", in_library_if_both(ins, writer)
        )

    def _rows_of(self, operands: list[str] | tuple[str, ...]) -> list[int]:
        return [self.rows[name] for operand in operands for name in operand_names(operand) if name in self.rows]

    def _warps(self, sel: Ints | None) -> Ints:
        """The warps of these lanes."""
        if sel is None:
            return np.arange(len(self.last))
        warps = self.threads.base_warp[sel]
        return warps[np.diff(warps, prepend=-1) != 0]


def _grid(rows: list[int], warps: Ints) -> tuple[Ints, Ints]:
    """The index of some rows at some columns."""
    return np.array(rows, np.int64)[:, None], warps[None, :]


def _watched(code: list[Instruction]) -> dict[str, None]:
    """Registers that are operands of products, and those that plain copies connect with them, in order."""
    found: dict[str, None] = {}
    for ins in code:
        if is_warpgroup_wide(ins):
            found |= dict.fromkeys(operand_names(ins.operands[0]))
            if ins.operands[1].startswith("{"):
                found |= dict.fromkeys(operand_names(ins.operands[1]))
    copies = [(i.operands[0], i.operands[1]) for i in code if i.parts[0] == "mov" and not i.operands[0].startswith("{")]
    size = 0
    while found and size < len(found):
        size = len(found)
        found |= dict.fromkeys(a for a, b in copies if b in found)
        found |= dict.fromkeys(b for a, b in copies if a in found and b.startswith("%") and not is_special(b))
    return found
