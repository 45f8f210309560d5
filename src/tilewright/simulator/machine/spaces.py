"""Converts the addresses of an access in each memory space to offsets in a region, and reports invalid addresses as
findings.

As in hardware, addresses of shared and local memory are offsets. The generic address of shared or local memory is the
offset plus the base of a window, which lies far above global memory. Shared variables keep their real offset modulo
1,024, so that they lie in the same banks as on hardware. The simulator leaves unused bytes between shared variables.

A shared address below ``1 << RANK_BIT`` refers to the lane's own block. The address ``(FIRST_RANK + rank) << RANK_BIT |
offset`` refers to the block of that rank in the lane's cluster (PTX ISA 5.1.6: the window shared::cta lies in
shared::cluster). As on hardware, the lowest bit of the rank is bit RANK_BIT: code for a pair of blocks clears that bit
to address the even block. The simulator reports a finding if a block leaves the kernel while other blocks still address
its shared memory.
"""

# ruff: noqa: ARG002 - all spaces have the same methods, and not every space needs every argument

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..assembly.instructions import Instruction, is_ordered, loads_anew, only_reads
from ..findings import LEFT_EARLY
from .clocks import WARPS
from .memory import SLOT, AddressRange, Region, Sized, nearest, padded, plain_name
from .reports import Reports
from .shadow import Shadow
from .threads import Cluster
from .values import Array, Bools, Ints, split

# ---- every space -----------------------------------------------------------------------------------------------------

#: The first generic address of each memory space except global memory.
WINDOW = {"shared": 1 << 56, "local": 2 << 56, "const": 3 << 56, "param": 4 << 56}
SHARED_BASE = 1024  # bytes that sm_90 reserves; any multiple of 128 gives the same banks
SHARED_GUARD = 4096  # unused bytes between shared variables

#: A region, the offsets of accesses in it, and the positions of these accesses among all accesses (None: all accesses).
Piece = tuple[Region, Ints, "Ints | None"]


