"""Tracks which box of a tensor copy wrote each 16-byte chunk of shared memory, and the position of the chunk in that
box.

A descriptor of ``wgmma`` says how a tile is laid out in shared memory. If a copy wrote the tile, the box of the copy
also determines the layout: within eight rows of a tile, chunks of one box must be neighbours as they are in the box. A
descriptor with a wrong stride or swizzle violates the rule that chunks which are neighbours in the box are neighbours
in the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..assembly.instructions import Instruction
from .memory import Region
from .values import Array, Ints


@dataclass(frozen=True)
class Box:
    """A box that a copy wrote: the copy's instruction, the number of 16-byte chunks in a row of the box, and the length
    of the box along its second dimension (``rows``)."""

    ins: Instruction
    across: int
    rows: int


class Origins:
    """Stores, for each chunk of a region, the box that was written there last, and the chunk's number in that box."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all boxes, because new blocks start."""
        self.boxes: list[Box] = []
        self.box = np.zeros(0, np.int32)  # the number of its box, plus 1
        self.number = np.zeros(0, np.int32)
        # By number of the box: its instruction, chunks across, rows; the first stands for no box.
        self.facts = np.tile(np.array([[-1], [1], [1]]), 64)

    def writer(self, region: Region, box: Box) -> Callable[[Ints], None]:
        """Make a function that takes offsets and records that the chunks at these offsets are the chunks of this box,
        in the order of the box."""
        if self.box.size < region.nbytes // 16:
            self.box, self.number = (np.zeros(region.nbytes // 16, np.int32) for _ in range(2))
        self.boxes.append(box)
        index = len(self.boxes)
        if index >= self.facts.shape[1]:
            self.facts = np.append(self.facts, self.facts, axis=1)
        self.facts[:, index] = box.ins.index, box.across, box.rows

        def note(offsets: Ints) -> None:
            self.box[offsets >> 4], self.number[offsets >> 4] = index, np.arange(offsets.size)

        return note

    def row(self, region: Region, offset: int) -> int | None:
        """Return the row of its box in which the chunk at an offset lies; None if no box was written there, or if the
        box was overwritten."""
        found = int(self.box[offset >> 4]) if offset >> 4 < self.box.size else 0
        if (
            not found
            or region.shadow is None
            or region.shadow.by[offset // region.shadow.grain] != self.facts[0, found]
        ):
            return None
        return int(self.number[offset >> 4]) // int(self.facts[1, found])

    def contradiction(self, region: Region, offsets: Ints) -> tuple[Box, Array] | None:
        """Compare a tile with the boxes that were written to the tile's memory. Returns the first box whose chunks are
        in another order in the tile, and which chunks are wrong; None if all boxes agree with the tile.

        ``offsets`` are the offsets of the tile's chunks: (rows, chunks of a row).
        """
        if not self.boxes or region.shadow is None:
            return None
        chunk = offsets >> 4
        found = self.box[chunk]
        by = region.shadow.by[offsets // region.shadow.grain]
        writer, across, rows = self.facts[:, found]
        current = writer == by  # not overwritten since
        if not current.any():
            return None
        number = self.number[chunk]
        line, column = number // across, number % across
        r, c = np.indices(offsets.shape)
        keys = (found.astype(np.int64) << 40) + (line // rows << 20) + r // 8
        down, right = line - r, column - c
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        group = group.reshape(offsets.shape)
        wrong = current & ((down != down.flat[first][group]) | (right != right.flat[first][group]))
        if not wrong.any():
            return None
        return self.boxes[int(found.flat[np.argmax(wrong)]) - 1], wrong
