"""The mbarriers of a batch of blocks: their arrivals, bytes and phases, and which accesses are ordered before a thread
that waits (PTX ISA 9.7.13.15).

A phase of an mbarrier completes when no arrival is pending and as many bytes have arrived as were expected. The state
of an mbarrier is one 64-bit word in shared memory, as on hardware. PTX does not say what the bits of that word mean on
hardware. In addition to that word, the simulator stores the logical times that the threads that arrived know, the
copies of each phase, and the phases for which warps waited.

An arrival publishes the logical times that its threads know (see ``clocks``). A thread that has waited for a phase
knows the times that the arrivals of this phase and of earlier phases published. The bytes of a copy count as written by
the first thread whose wait for the copy's phase has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from ..assembly.instructions import Instruction
from ..findings import BARRIER_MISUSE, BYTE_COUNT, MISSING_FENCE, SURE, WRONG_PARITY
from .clocks import Clocks, thread_of
from .event_log import CopyRounds, EventLog
from .memory import Region
from .reports import Reports, in_library_if_both
from .threads import Threads
from .values import Ints

# ---- state and phases ------------------------------------------------------------------------------------------------

#: The largest count of arrivals, and of bytes that are expected or have arrived (PTX ISA 9.7.13.15.2).
MOST = (1 << 20) - 1
#: The first bit of fields of the word: the pending arrivals, the bytes still to arrive (21 bits, signed), and the phase's
#: parity. The count begins at bit 0.
PENDING, BYTES, PARITY = 20, 40, 61


class Pending(Protocol):
    """A copy whose bytes belong to a phase of a barrier."""

    def finish(self, stamp: int) -> None:
        """Count the bytes of the copy as written by the thread with this stamp."""
        ...


@dataclass(eq=False)
class Mbarrier:
    """One mbarrier, at ``offset`` in the shared memory of all blocks; ``block`` is the block of the batch that holds
    it."""

    region: Region
    offset: int
    block: int
    init: Instruction
    stamp: int  # of the thread that initialised it
    count: int  # arrivals of a phase
    pending: int = 0  # arrivals that the current phase still needs
    bytes: int = 0  # bytes that were expected and have not arrived; negative if more arrived
    phase: int = 0  # phases completed
    fenced: bool = False  # whether fence.mbarrier_init followed its initialisation
    arrived: Ints | None = None  # what the arrivals of the current phase know
    known: Ints | None = None  # what those of completed phases know
    reached: Ints | None = None  # when the lanes were whose copies complete here
    copies: list[tuple[int, Pending]] = field(default_factory=list)  # with their phases, until a thread waits for them
    expected: int = 0  # bytes, of the current phase
    received: int = 0
    in_all: tuple[int, int] = (0, 0)  # the same of completed phases
    expects: Instruction | None = None  # the latest that expected bytes, and the latest that brought some
    brings: Instruction | None = None
    waited: dict[int, int] = field(default_factory=dict)  # warp of the block → the phase that it waited for
    # Warp → a wait that returned for no new phase, and how many did so.
    repeated: dict[int, tuple[Instruction, int]] = field(default_factory=dict)

    def word(self) -> int:
        """The state of the barrier as one 64-bit word."""
        left = (self.bytes & ((1 << 21) - 1)) << BYTES
        return self.count | self.pending << PENDING | left | (self.phase & 1) << PARITY

    def store(self) -> None:
        """Write the state of the barrier to its word in shared memory."""
        self.region.view(np.dtype(np.uint64))[self.offset >> 3] = self.word()

    def intact(self) -> bool:
        """Whether the barrier's word in shared memory is still the one that ``store`` wrote last."""
        return int(self.region.view(np.dtype(np.uint64))[self.offset >> 3]) == self.word()

    def passed(self, parity: int) -> bool:
        """Whether a wait for the phase of this parity returns. A wait returns if the parity of the barrier's current
        phase differs from the parity for which the wait asks."""
        return self.phase & 1 != parity


