"""Tracks the registers that warps release and request by ``setmaxnreg``: how many each warp holds, and how many the
block has in all (PTX ISA 9.7.19.5).

A block gets its registers at the launch, the same number for every thread. A warp that requests more registers waits
until other warps have released enough. Whether enough registers can ever be free does not depend on the order of
execution, so this is checked when the block has ended.
"""

from __future__ import annotations

import math

import numpy as np

from ..assembly.instructions import Function, Instruction
from ..findings import REGISTERS
from .reports import Reports
from .values import Ints

#: The registers of a multiprocessor, and the most registers of a thread; both are the same since compute capability 3.5.
OF_SM, OF_THREAD = 65536, 256
#: The warps of a warp group, and the unit in which a thread's registers are allocated.
GROUP, UNIT = 4, 8


def at_launch(entry: Function, threads: int, compiled: int) -> int:
    """Return the number of registers of a thread when a kernel begins: the number as compiled; if that is not known
    (0), the most that the kernel's directives allow."""
    if compiled:
        return -(-compiled // UNIT) * UNIT
    if "maxnreg" in entry.limits:
        return entry.limits["maxnreg"][0]
    blocks, warps = entry.limits.get("minnctapersm", (1,))[0], -(-threads // 32)
    return min(OF_THREAD, OF_SM // (blocks * math.ceil(warps / GROUP) * GROUP * 32) // UNIT * UNIT)


class RegisterPool:
    """The registers that the warps of a batch of blocks hold; at the launch a thread has ``first`` registers."""

    def __init__(self, reports: Reports, first: int) -> None:
        self.reports, self.first = reports, first
        clocks = reports.clocks
        self.warps, self.copies = clocks.warps, clocks.copies
        self.held = np.full(self.copies * self.warps, first, np.int64)
        self.times: dict[int, Ints] = {}  # instruction → how often each warp has executed it
        self.raised: dict[int, Ints] = {}  # instruction → the warps that took registers by it

    def clear(self) -> None:
        """Reset the registers of all warps, because new blocks start."""
        self.held.fill(self.first)
        self.times.clear()
        self.raised.clear()

    def set(self, ins: Instruction, lanes: Ints, count: int) -> None:
        """Record that from now on the warps of these lanes hold ``count`` registers per thread."""
        warps = np.unique(self.reports.threads.base_warp[lanes])
        self.times.setdefault(ins.index, np.zeros_like(self.held))[warps] += 1
        wrong = self.held[warps] > count if "inc" in ins.parts else self.held[warps] < count
        if wrong.any():
            has = int(self.held[warps[np.argmax(wrong)]])
            text = f"the warp holds {has} registers a thread, which this cannot bring to {count}: {ins.text}"
            self.reports.report(REGISTERS, ins, lanes, np.ones(1, bool), None, text)
        self.held[warps] = count
        if "inc" in ins.parts:
            self.raised[ins.index] = np.union1d(self.raised.get(ins.index, np.zeros(0, np.int64)), warps)

    def report(self) -> None:
        """Report, at the end of blocks, blocks whose warps hold more registers than the block has, and warp groups of
        which only some warps executed ``setmaxnreg``."""
        code, threads = self.reports.code, self.reports.threads
        have, held = self.first * self.warps * 32, self.held.reshape(self.copies, self.warps).sum(axis=1) * 32
        for index, warps in self.raised.items():
            over = warps[held[warps // self.warps] > have]
            if over.size:
                wanted = int(held[over[0] // self.warps])
                text = (
                    f"waits for ever: after it the warps of the block would hold {wanted:,} registers, and a block of "
                )
                text += f"{threads.threads} threads has {have:,} ({self.first} a thread): {code[index].text}"
                self._report(index, int(over[0]), text)
        for index, times in self.times.items():
            for group in range(0, self.warps, GROUP):
                some = times.reshape(self.copies, self.warps)[:, group : group + GROUP]
                split = np.flatnonzero(some.min(axis=1) != some.max(axis=1))
                if split.size:
                    block = int(split[0])
                    count = int((some[block] == some[block].max()).sum())
                    text = f"executed by {count} of the {some.shape[1]} warps of a warp group: {code[index].text}"
                    self._report(index, block * self.warps + group + int(some[block].argmax()), text)
                    break

    def _report(self, index: int, warp: int, text: str) -> None:
        lane = warp // self.warps * self.reports.threads.threads + warp % self.warps * 32
        self.reports.report(REGISTERS, self.reports.code[index], np.array([lane]), np.ones(1, bool), None, text)
