"""What the shadow is told of accesses by which threads cooperate without a lock: volatile ones, and loads before a swap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..assembly.instructions import Instruction
from ..findings import VOLATILE
from ..machine.lanes import Lanes
from ..machine.memory import Region
from ..machine.shadow import by_access
from ..machine.values import Ints


def clock_of(lanes: Lanes, sel: Ints | None) -> Ints:
    """The stamps of the active lanes."""
    return lanes.clocks.stamp if sel is None else lanes.clocks.stamp[sel]


def note_unwritten(
    ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None
) -> None:
    """``note_read`` of a read that does not race: only bytes that were never written are reported."""
    shadow = region.shadow
    if shadow is not None and shadow.starts_empty:
        cells, _ = shadow.cells(offsets, nbytes, clock_of(lanes, sel))
        unwritten = shadow.writer[cells] == 0
        if unwritten.any():
            lanes.reports.unwritten_read(ins, region, sel, by_access(unwritten, offsets), offsets)


def note_volatile(
    ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None,
    changes: NDArray[np.bool_] | None = None,
) -> None:  # fmt: skip
    """Tell the shadow of shared memory of a volatile access, a write if there are ``changes``; report what it finds."""
    shadow = region.shadow
    if shadow is None or shadow.across_blocks or "volatile" not in ins.parts:
        return
    cells, now = shadow.cells(offsets, nbytes, clock_of(lanes, sel))
    if ins.index in lanes.polling:
        shadow.poll(cells)
        return
    bad = by_access(shadow.volatile(cells, now, ins.index, changes is not None), offsets)
    bad = bad if changes is None else bad & changes
    if bad.any():
        lanes.reports.race(ins, region, sel, bad, offsets, VOLATILE)
