"""Instructions on barriers in shared memory that count arrivals and bytes (``mbarrier``), and stores whose completion
such a barrier counts.

The state of the barriers is stored in ``machine.mbarriers`` (PTX ISA 9.7.13.15). On hardware, a wait for an mbarrier
may return before the phase has completed. In the simulator, the threads that wait are parked until their phase has
completed. ``st.async`` and ``red.async`` store to another block of the cluster (9.7.9.12). The simulator stores the
bytes of ``st.async`` and ``red.async`` at once. A thread is ordered after such a store when it has waited for the phase
of the barrier; a read before that wait is a race.
"""

# ruff: noqa: ARG001 - all actions of memory accesses have the same parameters

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ..assembly.instructions import Instruction
from ..counters.work import BARRIER_WORK
from ..machine.lanes import Lanes
from ..machine.mbarriers import PARITY, PENDING, EndlessWait, Mbarrier
from ..machine.memory import Region
from ..machine.spaces import WINDOW
from ..machine.values import Array, Bools, Ints, per_lane
from ._table import TABLE, Step, UnknownInstruction, destination, size_of, step
from .access import Address, address, note_update, note_work, note_write, visit

# ---- barriers --------------------------------------------------------------------------------------------------------

_PLACE = {"shared", "cta", "cluster", "b64", "sem", "scope"}
_ORDER = {"release", "relaxed", "acquire", "cta", "cluster"}
#: The modifiers that each operation allows, and its least and most operands.
_FORMS = {
    "init": (set(), 2, 2),
    "inval": (set(), 1, 1),
    "expect_tx": ({"relaxed"}, 2, 2),
    "complete_tx": ({"relaxed"}, 2, 2),
    "arrive": ({"expect_tx", "noComplete", *_ORDER}, 2, 3),
    "arrive_drop": ({"expect_tx", "noComplete", *_ORDER}, 2, 3),
    "test_wait": ({"parity", *_ORDER}, 3, 3),
    "try_wait": ({"parity", *_ORDER}, 3, 4),
    "pending_count": (set(), 2, 2),
}

#: A function that does what an instruction's lanes do at one barrier.
At = Callable[[Mbarrier, Ints], None]


