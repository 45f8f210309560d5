"""Instructions that access memory in every space: loads, stores, fences, atomics and reductions (PTX ISA 9.7.9,
9.7.13).

The lanes of a warp execute an atomic one after another, in order of thread.
"""

# ruff: noqa: ARG001 - all actions of memory accesses have the same parameters

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..assembly.instructions import SIZES, Instruction, elements_of, ptx_integer
from ..counters.work import UnitWork
from ..findings import BY_THE_LETTER, SURE, VOLATILE
from ..machine.clocks import OBSERVED
from ..machine.lanes import Lanes
from ..machine.memory import Region
from ..machine.shadow import by_access
from ..machine.spaces import WINDOW
from ..machine.values import DTYPES, Array, Ints
from ._table import HALVES, Compute, Step, UnknownInstruction, apply_ufunc, destination, size_of, step
from .floating import halves, on_double, on_halves, on_single
from .rounding import hand_on, odd_sum

# ---- loads, stores and fences ----------------------------------------------------------------------------------------

_SPACES = ("global", "shared", "local", "const", "param")
#: The types of loads and stores.
TYPES = (*(f"{k}{b}" for k in "bus" for b in (8, 16, 32, 64)), "f32", "f64")
#: Modifiers that do not change a result: caching hints, and the scope in which an access is coherent.
HINTS = {
    "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1", "L2", "evict_first", "evict_last", "evict_normal",
    "evict_unchanged", "no_allocate", "64B", "128B", "256B", "cta", "gpu", "sys", "cluster", "weak", "level",
    "cache_hint", "entry", "func",
}  # fmt: skip
_VECTORS = ("v2", "v4", "v8")
_ATOMIC = {"volatile", "relaxed", "acquire", "release", "mmio"}

Address = Callable[["Ints | None"], Ints]


def address(text: str, lanes: Lanes, ins: Instruction, narrow: bool) -> Address:
    """Parse ``[%rd1+8]``, ``[symbol]`` or ``[symbol+4]`` into a function that returns the addresses of the active
    lanes; ``narrow`` allows a 32-bit register."""
    found = re.fullmatch(r"\[\s*([^\s+\-]+|-?\d\w*)\s*(?:([+-]\s*-?\s*\w+))?\s*\]", text)
    if not found:
        raise UnknownInstruction(ins, f"has an address that is not understood: {text}")
    base, offset = found[1], ptx_integer((found[2] or "0").replace(" ", "").replace("+-", "-").removeprefix("+"))
    if offset is None or not -(1 << 62) < offset < 1 << 62:
        raise UnknownInstruction(ins, f"has an address that is not understood: {text}")
    if not lanes.is_register(base):
        constant = ptx_integer(base)
        number = (lanes.address_of(base, ins) if constant is None else constant) + offset
        if not 0 <= number < 1 << 63:
            raise UnknownInstruction(ins, f"has an address out of range: {text}")
        fixed = np.full(lanes.size, number, np.int64)
        return lambda sel: fixed if sel is None else fixed[: sel.size]
    width = lanes.width(base, ins)
    source = lanes.source(base, "u32" if narrow and width == 4 else "s64" if width == 8 else "u32", ins)
    if source.dtype == np.int64 and offset == 0:
        return lambda sel: source if sel is None else source[sel]
    add = np.int64(offset)
    return lambda sel: (source if sel is None else source[sel]).astype(np.int64) + add


Action = Callable[[Region, Ints, "Ints | None", "Ints | None"], None]


