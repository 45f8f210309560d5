"""Instructions across the lanes of a warp: shuffle, vote, match, redux, activemask, bar.warp (PTX ISA 9.7.9, 9.7.13).

The module represents the active lanes as a table of warps × 32. The value of a lane that does not take part in an
instruction is never read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.values import Array, Ints, per_lane
from ._table import Step, UnknownInstruction, check_modifiers, destination, one_of, step
from .rounding import canonical

#: The mask of a whole warp.
WHOLE_WARP = 0xFFFFFFFF
_BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)


class Table:
    """The active lanes as rows of a table with one row per warp, and the conversion of values to this table and back.

    If lanes of one warp have different masks, each mask has its own row; in this case ``groups`` has the row of each
    lane.
    """

    def __init__(self, lanes: Lanes, sel: Ints | None, groups: Ints | None = None) -> None:
        active = lanes.every if sel is None else sel
        self.rows, self.columns = lanes.base_warp[active] if groups is None else groups, lanes.lane[active]
        self.count = int(self.rows.max()) + 1 if active.size else 0
        self.active = np.zeros((self.count, 32), bool)
        self.active[self.rows, self.columns] = True

    def spread(self, values: Array) -> Array:
        """Return the values of the active lanes as a table (warps, 32), with 0 for inactive lanes."""
        out = np.zeros((self.count, 32), np.asarray(values).dtype)
        out[self.rows, self.columns] = values
        return out

    def mask(self, bits: NDArray[np.bool_]) -> NDArray[np.uint32]:
        """Convert rows of booleans to one 32-bit mask per warp."""
        return (bits * _BIT).sum(axis=1, dtype=np.uint32)


def companions(ins: Instruction, lanes: Lanes, mask: Array, sel: Ints | None) -> Ints | None:
    """Return a group number for each active lane; lanes with the same number execute the instruction together. Return
    None if all lanes of each warp execute the instruction together.

    The function reports a lane that is missing in its own mask, because the result of such a lane is undefined (PTX ISA
    9.7.9, 9.7.13).
    """
    if mask.ndim == 0 and int(mask) == WHOLE_WARP:
        return None
    active = lanes.every if sel is None else sel
    masks = per_lane(mask, active).astype(np.int64)
    absent = masks >> lanes.lane[active] & 1 == 0
    if absent.any():
        text = f"its mask ({int(masks[np.argmax(absent)]):#010x}) leaves out the thread that executes it: {ins.text}"
        lanes.reports.report("divergent barrier", ins, sel, absent, None, text)
    warps = lanes.base_warp[active]
    alike = (masks[1:] == masks[:-1]) | (warps[1:] != warps[:-1])
    if alike.all() and (masks == WHOLE_WARP).all():
        return None
    return np.unique(warps << 32 | masks, return_inverse=True)[1]


def _active(x: Array, sel: Ints | None) -> Array:
    return x if sel is None or x.ndim == 0 else x[sel]


def _members(table: Table, mask: Array) -> NDArray[np.bool_]:
    """(warps, 32): which lanes take part in the collective of each row; all lanes of a row have the same mask."""
    masks = table.spread(np.broadcast_to(mask, table.rows.shape)).max(axis=1)
    return ((masks[:, None] & _BIT) != 0) & table.active


@step("shfl", ("b32",))
def _shfl(ins: Instruction, lanes: Lanes) -> Step:
    flags = check_modifiers(ins, ("sync", "up", "down", "bfly", "idx"))
    if "sync" not in flags or len(flags) != 2:
        raise UnknownInstruction(ins)
    how = (flags - {"sync"}).pop()
    target, _, predicate = ins.operands[0].partition("|")
    out = destination(lanes, ins, target, "b32")[0]
    flag = destination(lanes, ins, predicate, "pred")[0] if predicate else None
    value, by, clamp, mask = (lanes.source(o, "u32", ins) for o in ins.operands[1:5])

    def shuffle(sel: Ints | None) -> None:
        groups = companions(ins, lanes, mask, sel)
        table = Table(lanes, sel, groups)
        lane = table.columns
        b = np.asarray(_active(by, sel) & 31).astype(np.int64)
        c = np.asarray(_active(clamp, sel)).astype(np.int64)
        segment, limit = (c >> 8) & 31, c & 31
        top = (lane & segment) | (limit & ~segment)
        source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": (lane & segment) | (b & ~segment)}[how]
        inside = source >= top if how == "up" else source <= top
        source = np.where(inside, source, lane)
        values = table.spread(np.broadcast_to(_active(value, sel), lane.shape))
        result = values[table.rows, source]
        absent = ~table.active[table.rows, source]
        if absent.any():
            text = f"takes a value from a lane that does not take part: {ins.text}"
            lanes.reports.report("unwritten read", ins, sel, absent, None, text)
        where = slice(None) if sel is None else sel
        out[where] = result
        if flag is not None:
            flag[where] = inside
        lanes.sync_warp(sel, groups)

    return shuffle


@step("vote", ("pred", "b32"))
def _vote(ins: Instruction, lanes: Lanes) -> Step:
    flags = check_modifiers(ins, ("sync", "all", "any", "uni", "ballot"))
    how = one_of(ins, flags, ("all", "any", "uni", "ballot"))
    if "sync" not in flags:
        raise UnknownInstruction(ins, "without .sync is not supported")
    out = destination(lanes, ins, ins.operands[0], "b32" if how == "ballot" else "pred")[0]
    negate = ins.operands[1].startswith("!")
    p, mask = lanes.source(ins.operands[1].lstrip("!"), "pred", ins), lanes.source(ins.operands[2], "u32", ins)

    def vote(sel: Ints | None) -> None:
        groups = companions(ins, lanes, mask, sel)
        table = Table(lanes, sel, groups)
        values = table.spread(np.broadcast_to(_active(p, sel) ^ negate, table.rows.shape))
        members = _members(table, _active(mask, sel))
        any_ = np.asarray((values & members).any(axis=1))
        all_ = np.asarray((values | ~members).all(axis=1))
        results = {"any": any_, "all": all_, "uni": all_ | ~any_}
        result: Array = table.mask(values & members) if how == "ballot" else results[how]
        out[slice(None) if sel is None else sel] = result[table.rows]
        lanes.sync_warp(sel, groups)

    return vote


@step("match", ("b32", "b64"))
def _match(ins: Instruction, lanes: Lanes) -> Step:
    how = one_of(ins, check_modifiers(ins, ("sync", "any", "all")), ("any", "all"))
    target, _, predicate = ins.operands[0].partition("|")
    out = destination(lanes, ins, target, "b32")[0]
    flag = destination(lanes, ins, predicate, "pred")[0] if predicate else None
    value, mask = lanes.source(ins.operands[1], ins.parts[-1], ins), lanes.source(ins.operands[2], "u32", ins)

    def match(sel: Ints | None) -> None:
        groups = companions(ins, lanes, mask, sel)
        table = Table(lanes, sel, groups)
        values = table.spread(np.broadcast_to(_active(value, sel), table.rows.shape))
        members = _members(table, _active(mask, sel))
        same = (values[:, :, None] == values[:, None, :]) & members[:, None, :]
        where = slice(None) if sel is None else sel
        mine = same[table.rows, table.columns]
        if how == "any":
            out[where] = table.mask(mine)
        else:
            alike: Array = np.asarray((mine | ~members[table.rows]).all(axis=1))
            out[where] = np.where(alike, table.mask(members)[table.rows], np.uint32(0))
            if flag is not None:
                flag[where] = alike
        lanes.sync_warp(sel, groups)

    return match


_REDUCE: dict[str, tuple[Any, int]] = {
    "add": (np.add, 0), "and": (np.bitwise_and, -1), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
    "min": (np.minimum, 1), "max": (np.maximum, 2),
}  # fmt: skip


@step("redux", ("u32", "s32", "b32"))
def _redux(ins: Instruction, lanes: Lanes) -> Step:
    flags, kind = check_modifiers(ins, ("sync", *_REDUCE)), ins.parts[-1]
    ufunc, neutral = _REDUCE[one_of(ins, flags, _REDUCE)]
    out = destination(lanes, ins, ins.operands[0], kind)[0]
    value, mask = lanes.source(ins.operands[1], kind, ins), lanes.source(ins.operands[2], "u32", ins)
    info = np.iinfo(out.dtype)
    start = {0: 0, -1: info.max if info.min == 0 else -1, 1: info.max, 2: info.min}[neutral]

    def reduce(sel: Ints | None) -> None:
        groups = companions(ins, lanes, mask, sel)
        table = Table(lanes, sel, groups)
        values = table.spread(np.broadcast_to(_active(value, sel), table.rows.shape))
        values = np.where(_members(table, _active(mask, sel)), values, out.dtype.type(start))
        out[slice(None) if sel is None else sel] = ufunc.reduce(values, axis=1, dtype=out.dtype)[table.rows]
        lanes.sync_warp(sel, groups)

    return reduce


@step("redux", ("f32",))
def _redux_floats(ins: Instruction, lanes: Lanes) -> Step:
    """The least or largest float of a warp, or of the magnitudes (compute capability 10.0); with ``.NaN`` any NaN wins."""
    flags = check_modifiers(ins, ("sync", "min", "max", "abs", "NaN"))
    largest = one_of(ins, flags, ("min", "max")) == "max"
    pick = (np.maximum if largest else np.minimum) if "NaN" in flags else (np.fmax if largest else np.fmin)
    out = destination(lanes, ins, ins.operands[0], "f32")[0]
    value, mask = lanes.source(ins.operands[1], "f32", ins), lanes.source(ins.operands[2], "u32", ins)
    start = np.float32(-np.inf if largest else np.inf)

    def reduce(sel: Ints | None) -> None:
        groups = companions(ins, lanes, mask, sel)
        table = Table(lanes, sel, groups)
        given = np.broadcast_to(_active(value, sel), table.rows.shape)
        values = table.spread(np.abs(given) if "abs" in flags else given)
        members = _members(table, _active(mask, sel))
        result = pick.reduce(np.where(members, values, start), axis=1)
        if "NaN" not in flags:  # of NaN alone the result is NaN
            result = np.where((np.isnan(values) | ~members).all(axis=1), np.float32(np.nan), result)
        canonical(result)
        out[slice(None) if sel is None else sel] = result[table.rows]
        lanes.sync_warp(sel, groups)

    return reduce


@step("elect")
def _elect(ins: Instruction, lanes: Lanes) -> Step:
    """``elect.sync d|p, mask``: elects the lowest active lane of the mask."""
    target, _, predicate = ins.operands[0].partition("|")
    out = destination(lanes, ins, target, "b32")[0]
    flag = destination(lanes, ins, predicate, "pred")[0]
    mask = lanes.source(ins.operands[1], "u32", ins)

    def elect(sel: Ints | None) -> None:
        groups = companions(ins, lanes, mask, sel)
        table = Table(lanes, sel, groups)
        leader = _members(table, _active(mask, sel)).argmax(axis=1)[table.rows]
        where = slice(None) if sel is None else sel
        out[where], flag[where] = leader, table.columns == leader
        lanes.sync_warp(sel, groups)

    return elect


@step("activemask", ("b32",))
def _activemask(ins: Instruction, lanes: Lanes) -> Step:
    out = destination(lanes, ins, ins.operands[0], "b32")[0]

    def activemask(sel: Ints | None) -> None:
        table = Table(lanes, sel)
        out[slice(None) if sel is None else sel] = table.mask(table.active)[table.rows]

    return activemask
