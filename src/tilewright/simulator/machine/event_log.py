"""Records what happens at mbarriers in a run: all events of one cluster of blocks in order, and the rounds of copies of
all blocks.

The pictures of a kernel's pipeline are drawn from a log of events. Events are recorded only if the options of a run ask
for a log, and only for the first cluster of blocks. ``simulator.microscope`` makes the data of the pictures from the
log.

The rounds of copies show how often a block waits for memory, and how many bytes are under way meanwhile. A round ends
when no thread of any block can continue until bytes arrive; then all copies that are under way arrive. So the bytes of
a round are the bytes that a block has under way at once, and each round costs a kernel the latency of memory once. For
example, if a ring buffer has four stages and the consumers hold one of them, each round copies three stages.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from ..assembly.instructions import Instruction
from .memory import Region
from .threads import Threads
from .values import Ints

# ---- events of one block ---------------------------------------------------------------------------------------------

#: The number of events after which a log ends.
MOST_EVENTS = 4096


class LoggedBarrier(Protocol):
    """The state of an mbarrier that the log records; see ``mbarriers.Mbarrier``."""

    region: Region
    offset: int
    block: int
    pending: int
    bytes: int
    phase: int


class LoggedEvent(NamedTuple):
    """An event. ``warps`` has a mask for each warp, with a bit for each lane that takes part. ``pending``, ``bytes``
    and ``phase`` are the barrier's state after the event.

    ``what`` is one of the kinds of ``records.pipeline.BarrierEvent``, or "copy" (a copy was requested), "product" (a
    product was issued), "meet" (these warps passed a barrier of the block) or "stuck" (a wait that never ends).
    ``copy`` is the number of a copy. ``barrier`` is -1 for an event at no mbarrier.
    """

    what: str
    warps: dict[int, int]
    ins: Instruction | None
    barrier: int = -1
    amount: int = 0
    copy: int = 0
    pending: int = 0
    bytes: int = 0
    phase: int = 0


@dataclass
class LoggedTile:
    """The first rows of the first box that an instruction copied, and the chunks of this box that a product read
    first."""

    ins: Instruction
    box: int  # the number of the box among those of the run
    swizzle: int
    row_bytes: int
    cells: Ints  # (rows, chunks): bytes of the block's shared memory
    reader: Instruction | None = None
    operand: str = ""
    mode: int = 0
    reads: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    row: int = 0
    column: int = 0


class EventLog:
    """The log of a run. ``EventLog`` records the ``blocks`` blocks of the first cluster."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.tiles: list[LoggedTile] = []
        self.names: dict[int, str] = {}  # by barrier
        self.whole = True
        self.blocks = 0
        self.block = ""
        self.warps_of_block = 1
        self.copies = 0
        self._threads: Threads | None = None

    def start(self, threads: Threads) -> None:
        """Start to record the events of the first cluster of blocks of these threads."""
        self._threads, self.blocks = threads, threads.cluster.size
        self.block = f"block {threads.place(0)[0]}"
        self.warps_of_block = -(-threads.threads // 32)

    # ---- what the machine reports

    def at(
        self, what: str, ins: Instruction, barrier: LoggedBarrier, lanes: Ints, amount: int = 0, copy: int = 0
    ) -> None:
        """Record an event of these lanes at a barrier, with the state of the barrier after the event."""
        if barrier.block < self.blocks:
            if barrier.offset not in self.names:
                self.names[barrier.offset] = _name(barrier)
            state = (barrier.pending, barrier.bytes, barrier.phase)
            self._add(LoggedEvent(what, self._warps(lanes), ins, barrier.offset, amount, copy, *state))

    def arrive(
        self, ins: Instruction, barrier: LoggedBarrier, lanes: Ints, count: int, before: tuple[int, int]
    ) -> None:
        """Record arrivals of lanes, separately for each warp if each lane arrives once. ``before`` is the state before
        these arrivals: the number of pending arrivals, and the phase."""
        if barrier.block >= self.blocks:
            return
        last = self.events[-1] if self.events else None
        if last is not None and last.what == "expect" and last.ins is ins and last.barrier == barrier.offset:
            self.events[-1] = last._replace(pending=barrier.pending, bytes=barrier.bytes, phase=barrier.phase)
            return
        warps, (pending, phase) = list(self._warps(lanes).items()), before
        if count == lanes.size:
            for warp, mask in warps[:-1]:
                pending -= mask.bit_count()
                state = (pending, barrier.bytes, phase)
                self._add(LoggedEvent("arrive", {warp: mask}, ins, barrier.offset, mask.bit_count(), 0, *state))
            some = lanes[self.warp_of(lanes) == warps[-1][0]] if warps else lanes
            self.at("arrive", ins, barrier, some, some.size)
        else:
            self.at("arrive", ins, barrier, lanes, count)

    def apart(self, what: str, lanes: Ints, ins: Instruction | None = None) -> None:
        """Record an event of these lanes at no mbarrier."""
        if self._threads is not None and (warps := self._warps(lanes)):
            self._add(LoggedEvent(what, warps, ins))

    def next_copy(self) -> int:
        """Count a new copy; returns the number of this copy."""
        self.copies += 1
        return self.copies

    def box(self, ins: Instruction, box: int, swizzle: int, row_bytes: int, cells: Ints) -> None:
        """Record where an instruction writes its first box. ``cells`` are the positions of chunks in the block's shared
        memory, in bytes: (rows, chunks)."""
        if all(tile.ins is not ins for tile in self.tiles):
            self.tiles.append(LoggedTile(ins, box, swizzle, row_bytes, cells))

    def operand(self, ins: Instruction, side: str, mode: int, places: Ints, boxes: Ints, numbers: Ints) -> None:
        """Record the eight chunks that a product reads as one group, with the box of each chunk and the chunk's number
        in that box. Only the first group that begins in the recorded part of a box is recorded."""
        for tile in self.tiles:
            if tile.reader is None and int(boxes[0]) == tile.box:
                row, column = divmod(int(numbers[0]), max(1, tile.row_bytes // 16))
                if row == 0 and column < tile.cells.shape[1]:
                    tile.reader, tile.operand, tile.mode = ins, side, mode
                    tile.reads, tile.row, tile.column = places, row, column

    def warp_of(self, lanes: Ints) -> Ints:
        """Return the numbers of the lanes' warps, counted over all blocks that run together."""
        assert self._threads is not None
        return np.asarray(self._threads.base_warp[lanes])

    # ---- its own

    def _add(self, event: LoggedEvent) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            self.whole = False

    def _warps(self, lanes: Ints) -> dict[int, int]:
        """The warps of lanes of recorded blocks, and a bit for each lane."""
        threads = self._threads
        assert threads is not None
        found: dict[int, int] = {}
        mine = lanes[threads.of_block[lanes] < self.blocks]
        if not mine.size or not self.whole:
            return found
        warps, bits = threads.base_warp[mine], np.int64(1) << threads.lane[mine]
        first = np.flatnonzero(np.diff(warps, prepend=-1))
        masks = np.bitwise_or.reduceat(bits, first)
        for warp, mask in zip(warps[first].tolist(), masks.tolist(), strict=True):
            found[warp] = found.get(warp, 0) | mask
        return found


def _name(barrier: LoggedBarrier) -> str:
    """A barrier as an element of the variable that holds it, or by its byte."""
    address = barrier.offset - barrier.block * barrier.region.stride
    for first, end, words in barrier.region.spans:
        if first <= address < end:
            name, byte = words.removeprefix("shared "), address - first
            if end - first == 8:
                return name
            arrays = end - first <= 512 and not words.startswith("dynamic")
            return f"{name}[{byte // 8}]" if arrays else f"the barrier at byte {byte:,} of {name}"
    return f"the barrier at byte {address:,}"


def first_rows(chunks: Ints, across: int, rows: int, most_rows: int, most: int) -> Ints:
    """Return the positions of the first chunks of the first rows of a box, (rows, chunks), from the positions of all
    chunks of the box in order.

    >>> first_rows(np.arange(0, 96, 16), 3, 2, 8, 2).tolist()
    [[0, 16], [48, 64]]
    """
    return np.asarray(chunks[: len(chunks) // across * across].reshape(-1, across)[: min(rows, most_rows), :most])


# ---- rounds of copies ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockRounds:
    """A summary of the rounds of copies, over the blocks that copied.

    The figures of an average block are ``rounds``, the number of its rounds; ``phases``, the phases of mbarriers that
    copies completed; ``first``, the bytes of its first round; ``under_way``, the typical bytes of a later round (or of
    the first if there is no later one); and ``bytes``, the bytes of all rounds. ``most`` is the number of bytes of the
    block that copied most.
    """

    blocks: int = 0
    rounds: float = 0.0
    phases: float = 0.0
    first: float = 0.0
    under_way: float = 0.0
    bytes: float = 0.0
    most: int = 0


class CopyRounds:
    """Collects the rounds of copies of a launch, by block."""

    def __init__(self) -> None:
        self._bytes: dict[int, list[int]] = defaultdict(list)
        self._phases: Counter[int] = Counter()

    def add(self, coming: Iterable[tuple[int, int, int]]) -> None:
        """Add one round of copies; each copy is given as its block, the position of its mbarrier and its bytes.

        >>> rounds = CopyRounds()
        >>> for stages in ((0, 1, 2, 3), (0, 1, 2), (3, 0, 1), (2,)):
        ...     rounds.add((7, place, 100) for place in stages)
        >>> rounds.of_blocks()
        BlockRounds(blocks=1, rounds=4, phases=11, first=400, under_way=300, bytes=1100, most=1100)
        """
        sums: Counter[int] = Counter()
        places = set()
        for block, place, nbytes in coming:
            if nbytes:
                sums[block] += nbytes
                places.add((block, place))
        for block, nbytes in sums.items():
            self._bytes[block].append(nbytes)
        self._phases.update(block for block, _ in places)

    def of_blocks(self) -> BlockRounds:
        """Return a summary of the rounds of the blocks that have run."""
        found = list(self._bytes.values())
        if not found:
            return BlockRounds()
        totals = [sum(each) for each in found]
        later = [nbytes for each in found for nbytes in each[1:]]
        return BlockRounds(
            blocks=len(found),
            rounds=statistics.mean(map(len, found)),
            phases=statistics.mean(self._phases.values()),
            first=statistics.mean(each[0] for each in found),
            under_way=statistics.median(later or [each[0] for each in found]),
            bytes=statistics.mean(totals),
            most=max(totals),
        )