def visit(ins: Instruction, lanes: Lanes, space: str, kind: str, nbytes: int, where: Address, action: Action) -> Step:
    """Make a step that calls ``action(region, offsets, at, lanes)`` for every region that the active lanes access.

    ``at`` are the positions, among the active lanes, of the lanes that access the region. ``at`` and ``lanes`` are None
    if all active lanes access it. For generic addresses, the step finds the memory space of each address. If ``kind``
    is not empty, the observer receives the access.
    """

    def within(name: str, a: Ints, at: Ints | None, sel: Ints | None) -> None:
        if observer is not None and kind and name not in ("param", "argument"):
            warp, lane = (lanes.warp, lanes.lane) if sel is None else (lanes.warp[sel], lanes.lane[sel])
            observer.on_access(name, kind, ins, warp, lane, a, nbytes)
        for region, offsets, some in lanes.spaces[name].pieces(ins, a, nbytes, sel):
            place = at if some is None else some if at is None else at[some]
            chosen = sel if some is None else some if sel is None else sel[some]
            action(region, offsets, place, chosen)

    observer = lanes.launch.options.observer
    memory = next((o for o in ins.operands if o.startswith("[")), "")
    if space == "param" and re.split(r"[+\s]", memory[1:-1].strip())[0] in lanes.windows["argument"].at:
        space = "argument"  # an argument of a call: every thread has its own

    def run(sel: Ints | None) -> None:
        a = where(sel)
        if space:
            within(space, a, None, sel)
            return
        windows = a >> 56
        for number in np.unique(windows):
            name = ("global", "shared", "local", "const", "param")[number] if 0 <= number < 5 else "global"
            mine = windows == number
            if mine.all():
                within(name, a - WINDOW.get(name, 0), None, sel)
            else:
                at = np.flatnonzero(mine)
                within(name, a[at] - WINDOW.get(name, 0), at, at if sel is None else sel[at])

    return run


def note_work(ins: Instruction, lanes: Lanes, work: UnitWork, sel: Ints) -> None:
    """Report the work of an instruction in a unit other than the load/store pipe to the observer, once for each of
    these lanes."""
    if lanes.launch.options.observer is not None:
        lanes.launch.options.observer.on_work(work, ins, lanes.warp[sel])


