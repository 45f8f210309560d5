"""Shared memory of the blocks of a cluster: addresses of other blocks, and blocks that leave while others address them.

An address below ``1 << RANK_BIT`` is in the lane's own block. ``(rank + 1) << RANK_BIT | offset`` is in the block of that
rank in the lane's cluster (PTX ISA 5.1.6: the window shared::cta lies in shared::cluster).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..assembly.effects import is_ordered, loads_anew
from ..assembly.instructions import Instruction
from ..findings import LEFT_EARLY
from .clocks import WARPS
from .clusters import Cluster
from .memory import Region
from .spaces import Piece, WindowSpace
from .values import Array, Bools, Ints, split

#: The bits of an address from here on are the rank of a block in its cluster plus one; 0 is the own block.
RANK_BIT = 24
OFFSET = (1 << RANK_BIT) - 1


def address_in(address: Array, rank: Array) -> Array:
    """The address of the same variable in the block of a rank."""
    return np.asarray((address & address.dtype.type(OFFSET)) | ((rank.astype(address.dtype) + 1) << RANK_BIT))


class SharedSpace(WindowSpace):
    """Shared memory: every lane addresses that of its own block, and by higher addresses that of its cluster."""

    visits: Visits | None = None  # created by the first access to another block

    def pieces(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[Piece]:
        """Regions and offsets of accesses; invalid accesses are reported and left out."""
        if self.visits is not None and loads_anew(ins):
            self.visits.look(self.reports.threads.every if sel is None else sel)
        if int(address.max()) <= OFFSET:
            return super().pieces(ins, address, nbytes, sel)
        return self._across(ins, address, nbytes, sel)

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        """Addresses as bytes of the region: of the copy of each lane's block, or of the block that they name."""
        if address.size and int(address.max()) > OFFSET:
            blocks = self.reports.threads.cluster.block((address >> RANK_BIT) - 1, sel)
            own = super().offsets(region, address & OFFSET, sel)
            return np.where(address > OFFSET, (address & OFFSET) + blocks * self.stride, own)
        return super().offsets(region, address, sel)

    def _across(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[Piece]:
        """``pieces`` where some addresses are those of other blocks."""
        cluster: Cluster = self.reports.threads.cluster
        own = cluster.of_block if sel is None else cluster.of_block[sel]
        rank = np.where(address > OFFSET, (address >> RANK_BIT) - 1, own % cluster.size)
        bad = (rank < 0) | (rank >= cluster.size)
        if bad.any():
            text = f"{self.missing_block(int(address[np.argmax(bad)]))}: {ins.text}"
            self.reports.report("out of bounds", ins, sel, bad, address, text)
        there, local = cluster.block(rank, sel), address & OFFSET
        good = np.flatnonzero(~bad)
        if good.size:
            lanes = good if sel is None else sel[good]
            for region, offsets, at in super().pieces(ins, local[good], nbytes, lanes):
                place = good if at is None else good[at]
                self.visit(ins, place if sel is None else sel[place], there[place])
                yield (
                    region,
                    offsets + (there[place] - own[place]) * self.stride,
                    None if place.size == own.size else place,
                )

    def names_block(self, address: int) -> bool:
        """Whether an address is in a block of the cluster."""
        return address >> RANK_BIT <= self.reports.threads.cluster.size

    def missing_block(self, address: int) -> str:
        """An address in a block that there is not, as text."""
        size = self.reports.threads.cluster.size
        rest = f"a cluster of {size}" if size > 1 else "a launch without clusters"
        return f"shared memory of the block of rank {(address >> RANK_BIT) - 1} in {rest}"

    def visit(self, ins: Instruction, lanes: Ints, there: Ints) -> None:
        """Note that these lanes access the shared memory of these blocks of the batch, which may be their own."""
        other = there != self.reports.threads.of_block[lanes]
        if other.any():
            self.visits = self.visits or Visits(self)
            self.visits.note(ins, lanes[other], there[other])


class Visits:
    """The last access of each warp to the shared memory of each other block of its cluster, and the last that was ordered.

    An ordered access is done when its effect is seen: a block that polls knows of those that came before.
    """

    def __init__(self, space: WindowSpace) -> None:
        self.reports = space.reports
        clocks = self.reports.clocks
        self.time = np.zeros((clocks.copies, clocks.columns), np.int64)
        self.ordered = np.zeros_like(self.time)
        self.by = np.zeros((clocks.copies, clocks.columns), np.int32)

    def clear(self) -> None:
        """Forget all accesses: new blocks start."""
        self.time.fill(0)
        self.ordered.fill(0)

    def note(self, ins: Instruction, lanes: Ints, blocks: Ints) -> None:
        """Note that these lanes access the shared memory of these blocks of the batch."""
        clocks = self.reports.clocks
        place = (blocks, clocks.column[lanes])
        np.maximum.at(self.time, place, clocks.times(lanes))
        self.by[place] = ins.index
        if is_ordered(ins):
            np.maximum.at(self.ordered, place, clocks.times(lanes))

    def look(self, lanes: Ints) -> None:
        """These lanes read what others may have just written."""
        blocks = np.unique(self.reports.threads.of_block[lanes])
        self.reports.clocks.outlive(blocks, self.ordered[blocks])

    def report(self) -> None:
        """All blocks have left: report those that did not wait for the last accesses of others to their shared memory.

        A block may leave after an access if a barrier of the cluster, or what another thread told it, orders the access
        before something that one of its own threads did.
        """
        clocks, threads, code = self.reports.clocks, self.reports.threads, self.reports.code
        late: Bools = self.time > clocks.known_at_exit()
        for at in np.unique(self.by[late]):
            block, column = (int(x[0]) for x in np.nonzero(late & (self.by == at)))
            rank, warp = divmod(column, WARPS)
            visitor = block - block % clocks.together + rank
            lanes = np.array([visitor * threads.threads + 32 * warp])
            gone = split(int(threads.grid_blocks[block]), threads.grid)
            text = f"addresses the shared memory of block {gone}, which may have left the kernel by then (a barrier of the "
            text += f"cluster before the end would keep it): {code[at].text}"
            self.reports.report(LEFT_EARLY, code[at], lanes, np.ones(1, bool), None, text)
