"""Checks whether the copy engine sees the current contents of tensor maps that a kernel writes (PTX ISA 8.10.3,
9.7.13.4).

The copy engine reads tensor maps through a separate proxy. A write of a map is visible to the copy engine after two
steps. First, a thread that is ordered after the write executes a fence that releases the proxy
(``fence.proxy.tensormap::generic.release``, ``tensormap.cp_fenceproxy``). Second, the thread that starts the copy
executes a fence that acquires the proxy (``fence.proxy.tensormap::generic.acquire``).
"""

from __future__ import annotations

import numpy as np

from ..assembly.instructions import Instruction
from ..findings import MISSING_FENCE
from .clocks import EPOCH, Clocks, stamped_by
from .memory import Region
from .reports import Reports, in_library_if_both
from .tensor_map import MAP_BYTES
from .threads import Threads
from .values import Ints


class TensorMapEdits:
    """Records the fences that a batch of blocks executes between writes of tensor maps and the use of these maps."""

    def __init__(self, threads: Threads, clocks: Clocks, reports: Reports) -> None:
        self.threads, self.clocks, self.reports = threads, clocks, reports
        self.released: dict[int, Ints] = {}  # block of the run → the times of its cluster's warps that it released
        self.acquired: dict[tuple[int, int], int] = {}  # warp and address → a stamp of the warp at the acquire

    def clear(self) -> None:
        """Reset the state for new blocks; maps that earlier blocks released stay released."""
        self.acquired.clear()

    def release(self, lanes: Ints) -> None:
        """Record that these lanes released the proxy."""
        blocks = self.threads.of_block[lanes]
        for block in np.unique(blocks):
            row, ordinal = self.clocks.knowledge(lanes[blocks == block]), int(block) + self.clocks.first
            known = self.released.get(ordinal)
            self.released[ordinal] = row if known is None else np.maximum(row, known)
        self.clocks.advance(lanes)

    def acquire(self, lanes: Ints, addresses: Ints) -> None:
        """Record that each lane acquired the map at its own generic address."""
        for lane, at in zip(lanes.tolist(), addresses.tolist(), strict=True):
            self.acquired[int(self.threads.base_warp[lane]), at] = int(self.clocks.stamp[lane])

    def check(self, ins: Instruction, region: Region, offset: int, address: int, lane: int) -> None:
        """Report a map that a lane uses if the copy engine may not see the last write of the map; the map lies at an
        offset of a region."""
        shadow = region.shadow
        if shadow is None:
            return
        cells = slice(offset // shadow.grain, (offset + MAP_BYTES) // shadow.grain)
        stamps, by = shadow.writer[cells], shadow.by[cells]
        latest = int(stamps.argmax())
        stamp = int(stamps[latest])
        if stamp < EPOCH:
            return
        ordinal, thread = stamped_by(stamp)
        row = self.released.get(ordinal)
        column, time = ordinal % self.clocks.together * 32 + thread // 32, (stamp >> 10) & ((1 << 26) - 1)
        acquired = self.acquired.get((int(self.threads.base_warp[lane]), address))
        writer = self.reports.code[int(by[latest])]
        wrote = f"uses a tensor map that {writer.place(ins)} wrote, with no fence.proxy.tensormap::generic"
        if row is None or row[column] < time:
            text = f"{wrote}.release, or tensormap.cp_fenceproxy, after it"
        elif acquired is None or self.clocks.unordered(np.array([stamp]), np.array([acquired]))[0]:
            text = f"{wrote}.acquire of it before"
        else:
            return
        where = np.array([region.base + offset])
        grade = in_library_if_both(ins, writer)
        self.reports.report(MISSING_FENCE, ins, np.array([lane]), np.ones(1, bool), where, f"{text}: {ins.text}", grade)