def note_read(
    ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None, *, padded: int = 0
) -> None:
    """Pass a read to the shadow, and report what the shadow finds.

    ``padded``, if not 0, is the size of elements that may contain padding. An element that may contain padding counts
    as unwritten only if none of its bytes was written.
    """
    shadow = region.shadow
    if shadow is None:
        return
    cells, now = shadow.cells(offsets, nbytes, clock_of(lanes, sel))
    busy = lanes.transfers.touched(ins, region, cells, offsets, sel, writes=False)
    unwritten, race = shadow.read(cells, now, ins.index)
    if padded and unwritten.any():
        unwritten = np.asarray(unwritten.reshape(offsets.size, nbytes // padded, -1).all(axis=2))
    if unwritten.any() and shadow.starts_empty:
        lanes.reports.unwritten_read(ins, region, sel, by_access(unwritten, offsets), offsets)
    if race.any():
        racing = by_access(race, offsets) if busy is None else by_access(race, offsets) & ~busy
        if racing.any():
            lanes.reports.race(ins, region, sel, racing, offsets)


def note_write(
    ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None,
    *, changes: NDArray[np.bool_] | None = None,
) -> Callable[[NDArray[np.bool_]], None] | None:  # fmt: skip
    """Pass a write to the shadow. ``changes`` marks the accesses that store another value than the memory already has
    (None: all accesses).

    Returns a function that reports races and must be called after the store; returns None if there are no races.
    """
    shadow = region.shadow
    if shadow is None:
        return None
    cells, now = shadow.cells(offsets, nbytes, clock_of(lanes, sel))
    busy = lanes.transfers.touched(ins, region, cells, offsets, sel, writes=True)
    coming = shadow.being_copied(cells)
    if coming is not None:
        lanes.reports.overwritten_copy(ins, region, sel, by_access(coming, offsets), offsets)
    before, together = shadow.write(cells, np.broadcast_to(now, cells.shape), ins.index)
    if not (before.any() or together.any()):
        return None
    earlier, same = by_access(before, offsets), by_access(together, offsets)
    if busy is not None:
        earlier &= ~busy

    def settle(lost: NDArray[np.bool_]) -> None:
        """Report races after the store; ``lost`` marks stores whose value was overwritten by the value of another
        thread."""
        wrong = (earlier if changes is None else earlier & changes) | (same & lost)
        if wrong.any():
            lanes.reports.race(ins, region, sel, wrong, offsets)

    return settle


def note_update(ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None) -> None:
    """Pass an atomic or volatile write to the shadow, and report the races that it finds."""
    if region.shadow is not None:
        if region.shadow.across_blocks and ins.parts[0] in ("atom", "red") and "exch" not in ins.parts:
            note_unwritten(ins, lanes, region, offsets, nbytes, sel)
        race = region.shadow.update(*region.shadow.cells(offsets, nbytes, clock_of(lanes, sel)), ins.index)
        if race.any():
            lanes.reports.race(ins, region, sel, by_access(race, offsets), offsets)


def _form(ins: Instruction) -> tuple[str, str, int, bool]:
    """Space, type, vector length and whether the access is volatile or ordered."""
    flags = ins.parts[1:-1]
    space = next((f for f in flags if f in _SPACES), "")
    vector = int(next((f[1] for f in flags if f in _VECTORS), "1"))
    unknown = set(flags) - {*HINTS, *_ATOMIC, *_SPACES, *_VECTORS}
    # 32 bytes, from compute capability 10.0 on, are loaded from and stored to global memory alone.
    if unknown or vector * SIZES[ins.parts[-1]] > (32 if space == "global" else 16):
        raise UnknownInstruction(ins, "is a form of memory access that is not supported")
    return space, ins.parts[-1], vector, bool(_ATOMIC & set(flags))


def _raw(kind: str, wide: int) -> str:
    """The integer type that moves a value between memory and a register; signed ones extend their sign."""
    return kind if kind[0] == "s" and SIZES[kind] < wide else f"u{8 * SIZES[kind]}"


#: Predicates, each with a value. The condition holds if at least one predicate has its value. None means no condition.
Conditions = Sequence[tuple[Array, bool]] | None


def _wanted(ins: Instruction, lanes: Lanes, names: Sequence[str]) -> list[tuple[int, int, bool, Conditions]]:
    """The elements of a vector load whose values are used, as runs: first element, number of elements, whether they are
    only copied, and the conditions under which they are used."""
    demands = [(lanes.demand.of(ins, name), lanes.demand.copied(name)) for name in names]
    found: list[tuple[int, int, bool, Conditions]] = []
    for (demand, copied), run in groupby(range(len(names)), key=lambda i: demands[i]):
        places = list(run)
        if demand is None:
            found.append((places[0], len(places), copied, None))
        elif demand:
            conditions = [(lanes.source(name, "pred", ins), value) for name, value in demand]
            found.append((places[0], len(places), copied, conditions))
    return found


def note_wanted(
    ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None,
    *, padded: int, conditions: Conditions,
) -> None:  # fmt: skip
    """Do what ``note_read`` does, but only for the lanes for which a condition holds."""
    if conditions is None:
        note_read(ins, lanes, region, offsets, nbytes, sel, padded=padded)
        return
    used = np.logical_or.reduce([(p if sel is None else p[sel]) == value for p, value in conditions])
    if used.any():
        some = np.flatnonzero(used) if sel is None else sel[used]
        note_read(ins, lanes, region, offsets[used], nbytes, some, padded=padded)


@step("ld", TYPES)
@step("ldu", TYPES)
def _ld(ins: Instruction, lanes: Lanes) -> Step:
    space, kind, vector, atomic = _form(ins)
    names, size = elements_of(ins.operands[0]), SIZES[ins.parts[-1]]
    if len(names) != vector:
        raise UnknownInstruction(ins, f"names {len(names)} registers instead of {vector}")
    outs = []
    for name in names:
        wide = lanes.width(name, ins) if name != "_" else size
        outs.append(destination(lanes, ins, name, _raw(kind, wide)))
    dtype, shift, wanted = outs[0][1], size.bit_length() - 1, _wanted(ins, lanes, names)

    def load(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        if region.shadow is not None:
            if atomic:
                lanes.launch.has_observed_others[lanes.blocks] |= OBSERVED
                note_volatile(ins, lanes, region, offsets, size * vector, sel)
            elif ins.index in lanes.compared:
                note_unwritten(ins, lanes, region, offsets, size * vector, sel)
            else:
                for first, count, copied, conditions in wanted:
                    at_first, padded = offsets + first * size, size if copied else 0
                    note_wanted(ins, lanes, region, at_first, count * size, sel, padded=padded, conditions=conditions)
        index, memory = offsets >> shift, region.view(dtype)
        for i, (out, _, wider) in enumerate(outs):
            place = index + i if i else index
            if sel is None and not wider and out.flags.c_contiguous:
                np.take(memory, place, out=out, mode="clip")
            else:
                out[slice(None) if sel is None else sel] = memory[place]

    return visit(ins, lanes, space, "ld", size * vector, address(ins.operands[1], lanes, ins, space == "shared"), load)


@step("ld", ("b128",))
def _ld_wide(ins: Instruction, lanes: Lanes) -> Step:
    space, _, vector, atomic = _form(ins)
    if vector > 1 or atomic:
        raise UnknownInstruction(ins, "is a form of memory access that is not supported")
    out = lanes.wide_register(ins.operands[0], ins)

    def load(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        note_read(ins, lanes, region, offsets, 16, sel)
        out[slice(None) if sel is None else sel] = region.view(np.dtype(np.uint64))[
            (offsets >> 3)[:, None] + np.arange(2)
        ]

    return visit(ins, lanes, space, "ld", 16, address(ins.operands[1], lanes, ins, space == "shared"), load)


@step("st", TYPES)
def _st(ins: Instruction, lanes: Lanes) -> Step:
    space, _, vector, atomic = _form(ins)
    names, size = elements_of(ins.operands[1]), SIZES[ins.parts[-1]]
    if space == "const":
        raise UnknownInstruction(ins, "stores to constant memory")
    if len(names) != vector:
        raise UnknownInstruction(ins, f"names {len(names)} registers instead of {vector}")
    raw = f"u{8 * size}"
    values = [lanes.source(n, raw, ins) for n in names]
    dtype, shift = DTYPES[raw], size.bit_length() - 1

    def store(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        index, memory = offsets >> shift, region.view(dtype)
        stored = [v if v.ndim == 0 or sel is None else v[sel] for v in values]
        settle = None
        if region.shadow is not None:
            changes = np.zeros(offsets.size, bool)
            for i, v in enumerate(stored):
                changes |= memory[index + i] != v
            if atomic:
                note_update(ins, lanes, region, offsets, size * vector, sel)
                note_volatile(ins, lanes, region, offsets, size * vector, sel, changes=changes)
            else:
                settle = note_write(ins, lanes, region, offsets, size * vector, sel, changes=changes)
        for i, v in enumerate(stored):
            memory[index + i] = v
        if settle is not None:
            lost = np.zeros(offsets.size, bool)
            for i, v in enumerate(stored):
                lost |= memory[index + i] != v
            settle(lost)

    return visit(ins, lanes, space, "st", size * vector, address(ins.operands[0], lanes, ins, space == "shared"), store)


@step("membar")
@step("fence")
def _fence(ins: Instruction, lanes: Lanes) -> Step:
    """Check the form of a fence. The effect on the clocks of one that is not between proxies is in ``segments``."""
    flags = set(ins.parts[1:])
    if "proxy" in flags or "mbarrier_init" in flags:
        allowed = {"proxy", "async", "alias", "generic", "global", "shared", "cta", "cluster", "tensormap", "acquire",
                   "release", "gpu", "sys", "mbarrier_init", "sync_restrict"}  # fmt: skip
        if flags - allowed:
            raise UnknownInstruction(ins)
        if "mbarrier_init" in flags:
            return lanes.mbarriers.fence
        if "tensormap" in flags:
            return _fence_tensor_map(ins, lanes)
        return lanes.clocks.fence_proxy if "async" in flags else lambda sel: None
    restricted = {"sync_restrict", "shared"} if "sync_restrict" in flags else set()
    if flags - {"gl", "sys", "cta", "gpu", "cluster", "sc", "acq_rel", "acquire", "release"} - restricted:
        raise UnknownInstruction(ins)
    return lambda sel: None


def _fence_tensor_map(ins: Instruction, lanes: Lanes) -> Step:
    """``fence.proxy.tensormap::generic``: a release of what these lanes know, or an acquire of the map at an address."""
    edits = lanes.tensor_map_edits
    if "release" in ins.parts and not ins.operands:
        return lambda sel: edits.release(lanes.every if sel is None else sel)
    if "acquire" not in ins.parts or len(ins.operands) != 2:
        raise UnknownInstruction(ins)
    where = address(ins.operands[0], lanes, ins, narrow=False)
    return lambda sel: edits.acquire(lanes.every if sel is None else sel, where(sel))


# ---- lock free -------------------------------------------------------------------------------------------------------
# What the shadow is told of accesses by which threads cooperate without a lock: volatile ones, and loads before a swap.


def clock_of(lanes: Lanes, sel: Ints | None) -> Ints:
    """Return the stamps of the active lanes."""
    return lanes.clocks.stamp if sel is None else lanes.clocks.stamp[sel]


def note_unwritten(
    ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None
) -> None:
    """Pass a read that cannot race to the shadow, and report only bytes that were never written."""
    shadow = region.shadow
    if shadow is not None and shadow.starts_empty:
        cells, _ = shadow.cells(offsets, nbytes, clock_of(lanes, sel))
        unwritten = shadow.writer[cells] == 0
        if unwritten.any():
            lanes.reports.unwritten_read(ins, region, sel, by_access(unwritten, offsets), offsets)


def note_volatile(
    ins: Instruction, lanes: Lanes, region: Region, offsets: Ints, nbytes: int, sel: Ints | None,
    *, changes: NDArray[np.bool_] | None = None,
) -> None:  # fmt: skip
    """Pass a volatile access to the shadow of shared memory, and report what it finds; the access is a write if there
    are ``changes``."""
    shadow = region.shadow
    if shadow is None or shadow.across_blocks or "volatile" not in ins.parts:
        return
    cells, now = shadow.cells(offsets, nbytes, clock_of(lanes, sel))
    if ins.index in lanes.polling:
        shadow.poll(cells)
        return
    race, within_warp = shadow.volatile(cells, now, ins.index, changes is not None)
    bad = by_access(race, offsets)
    bad = bad if changes is None else bad & changes
    if bad.any():
        grade = BY_THE_LETTER if within_warp else SURE
        lanes.reports.race(ins, region, sel, bad, offsets, VOLATILE, grade)


# ---- atomics and reductions ------------------------------------------------------------------------------------------

_ATOMIC_KINDS = ("u32", "s32", "u64", "s64", "b16", "b32", "b64", "f32", "f64", *HALVES)
_ATOMIC_SCOPES = {"relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "cluster"}
_ATOMIC_HINTS = {"ftz", "noftz", "L2", "cache_hint"}
_UFUNCS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _swap(old: Array, b: Array, c: Array) -> Array:
    return np.where(old == b, c, old)


#: For each operation, a function that computes the new value of a cell from the old one and the operands.
UPDATES: dict[str, Callable[..., Array]] = {
    **_UFUNCS,
    "exch": lambda old, b: b,
    "cas": _swap,
    "inc": lambda old, b: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}


def _atomic_form(ins: Instruction) -> tuple[str, str]:
    """Space ("" for generic) and operation."""
    kind, flags = ins.parts[-1], set(ins.parts[1:-1])
    space = next((f for f in ("global", "shared") if f in flags), "")
    operation = next((f for f in UPDATES if f in flags), "")
    unknown = flags - _ATOMIC_SCOPES - _ATOMIC_HINTS - {space, operation}
    only = {"b16": "cas", "f32": "add", "f64": "add", **dict.fromkeys(HALVES, "add")}.get(kind, operation)
    if not operation or unknown or operation != only or (operation in ("inc", "dec") and kind != "u32"):
        raise UnknownInstruction(ins, "is a form of atomic that is not supported")
    return space, operation


#: A function that computes new values from the old ones and those that are added, compared or combined.
Update = Callable[[Array, Array], Array]


def float_sum(kind: str, shared: bool) -> Update:
    """Add floats as an atomic does. In shared memory, the arithmetic units of the multiprocessor add the floats of an
    atomic. In global memory, the cache adds the floats of an atomic: it flushes subnormal f32 numbers to zero (PTX ISA
    9.7.13.5) and does not make a signalling f64 NaN quiet."""

    def unquieted(out: Array, a: Array, b: Array) -> None:
        np.add(a, b, out=out)
        hand_on(out, [a, b], quiet=False)

    add: Compute
    if kind in HALVES:
        add = on_halves(kind, set(), odd_sum)
    elif kind == "f32":
        add = on_single(set() if shared else {"ftz"}, apply_ufunc(np.add))
    else:
        add = on_double(set(), apply_ufunc(np.add)) if shared else unquieted

    def compute(old: Array, b: Array) -> Array:
        out = np.empty(old.shape, old.dtype)
        add(out, old, b)
        return out

    return compute


def reduction(operation: str, kind: str) -> Update:
    """Return the operation that a reduction by the copy engine applies to numbers of a type."""
    if operation == "add" and kind in ("f32", "f64", *HALVES):
        return float_sum(kind, shared=False)
    if kind not in HALVES:
        return UPDATES[operation]

    def extreme(old: Array, new: Array) -> Array:
        a, b = halves(old, kind), halves(new, kind)
        better = b < a if operation == "min" else b > a
        return np.where(better | np.isnan(a), new, old)

    return extreme


def _sums_are_normal(kind: str, *values: Array) -> bool:
    """Whether no sum of these floats can be subnormal (all are whole multiples of 2^-123) or NaN (they are finite and far
    from overflow)."""
    if kind in HALVES:
        return False
    sizes = [np.abs(x[x != 0]) for x in values]
    return all(((x > 2.0**-100) & (x < 2.0**100)).all() for x in sizes)


@step("atom", _ATOMIC_KINDS)
@step("red", [k for k in _ATOMIC_KINDS if k != "b16"])
def _atomic(ins: Instruction, lanes: Lanes) -> Step:
    space, operation = _atomic_form(ins)
    name, kind = ins.parts[0], ins.parts[-1]
    first = 2 if name == "atom" else 1
    last = -1 if "cache_hint" in ins.parts else None
    inputs = [lanes.source(o, kind, ins) for o in ins.operands[first:last]]
    if len(inputs) != (count := 1 + (operation == "cas")):
        raise UnknownInstruction(ins, f"has {len(inputs)} values instead of {count}")
    out = destination(lanes, ins, ins.operands[0], kind)[0] if name == "atom" else None
    real, dtype = kind in ("f32", "f64", *HALVES), DTYPES[kind]
    new = {shared: float_sum(kind, shared) if real else UPDATES[operation] for shared in (True, False)}
    shift = size_of(kind).bit_length() - 1

    def act(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        memory, index = region.view(dtype), offsets >> shift
        values = [np.broadcast_to(x if x.ndim == 0 or sel is None else x[sel], index.size) for x in inputs]
        note_update(ins, lanes, region, offsets, size_of(kind), sel)
        if region.name not in ("shared", "local"):
            own_blocks = lanes.blocks[lanes.of_block if sel is None else lanes.of_block[sel]]
            lanes.launch.has_observed_others[own_blocks] |= OBSERVED
        if out is None and operation in _UFUNCS and (not real or _sums_are_normal(kind, memory[index], values[0])):
            _UFUNCS[operation].at(memory, index, values[0])  # in order of lane, rounding each sum
            return
        update = new[region.name == "shared"]
        old = np.empty(index.size, dtype)
        for turn in _turns(index):
            place = index[turn]
            old[turn] = memory[place]
            memory[place] = update(old[turn], *[x[turn] for x in values])
        if out is not None:
            out[slice(None) if sel is None else sel] = old

    return visit(
        ins, lanes, space, name, size_of(kind), address(ins.operands[first - 1], lanes, ins, space == "shared"), act
    )


def _turns(index: Ints) -> list[Ints]:
    """Groups of lanes that want different cells each; lanes that want the same cell are in successive groups, in order."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(index.size) - np.repeat(starts, np.diff(np.r_[starts, index.size]))
    by_rank = np.argsort(rank, kind="stable")
    return np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1])