class Mbarriers:
    """The barriers of a batch, by their offset in the shared memory of all its blocks."""

    def __init__(self, threads: Threads, clocks: Clocks, reports: Reports, stride: int, rounds: CopyRounds) -> None:
        self.threads, self.clocks, self.reports, self.stride, self.rounds = threads, clocks, reports, stride, rounds
        self.at: dict[int, Mbarrier] = {}
        # Copies that have not arrived: instruction, barrier, bytes, transfers, the lane that asked, number in the log.
        self.coming: list[tuple[Instruction, Mbarrier, int, Sequence[Pending], Ints, int]] = []
        self.log: EventLog | None = None

    def clear(self) -> None:
        """Forget all barriers, because new blocks start."""
        self.at.clear()
        self.coming.clear()

    # ---- finding and making

    def words(self, barrier: Mbarrier) -> str:
        """Return the name of a barrier for messages."""
        return f"the barrier at {barrier.region.words(barrier.offset - barrier.block * self.stride)}"

    def report(self, kind: str, ins: Instruction, lanes: Ints, text: str, grade: str = SURE) -> None:
        """Report a finding for the first of these lanes."""
        self.reports.report(kind, ins, lanes, np.ones(1, bool), None, f"{text}: {ins.text}", grade)

    def find(self, ins: Instruction, region: Region, offset: int, lanes: Ints) -> Mbarrier | None:
        """Return the barrier at an offset. If no barrier was initialised there, or if the barrier was overwritten,
        reports a finding and returns None."""
        barrier = self.at.get(offset)
        if barrier is not None and barrier.intact():
            return barrier
        where = region.words(offset - offset // self.stride * self.stride)
        why = "was never initialised, or was invalidated"
        if barrier is not None:
            why = f"was overwritten after its initialisation at {barrier.init.place(ins)}"
            del self.at[offset]
        self.report(BARRIER_MISUSE, ins, lanes, f"uses the barrier at {where}, which {why}")
        return None

    def init(self, ins: Instruction, region: Region, offset: int, count: int, lane: int) -> None:
        """Execute ``mbarrier.init`` by a lane."""
        lanes = np.array([lane])
        if not 1 <= count <= MOST:
            self.report(BARRIER_MISUSE, ins, lanes, f"sets a count of {count:,}, which must be from 1 to {MOST:,}")
            return
        old = self.at.get(offset)
        if old is not None and old.intact() and old.init.index == ins.index and not old.phase and old.pending == count:
            return  # all threads initialise it together
        if old is not None and old.intact():
            left = f"its phase {old.phase} lacks {old.pending} of {old.count} arrivals"
            left += f" and {len(old.copies)} copies to it have not been waited for" if old.copies else ""
            text = (
                f"initialises {self.words(old)} again, which {old.init.place(ins)} initialised and which is still valid"
            )
            self.report(BARRIER_MISUSE, ins, lanes, f"{text} ({left}; mbarrier.inval must come first)")
        block, stamp = offset // self.stride, int(self.clocks.stamp[lane])
        self.at[offset] = Mbarrier(region, offset, block, ins, stamp, count, count)
        self.at[offset].store()
        if self.log is not None:
            self.log.at("init", ins, self.at[offset], lanes, count)

    def invalidate(self, ins: Instruction, barrier: Mbarrier, lanes: Ints) -> None:
        """Execute ``mbarrier.inval``: remove the barrier."""
        coming = sum(count for _, to, count, *_ in self.coming if to is barrier)
        if coming or barrier.bytes > 0:
            left = f"{max(coming, barrier.bytes):,} bytes have yet to arrive at it"
            self.report(BARRIER_MISUSE, ins, lanes, f"invalidates {self.words(barrier)} while {left}")
        del self.at[barrier.offset]
        barrier.region.view(np.dtype(np.uint64))[barrier.offset >> 3] = 0

    def fence(self, sel: Ints | None) -> None:
        """Execute ``fence.mbarrier_init`` by these lanes: the barriers that these lanes initialised become visible to
        the copy engine."""
        stamps = self.clocks.stamp if sel is None else self.clocks.stamp[sel]
        mine = set(thread_of(stamps).tolist())
        self.clocks.secure(sel)
        for barrier in self.at.values():
            barrier.fenced |= int(thread_of(barrier.stamp)) in mine

    def check_visible(self, ins: Instruction, barrier: Mbarrier, lane: int) -> None:
        """Report a barrier that a lane passes to the copy engine, if the copy engine cannot see its initialisation
        yet."""
        if not barrier.fenced and self.clocks.invisible(np.array([barrier.stamp]), lane)[0]:
            text = f"names {self.words(barrier)} to the copy engine, which cannot see its initialisation at "
            text += f"{barrier.init.place(ins)} (fence.mbarrier_init or fence.proxy.async must follow mbarrier.init)"
            self.report(MISSING_FENCE, ins, np.array([lane]), text, in_library_if_both(ins, barrier.init))

    # ---- arrivals and bytes

    def arrive(self, ins: Instruction, barrier: Mbarrier, lanes: Ints, count: int, release: bool = True) -> None:
        """Count ``count`` arrivals by these lanes, which are all in one cluster."""
        if count > barrier.pending:
            have = f"{count} arrivals where phase {barrier.phase} needs {barrier.pending} more of its {barrier.count}"
            self.report(BARRIER_MISUSE, ins, lanes, f"{have}, at {self.words(barrier)}")
        if release:
            self._publish(barrier, lanes)
        before = barrier.pending, barrier.phase
        barrier.pending = max(0, barrier.pending - count)
        self._settle(barrier)
        if self.log is not None:
            self.log.arrive(ins, barrier, lanes, count, before)

    def drop(self, barrier: Mbarrier, count: int) -> None:
        """Reduce the number of arrivals that later phases need."""
        barrier.count = max(0, barrier.count - count)

    def _publish(self, barrier: Mbarrier, lanes: Ints) -> None:
        blocks = self.threads.of_block[lanes]
        for block in np.unique(blocks):
            row = self.clocks.knowledge(lanes[blocks == block])
            barrier.arrived = row if barrier.arrived is None else np.maximum(barrier.arrived, row)
        self.clocks.advance(lanes)

    def expect(self, ins: Instruction, barrier: Mbarrier, count: int, lanes: Ints) -> None:
        """Increase the number of bytes that the current phase expects by ``count``."""
        barrier.bytes += count
        barrier.expected += count
        barrier.expects = ins
        if barrier.bytes > MOST:
            text = f"expects {barrier.bytes:,} bytes at {self.words(barrier)}, which can count {MOST:,} at most"
            self.report(BYTE_COUNT, ins, lanes, text)
            barrier.bytes = MOST
        barrier.store()
        if self.log is not None:
            self.log.at("expect", ins, barrier, lanes, count)

    def await_copy(
        self, ins: Instruction, barrier: Mbarrier, count: int, copies: Sequence[Pending], lane: int | None = None
    ) -> None:
        """Record that a lane copies ``count`` bytes. The bytes arrive as late as possible, when no thread can run any
        more. A thread that has waited for these bytes knows that the lane has reached the time at which it issued the
        copy."""
        if lane is not None:
            row = np.zeros(self.clocks.columns, np.int64)
            row[self.clocks.column[lane]] = self.clocks.times(np.array([lane]))[0]
            barrier.reached = row if barrier.reached is None else np.maximum(row, barrier.reached)
        by, number = np.array([lane] if lane is not None else [], np.int64), 0
        if self.log is not None:
            number = self.log.next_copy()
            self.log.at("copy", ins, barrier, by, count, number)
        self.coming.append((ins, barrier, count, copies, by, number))

    def deliver(self) -> bool:
        """Let all bytes that are under way arrive; returns whether any bytes were under way."""
        coming, self.coming = self.coming, []
        self.rounds.add((int(self.threads.blocks[to.block]), to.offset, count) for _, to, count, _, _, _ in coming)
        for ins, barrier, count, copies, by, number in coming:
            if self.at.get(barrier.offset) is barrier:
                barrier.copies += [(barrier.phase, copy) for copy in copies]
                self.receive(ins, barrier, count, by, number)
        return bool(coming)

    def receive(self, ins: Instruction, barrier: Mbarrier, count: int, by: Ints, number: int = 0) -> None:
        """Count ``count`` bytes that have arrived. The bytes were stored by the lanes ``by``, or were copied by the
        copy that has this ``number`` in the log."""
        barrier.bytes -= count
        barrier.received += count
        barrier.brings = ins
        self._settle(barrier)
        if self.log is not None:
            self.log.at("bytes", ins, barrier, by, count, number)

    def bring(self, ins: Instruction, barrier: Mbarrier, lanes: Ints, count: int) -> None:
        """Count ``count`` bytes that these lanes stored; a thread that has waited for the phase sees the stores."""
        self._publish(barrier, lanes)
        self.receive(ins, barrier, count, lanes)

    def _settle(self, barrier: Mbarrier) -> None:
        """Complete the phase if nothing is missing, and store the state."""
        if not barrier.pending and not barrier.bytes and barrier.count:
            barrier.phase += 1
            barrier.pending = barrier.count
            barrier.in_all = (barrier.in_all[0] + barrier.expected, barrier.in_all[1] + barrier.received)
            barrier.expected = barrier.received = 0
            if barrier.arrived is not None:
                known = barrier.known
                barrier.known = barrier.arrived if known is None else np.maximum(known, barrier.arrived)
                barrier.arrived = None
        barrier.store()

    # ---- waits

    def acquire(self, ins: Instruction, barrier: Mbarrier, lanes: Ints) -> None:
        """Order these lanes of a block, which have waited for the phase before the current one, after that phase."""
        first, latest = int(lanes[0]), barrier.phase - 1
        for warp in np.unique(self.threads.tid[lanes] // 32).tolist():
            if latest < 0 or barrier.waited.get(warp) == latest:
                barrier.repeated[warp] = ins, barrier.repeated.get(warp, (ins, 0))[1] + 1
            elif barrier.waited.get(warp) == -1:
                barrier.repeated.pop(warp, None)
            barrier.waited[warp] = latest
        ready = [copy for phase, copy in barrier.copies if phase < barrier.phase]
        if ready:
            barrier.copies = [(phase, copy) for phase, copy in barrier.copies if phase >= barrier.phase]
            for copy in ready:
                copy.finish(int(self.clocks.stamp[first]))
            row = self.clocks.knowledge(lanes[:1])
            barrier.known = row if barrier.known is None else np.maximum(barrier.known, row)
            self.clocks.advance(lanes[:1])  # the barrier has published the copied bytes
        if barrier.reached is not None:
            self.clocks.outlive(np.unique(self.threads.of_block[lanes]), barrier.reached)
        if barrier.known is not None:
            self.clocks.learn(lanes, barrier.known)

    # ---- what may be the cause of a finding

    def report_waits(self, barrier: Mbarrier) -> None:
        """Report waits at a barrier that returned although no new phase had completed, because such waits may be the
        cause of a finding."""
        for warp in [warp for warp, phase in barrier.waited.items() if phase >= 0]:
            self.report_repeated(barrier, warp)

    def report_waits_of(self, lane: int) -> None:
        """Report waits of a lane's warp, at any barrier, that returned although no new phase had completed. A warp may
        wait in this way once before the first phase has completed, and this wait is not reported."""
        block, warp = int(self.threads.of_block[lane]), int(self.threads.tid[lane]) // 32
        for barrier in self.at.values():
            if barrier.block == block and warp in barrier.repeated:
                once = barrier.waited[warp] < 0 and barrier.repeated[warp][1] == 1
                if not once:
                    self.report_repeated(barrier, warp)

    def report_repeated(self, barrier: Mbarrier, warp: int) -> bool:
        """Report that a wait of a warp returned at once, although no new phase of the barrier had completed; returns
        whether there was such a wait."""
        if warp not in barrier.repeated:
            return False
        ins, _ = barrier.repeated[warp]
        lane = barrier.block * self.threads.threads + 32 * warp
        phase = barrier.waited[warp]
        why = f"because warp {warp} had waited for phase {phase} of {self.words(barrier)} before"
        if phase < 0:
            why = f"for the phase before the first of {self.words(barrier)}, where warp {warp} needs a later one"
        text = f"returned at once, {why}"
        self.report(WRONG_PARITY, ins, np.array([lane]), f"{text} (the parity must change with each phase)")
        return True

    def report_bytes(self, barrier: Mbarrier) -> None:
        """Report a barrier at which the number of bytes that arrived differs from the number that was expected."""
        if not barrier.bytes or (barrier.pending and barrier.bytes > 0):
            return
        lane = np.array([barrier.block * self.threads.threads])
        ins = barrier.expects or barrier.brings
        assert ins is not None
        expected, received = barrier.in_all[0] + barrier.expected, barrier.in_all[1] + barrier.received
        phases = f"in phases 0 to {barrier.phase}" if barrier.phase else "in its first phase"
        text = f"{self.words(barrier)} expects {expected:,} bytes {phases}, and {received:,} arrive"
        self.report(BYTE_COUNT, ins, lane, text)

    def report_left(self) -> None:
        """Report, at the end of blocks, barriers at which the number of bytes that arrived differs from the number that
        was expected."""
        for barrier in self.at.values():
            if barrier.intact():
                self.report_bytes(barrier)


# ---- waits that never end --------------------------------------------------------------------------------------------

#: An instruction that waits, its lanes, and for each lane the offset of its barrier and the parity for which it waits.
EndlessWait: TypeAlias = tuple[Instruction, Ints, Ints, Ints]


def report_endless(mbarriers: Mbarriers, waits: Sequence[EndlessWait], others: int) -> None:
    """Report waits that never end. ``others`` is the number of threads that wait at barriers of their blocks at the
    same time."""
    of_block, blocks = mbarriers.threads.of_block, set()
    for wait in waits if mbarriers.log is not None else ():
        note_waiting(mbarriers, "stuck", wait)
    for ins, lanes, offsets, parities in waits:
        block = int(of_block[lanes[0]])
        blocks.add(block)
        here = lanes[of_block[lanes] == block]
        meanwhile = [_who_waits(mbarriers, block, *wait) for wait in waits if wait[0] is not ins]
        meanwhile += [f"{others} threads wait at __syncthreads() or another barrier of their block"] * bool(others)
        also = "; ".join(filter(None, meanwhile))
        own = _who_waits(mbarriers, block, ins, lanes, offsets, parities)
        who = "1 thread of the block waits" if here.size == 1 else f"{here.size} threads of the block wait"
        text = f"{who} for ever: {own}{'. Meanwhile ' * bool(also)}{also}"
        mbarriers.report("endless wait", ins, here, text)
    for barrier in mbarriers.at.values():
        if barrier.block in blocks:
            mbarriers.report_bytes(barrier)
            mbarriers.report_waits(barrier)


def note_waiting(mbarriers: Mbarriers, what: str, wait: EndlessWait) -> None:
    """Record in the event log that lanes wait, each at its barrier; ``what`` says whether the waits end."""
    ins, lanes, offsets, parities = wait
    assert mbarriers.log is not None
    for offset in np.unique(offsets).tolist():
        some = offsets == offset
        if offset in mbarriers.at:
            mbarriers.log.at(what, ins, mbarriers.at[offset], lanes[some], int(parities[np.argmax(some)]))


def _who_waits(mbarriers: Mbarriers, block: int, ins: Instruction, lanes: Ints, offsets: Ints, parities: Ints) -> str:
    """Which warps of a block wait for which phases at one instruction."""
    here, texts = mbarriers.threads.of_block[lanes] == block, []
    for offset in np.unique(offsets[here]).tolist():
        some = here & (offsets == offset)
        warps = np.unique(mbarriers.threads.tid[lanes[some]] // 32).tolist()
        wait = "waits" if len(warps) == 1 else "wait"
        where = f"at {ins.place(ins)}{_caller(ins)} for"
        missing = _missing(mbarriers, mbarriers.at[offset], int(parities[np.argmax(some)]), warps[0])
        texts.append(f"{_warps(warps)} {wait} {where} {missing}")
    more = f"; and {len(texts) - 4} more barriers" if len(texts) > 4 else ""
    return "; ".join(texts[:4]) + more


def _missing(mbarriers: Mbarriers, barrier: Mbarrier, parity: int, warp: int) -> str:
    """What the current phase of a barrier lacks, and phases that a warp has missed."""
    text = f"phase {barrier.phase} (parity {parity}) of {mbarriers.words(barrier)}, which lacks "
    text += f"{barrier.pending} of {barrier.count} arrivals" if barrier.pending else ""
    if barrier.bytes:
        text += " and " if barrier.pending else ""
        text += f"{barrier.bytes:,} bytes" if barrier.bytes > 0 else "nothing, but too many bytes have arrived"
        text += f" ({barrier.expected:,} expected, {barrier.received:,} arrived)"
    last = barrier.waited.get(warp, -1)
    if last < barrier.phase - 1:
        waited = f"for none after phase {last}" if last >= 0 else "for none"
        text += f"; of its {barrier.phase} completed phases warp {warp} waited {waited} (overtaken, or a wrong parity)"
    return text


def _caller(ins: Instruction) -> str:
    """The line from which the function of an instruction is called, as text; empty if it was not inlined."""
    return f" (called from line {ins.inlined_at.line})" if ins.inlined_at and ins.inlined_at.line else ""


def _warps(numbers: list[int]) -> str:
    """``warp 3``, or ``warps 4 to 7``."""
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"warps {numbers[0]} to {numbers[-1]}"
    return f"warps {', '.join(map(str, numbers))}"