class Space:
    """One state space. A space converts addresses to offsets in regions, and reports invalid addresses."""

    name = ""

    def __init__(self, reports: Reports) -> None:
        self.reports = reports

    def pieces(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[Piece]:
        """Yield the regions and offsets of accesses; invalid accesses are reported and left out."""
        low, high = int(address.min()), int(address.max())
        region = self.holding(low, high + nbytes)
        if region is not None and not int(np.bitwise_or.reduce(address)) & (nbytes - 1):
            self.prepare(ins, region)
            yield region, self.offsets(region, address, sel), None
            return
        for region, at in self.mixed(ins, address, nbytes, sel):
            self.prepare(ins, region)
            yield region, self.offsets(region, address[at], at if sel is None else sel[at]), at

    def prepare(self, ins: Instruction, region: Region) -> None:
        """Prepare a region for its first write: copy the caller's array, and check for races from now on."""
        if not region.written and not only_reads(ins):
            region.written = True
            if region.borrowed:
                region.own()
            self.watch(region)

    def watch(self, region: Region) -> None:
        """Check for races in a region from now on; ``watch`` is called before the first write to the region.
        ``GlobalSpace`` creates a shadow for a region that has none because ``dataflow`` found no store to the
        region."""

    def mixed(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[tuple[Region, Ints]]:
        """Do what ``pieces`` does in the general case, in which some addresses are invalid or the addresses lie in
        several regions."""
        bad = (address & (nbytes - 1)) != 0
        if bad.any():
            first = int(address[np.argmax(bad)])
            text = (
                f"{nbytes} bytes at {self.describe(first, 1)}, {first % nbytes} off a multiple of {nbytes}: {ins.text}"
            )
            self.reports.report("misaligned", ins, sel, bad, address, text)
        left = ~bad
        while left.any():
            first = int(address[np.argmax(left)])
            region = self.holding(first, first + nbytes)
            if region is None:
                here = left & self.outside(address, nbytes)
                text = f"{nbytes} bytes at {self.describe(first, nbytes)}: {ins.text}"
                self.reports.report("out of bounds", ins, sel, here, address, text)
            else:
                here = left & self.inside(first, address, nbytes)
                yield region, np.flatnonzero(here)
            left &= ~here

    def holding(self, low: int, end: int) -> Region | None:
        """Return the region in which a single variable contains all of these bytes; None if no variable does."""
        raise NotImplementedError

    def inside(self, like: int, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Return which accesses lie in the same region (or variable) as the address ``like``."""
        raise NotImplementedError

    def outside(self, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Return which accesses lie in no region and no variable."""
        raise NotImplementedError

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        """Convert addresses to offsets in their region."""
        raise NotImplementedError

    def describe(self, address: int, nbytes: int) -> str:
        """Return an address as text: the variable at or near the address, and how far ``nbytes`` bytes extend outside
        that variable."""
        raise NotImplementedError


class GlobalSpace(Space):
    """Global memory: arrays and module variables, each of which has its own slot of addresses."""

    name = "global"

    def __init__(self, reports: Reports, regions: dict[int, Region], grain: int) -> None:
        super().__init__(reports)
        self.regions, self.grain = regions, grain

    def holding(self, low: int, end: int) -> Region | None:
        """Return the array or variable in whose slot the bytes lie, if the array or variable contains all of them."""
        region = self.regions.get(low >> SLOT)
        return region if region and end <= region.base + region.nbytes else None

    def inside(self, like: int, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Return which accesses lie in the array or variable that owns the slot of the address ``like``."""
        region = self.regions[like >> SLOT]
        return (address >= region.base) & (address + nbytes <= region.base + region.nbytes)

    def outside(self, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Return which accesses lie in no array and no variable."""
        out = np.ones(address.shape, bool)
        for region in self.regions.values():
            out &= ~((address >= region.base) & (address + nbytes <= region.base + region.nbytes))
        return out

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        """Convert addresses to byte offsets in the array or variable in which they lie."""
        return address - region.base

    def watch(self, region: Region) -> None:
        """Create a shadow for the region if it has none yet."""
        if region.shadow is None:
            region.shadow = Shadow(region.nbytes, self.grain, across_blocks=True)
            region.shadow.clocks = self.reports.clocks

    def describe(self, address: int, nbytes: int) -> str:
        """An address as text, relative to the nearest array or variable."""
        near = [r for r in self.regions.values() if abs(address - r.base) < 1 << (SLOT - 1)]
        if not near:
            return f"address {address:#x} of global memory, in no operand" + (
                " (a null pointer?)" if address < 4096 else ""
            )
        region, at = near[0], address - near[0].base
        return f"byte {at} of {region.name} ({region.size_in_words()}){_outside(at, nbytes, region.nbytes)}"


def _outside(at: int, nbytes: int, size: int) -> str:
    if not size:
        return ", which is empty"
    if 0 <= at <= size - nbytes:
        return ""
    return f", {-at} before its start" if at < 0 else f", {at + nbytes - size} beyond its end"


class WindowSpace(Space):
    """Shared, local, constant or parameter memory, or the arguments of calls. Variables of a ``WindowSpace`` lie at
    offsets, and each block, thread or launch has its own copy of them.

    ``owner`` is the number of each lane's copy of the variables (None: all lanes share one copy). ``guard`` is the
    number of unused bytes between variables.
    """

    def __init__(
        self, reports: Reports, name: str, sizes: list[Sized], copies: int, owner: Ints | None, guard: int = 0
    ) -> None:
        super().__init__(reports)
        self.name = name
        self.at: dict[str, int] = {}
        spans = []
        place = SHARED_BASE if name == "shared" else 16
        for index, (names, size, align, dynamic) in enumerate(sizes):
            place = -(-place // align) * align
            first = place + index * guard
            self.at |= dict.fromkeys(names, first)
            words = "dynamic " * dynamic + f"{name} " + "/".join(map(plain_name, names))
            spans.append(AddressRange(first, first + size, words))
            place += size
        self.stride = -(-(place + len(sizes) * guard) // 128) * 128
        self.region = Region(name, padded(self.stride * copies), self.stride * copies, spans=spans)
        if owner is not None:
            self.region.starts, self.region.stride = owner * self.stride, self.stride

    def holding(self, low: int, end: int) -> Region | None:
        """Return the region of the space, if one of its variables contains the bytes."""
        for first, last, _ in self.region.spans:
            if first <= low and end <= last:
                return self.region
        return None

    def inside(self, like: int, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Return which accesses lie in the same variable as the address ``like``."""
        span = next(s for s in self.region.spans if s.first <= like < s.end)
        return (address >= span.first) & (address + nbytes <= span.end)

    def outside(self, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Return which accesses lie in no variable."""
        out = np.ones(address.shape, bool)
        for first, last, _ in self.region.spans:
            out &= ~((address >= first) & (address + nbytes <= last))
        return out

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        """Convert addresses to byte offsets in the region; each lane uses its own copy of the variables."""
        starts = region.starts
        return address if starts is None else address + (starts if sel is None else starts[sel])

    def describe(self, address: int, nbytes: int) -> str:
        """An address as text, relative to the nearest variable."""
        if not self.region.spans:
            return f"byte {address} of {self.name} memory, of which the kernel has none"
        span = nearest(self.region.spans, address)
        return self.region.words(address) + _outside(address - span.first, nbytes, span.end - span.first)


# ---- shared memory of a cluster --------------------------------------------------------------------------------------

#: From bit RANK_BIT on, an address holds FIRST_RANK plus the rank of a block in its cluster, or 0 for the lane's own
#: block.
RANK_BIT, FIRST_RANK = 24, 64
OFFSET = (1 << RANK_BIT) - 1


def address_in(address: Array, rank: Array) -> Array:
    """Return the address of the same variable in the shared memory of the block of another rank."""
    return np.asarray((address & address.dtype.type(OFFSET)) | ((rank.astype(address.dtype) + FIRST_RANK) << RANK_BIT))


class SharedSpace(WindowSpace):
    """Shared memory: a lane addresses the memory of its own block, and with higher addresses the memory of other blocks
    of its cluster."""

    visits: Visits | None = None  # created by the first access to another block

    def pieces(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[Piece]:
        """Yield the regions and offsets of accesses; invalid accesses are reported and left out."""
        if self.visits is not None and loads_anew(ins):
            self.visits.look(self.reports.threads.every if sel is None else sel)
        if int(address.max()) <= OFFSET:
            return super().pieces(ins, address, nbytes, sel)
        own = self.reports.threads.cluster.rank if sel is None else self.reports.threads.cluster.rank[sel]
        if (address >> RANK_BIT == own + FIRST_RANK).all():
            return super().pieces(ins, address & OFFSET, nbytes, sel)
        return self._across(ins, address, nbytes, sel)

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        """Convert addresses to byte offsets in the region: in the copy of the lane's own block, or of the block that
        the address names."""
        if address.size and int(address.max()) > OFFSET:
            blocks = self.reports.threads.cluster.block((address >> RANK_BIT) - FIRST_RANK, sel)
            own = super().offsets(region, address & OFFSET, sel)
            return np.where(address > OFFSET, (address & OFFSET) + blocks * self.stride, own)
        return super().offsets(region, address, sel)

    def _across(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[Piece]:
        """``pieces`` where some addresses are those of other blocks."""
        cluster: Cluster = self.reports.threads.cluster
        own = cluster.of_block if sel is None else cluster.of_block[sel]
        rank = np.where(address > OFFSET, (address >> RANK_BIT) - FIRST_RANK, own % cluster.size)
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
        """Whether an address refers to an existing block of the cluster."""
        return address <= OFFSET or 0 <= (address >> RANK_BIT) - FIRST_RANK < self.reports.threads.cluster.size

    def missing_block(self, address: int) -> str:
        """Return a text about an address that refers to a block that does not exist."""
        size = self.reports.threads.cluster.size
        rest = f"a cluster of {size}" if size > 1 else "a launch without clusters"
        return f"shared memory of the block of rank {(address >> RANK_BIT) - FIRST_RANK} in {rest}"

    def visit(self, ins: Instruction, lanes: Ints, there: Ints) -> None:
        """Record that these lanes access the shared memory of these blocks of the batch. The block in ``there`` may be
        the lane's own block."""
        other = there != self.reports.threads.of_block[lanes]
        if other.any():
            self.visits = self.visits or Visits(self)
            self.visits.note(ins, lanes[other], there[other])


class Visits:
    """Stores the last access of each warp to the shared memory of each other block of its cluster, and the last ordered
    one of these accesses.

    An ordered access to shared memory is complete when its effect is seen. So a block that polls its memory knows that
    earlier ordered accesses of other blocks are complete.
    """

    def __init__(self, space: WindowSpace) -> None:
        self.reports = space.reports
        clocks = self.reports.clocks
        self.time = np.zeros((clocks.copies, clocks.columns), np.int64)
        self.ordered = np.zeros_like(self.time)
        self.by = np.zeros((clocks.copies, clocks.columns), np.int32)

    def clear(self) -> None:
        """Forget all accesses, because new blocks start."""
        self.time.fill(0)
        self.ordered.fill(0)

    def note(self, ins: Instruction, lanes: Ints, blocks: Ints) -> None:
        """Record that these lanes access the shared memory of these blocks of the batch, in ``time`` and
        ``ordered``."""
        clocks = self.reports.clocks
        place = (blocks, clocks.column[lanes])
        np.maximum.at(self.time, place, clocks.times(lanes))
        self.by[place] = ins.index
        if is_ordered(ins):
            np.maximum.at(self.ordered, place, clocks.times(lanes))

    def look(self, lanes: Ints) -> None:
        """Record that these lanes run an instruction that reads what other blocks may just have written."""
        blocks = np.unique(self.reports.threads.of_block[lanes])
        self.reports.clocks.outlive(blocks, self.ordered[blocks])

    def report(self) -> None:
        """Report, when all blocks have left the kernel, blocks that did not wait for the last accesses of other blocks
        to their shared memory.

        A block may leave after an access by another block if a barrier of the cluster, or a signal from another thread,
        orders the access before an instruction of one of the leaving block's own threads.
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