def by_barrier(offsets: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each distinct offset, and the positions of the accesses to this offset."""
    if offsets.size == 1 or (offsets == offsets[0]).all():
        yield int(offsets[0]), np.arange(offsets.size)
        return
    order = np.argsort(offsets, kind="stable")
    starts = np.flatnonzero(np.diff(offsets[order])) + 1
    for places in np.split(order, starts):
        yield int(offsets[places[0]]), places


def at_barriers(ins: Instruction, lanes: Lanes, space: str, where: Address, act: At) -> Step:
    """Make a step that calls ``act`` for each existing barrier to which active lanes refer."""

    def use(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        if region.name != "shared":
            raise UnknownInstruction(ins, f"has its barrier in {region.name}, not in shared memory")
        active = lanes.every if sel is None else sel
        note_update(ins, lanes, region, offsets, 8, active)
        for offset, places in by_barrier(offsets):
            barrier = lanes.mbarriers.find(ins, region, offset, active[places])
            if barrier is not None:
                act(barrier, active[places])

    return visit(ins, lanes, space, "", 8, where, use)


def _operation(ins: Instruction) -> str:
    """The operation, its modifiers checked."""
    name = ins.parts[1] if len(ins.parts) > 1 else ""
    if name not in _FORMS:
        raise UnknownInstruction(ins)
    allowed, least, most = _FORMS[name]
    if set(ins.parts[2:]) - allowed - _PLACE or ins.parts[-1] != "b64" or not least <= len(ins.operands) <= most:
        raise UnknownInstruction(ins, "is a form of mbarrier that is not supported")
    return name


def _place(ins: Instruction, lanes: Lanes, operand: str) -> tuple[str, Address]:
    """Space and address of the barrier that an operand names."""
    space = "shared" if "shared" in ins.parts else ""
    return space, address(operand, lanes, ins, bool(space))


def _numbers(source: Array, chosen: Ints) -> Ints:
    """The values of an operand for these lanes."""
    return per_lane(source, chosen).astype(np.int64)


@step("mbarrier", ("b64",))
def _mbarrier(ins: Instruction, lanes: Lanes) -> Step:
    """An operation on a barrier, counted once a warp; how often a wait is repeated depends on the time, so waits are not."""
    name = _operation(ins)
    operate = _operated(ins, lanes, name)
    if name in ("test_wait", "try_wait", "pending_count"):
        return operate

    def counted(sel: Ints | None) -> None:
        active = lanes.every if sel is None else sel
        first = np.flatnonzero(np.diff(lanes.base_warp[active], prepend=-1))
        note_work(ins, lanes, BARRIER_WORK, active[first])
        operate(sel)

    return counted


def _operated(ins: Instruction, lanes: Lanes, name: str) -> Step:
    if name in ("arrive", "arrive_drop"):
        return _arrive(ins, lanes, drop=name == "arrive_drop")
    if name in ("test_wait", "try_wait"):
        return _wait(ins, lanes)
    if name == "pending_count":
        return _pending_count(ins, lanes)
    if name == "init":
        return _init(ins, lanes)
    if name == "inval":

        def invalidate(barrier: Mbarrier, some: Ints) -> None:
            lanes.mbarriers.invalidate(ins, barrier, some)

        return at_barriers(ins, lanes, *_place(ins, lanes, ins.operands[0]), invalidate)
    count = lanes.source(ins.operands[1], "u32", ins)

    def bytes_(barrier: Mbarrier, some: Ints) -> None:
        total = int(_numbers(count, some).sum())
        if name == "expect_tx":
            lanes.mbarriers.expect(ins, barrier, total, some)
        else:
            lanes.mbarriers.receive(ins, barrier, total, some)

    return at_barriers(ins, lanes, *_place(ins, lanes, ins.operands[0]), bytes_)


def _init(ins: Instruction, lanes: Lanes) -> Step:
    count = lanes.source(ins.operands[1], "u32", ins)

    def make(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        if region.name != "shared":
            raise UnknownInstruction(ins, f"has its barrier in {region.name}, not in shared memory")
        active = lanes.every if sel is None else sel
        settle = note_write(ins, lanes, region, offsets, 8, sel)
        if settle is not None:
            settle(np.zeros(offsets.size, bool))
        for offset, lane, number in zip(offsets.tolist(), active.tolist(), _numbers(count, active), strict=True):
            lanes.mbarriers.init(ins, region, offset, int(number), lane)

    space, where = _place(ins, lanes, ins.operands[0])
    return visit(ins, lanes, space, "", 8, where, make)


def _arrive(ins: Instruction, lanes: Lanes, drop: bool) -> Step:
    expects = "expect_tx" in ins.parts
    state = None if ins.operands[0] == "_" else destination(lanes, ins, ins.operands[0], "b64")[0]
    extra = lanes.source(ins.operands[2], "u32", ins) if len(ins.operands) > 2 else None
    if expects and extra is None:
        raise UnknownInstruction(ins, "names no number of bytes")
    # The order of accesses to tensor memory also follows from relaxed operations (PTX ISA 9.7.16.6.4).
    release = "relaxed" not in ins.parts or lanes.uses_tensor_memory

    def arrive(barrier: Mbarrier, some: Ints) -> None:
        numbers = np.ones(some.size, np.int64) if extra is None or expects else _numbers(extra, some)
        amounts = _numbers(extra, some) if extra is not None and expects else None
        # All at once, unless the phase completes in between.
        turns = [np.arange(some.size)] if numbers.sum() <= barrier.pending else list(np.arange(some.size)[:, None])
        for turn in turns:
            if state is not None:
                before = np.int64(barrier.word()) - (np.cumsum(numbers[turn]) - numbers[turn] << PENDING)
                state[some[turn]] = before.astype(np.uint64)
            if amounts is not None:
                lanes.mbarriers.expect(ins, barrier, int(amounts[turn].sum()), some[turn])
            if drop:
                lanes.mbarriers.drop(barrier, int(numbers[turn].sum()))
            lanes.mbarriers.arrive(ins, barrier, some[turn], int(numbers[turn].sum()), release)

    return at_barriers(ins, lanes, *_place(ins, lanes, ins.operands[1]), arrive)


def _pending_count(ins: Instruction, lanes: Lanes) -> Step:
    out = destination(lanes, ins, ins.operands[0], "u32")[0]
    state = lanes.source(ins.operands[1], "b64", ins)

    def count(sel: Ints | None) -> None:
        word = state if sel is None or state.ndim == 0 else state[sel]
        out[slice(None) if sel is None else sel] = word >> np.uint64(PENDING) & np.uint64((1 << 20) - 1)

    return count


def _parity(ins: Instruction, lanes: Lanes) -> Callable[[Ints], Ints]:
    """The parity of the phase that lanes wait for."""
    if "parity" in ins.parts:
        parity = lanes.source(ins.operands[2], "u32", ins)
        return lambda some: _numbers(parity, some) & 1
    state = lanes.source(ins.operands[2], "u64", ins)
    return lambda some: _numbers(state, some) >> PARITY & 1


def _wait(ins: Instruction, lanes: Lanes) -> Step:
    out, parity = destination(lanes, ins, ins.operands[0], "pred")[0], _parity(ins, lanes)
    acquire = "relaxed" not in ins.parts or lanes.uses_tensor_memory

    def wait(barrier: Mbarrier, some: Ints) -> None:
        done = np.array([barrier.passed(p) for p in (0, 1)])[parity(some)]
        out[some] = done
        if lanes.mbarriers.log is not None and done.any():
            lanes.mbarriers.log.at("pass", ins, barrier, some[done], barrier.phase - 1 & 1)
        if done.any() and acquire:
            lanes.mbarriers.acquire(ins, barrier, some[done])

    look = at_barriers(ins, lanes, *_place(ins, lanes, ins.operands[1]), wait)

    def run(sel: Ints | None) -> None:
        out[slice(None) if sel is None else sel] = True  # where there is no barrier, which was reported
        look(sel)

    return run


class Wait:
    """A wait instruction. ``Wait`` tells which lanes can continue after a wait instruction. ``Wait`` reports no
    findings and changes no state."""

    def __init__(self, ins: Instruction, lanes: Lanes) -> None:
        _operation(ins)
        self.ins, self.lanes = ins, lanes
        self.space, self.where = _place(ins, lanes, ins.operands[1])
        self.parity = _parity(ins, lanes)
        self.guard = (lanes.source(ins.guard[0], "pred", ins), ins.guard[1]) if ins.guard else None

    def offsets(self, some: Ints) -> Ints:
        """Return the offsets of these lanes' barriers in the shared memory of all blocks."""
        shared = self.lanes.shared
        a = self.where(some)
        return shared.offsets(shared.region, a if self.space else a - WINDOW["shared"], some)

    def passed(self, some: Ints) -> Bools:
        """Return which of these lanes can continue, because their phase has completed or because their address has no
        barrier."""
        offsets, parity = self.offsets(some), self.parity(some)
        done = np.ones(some.size, bool)
        for offset, places in by_barrier(offsets):
            barrier = self.lanes.mbarriers.at.get(offset)
            if barrier is not None and barrier.intact():
                done[places] = np.array([barrier.passed(p) for p in (0, 1)])[parity[places]]
        if self.guard is not None:
            done |= self.guard[0][some] == self.guard[1]
        return done

    def stuck(self, some: Ints) -> EndlessWait:
        """Return a description of what these lanes wait for: the instruction, the lanes, the offsets of their barriers,
        and the parities."""
        return self.ins, some, self.offsets(some), self.parity(some)


# ---- stores to other blocks that complete at a barrier ---------------------------------------------------------------

_REMOTE_FORM = {"async", "shared", "cluster", "mbarrier", "complete_tx", "bytes"}
_REMOTE_OPERATIONS = {
    "inc": ("u32",), "dec": ("u32",), "min": ("u32", "s32"), "max": ("u32", "s32"), "add": ("u32", "s32", "u64"),
    "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip


@step("st.async", ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"))
def _store(ins: Instruction, lanes: Lanes) -> Step:
    return _remote(ins, lanes, {"weak", "v2", "v4"})


@step("red.async", ("u32", "s32", "u64", "b32"))
def _reduce(ins: Instruction, lanes: Lanes) -> Step:
    if not any(ins.parts[-1] in kinds for name, kinds in _REMOTE_OPERATIONS.items() if name in ins.parts):
        raise UnknownInstruction(ins)
    return _remote(ins, lanes, {"relaxed", *_REMOTE_OPERATIONS})


def _remote(ins: Instruction, lanes: Lanes, allowed: set[str]) -> Step:
    """The plain access, and then its bytes at the barrier, which must be in the same block."""
    flags, kind = ins.parts[1:-1], ins.parts[-1]
    needed = {"shared", "cluster", "complete_tx", "bytes"} <= set(flags)
    if set(flags) - _REMOTE_FORM - allowed or not needed or len(ins.operands) != 3:
        raise UnknownInstruction(ins)
    kept = [flag for flag in flags if flag in allowed - {"weak", "relaxed"}]
    order = [flag for flag in flags if flag == "relaxed"]
    opcode = ".".join([ins.parts[0], *order, "shared::cluster", *kept, kind])
    store = TABLE[ins.parts[0], kind](replace(ins, opcode=opcode, operands=ins.operands[:2]), lanes)
    nbytes = size_of(kind) * next((int(flag[1:]) for flag in flags if flag in ("v2", "v4")), 1)

    def complete(barrier: Mbarrier, some: Ints) -> None:
        lanes.mbarriers.bring(ins, barrier, some, nbytes * some.size)

    arrive = at_barriers(ins, lanes, "shared", address(ins.operands[2], lanes, ins, True), complete)

    def run(sel: Ints | None) -> None:
        store(sel)
        arrive(sel)

    return run
