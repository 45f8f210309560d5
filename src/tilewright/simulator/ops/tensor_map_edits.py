"""Instructions that edit tensor maps in memory, ``tensormap`` (PTX ISA 9.7.9.28, 9.7.13.16).

``tensormap.replace`` counts as a plain write of all 128 bytes of a map. ``tensormap.cp_fenceproxy`` copies a map from
shared to global memory and releases the map to the copy engine. A whole warp executes ``tensormap.cp_fenceproxy``
together.
"""

# ruff: noqa: ARG001 - all actions of memory accesses have the same parameters

from __future__ import annotations

import numpy as np

from ...errors import UsageError
from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.memory import Region
from ..machine.tensor_map import MAP_BYTES, edited
from ..machine.values import Ints, per_lane
from ._table import Step, UnknownInstruction, number_of, step
from .access import address, note_read, note_write, visit
from .async_copy import words_of
from .mma import warps_of

_WITH_ORDINAL = ("box_dim", "global_dim", "global_stride", "element_stride")
_FIELDS = ("global_address", "rank", *_WITH_ORDINAL, "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity",
           "fill_mode")  # fmt: skip


@step("tensormap")
def _tensormap(ins: Instruction, lanes: Lanes) -> Step:
    words = words_of(ins)
    if words[1:3] == ["replace", "tile"] and len(words) > 5:
        return _replace(ins, lanes, words)
    if words[1:4] == ["cp_fenceproxy", "global", "shared::cta"] and words[4:6] == ["tensormap::generic", "release"]:
        return _copy_and_release(ins, lanes)
    raise UnknownInstruction(ins)


def _replace(ins: Instruction, lanes: Lanes, words: list[str]) -> Step:
    field, space = (
        words[3],
        next((w.removesuffix("::cta") for w in words if w in ("global", "shared::cta", "shared")), ""),
    )
    ordinal = number_of(ins, ins.operands[1]) if field in _WITH_ORDINAL else 0
    if field not in _FIELDS or len(ins.operands) != 2 + (field in _WITH_ORDINAL):
        raise UnknownInstruction(ins)
    value = lanes.source(ins.operands[-1], "u64" if words[-1] == "b64" else "u32", ins)

    def replace(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        settle = note_write(ins, lanes, region, offsets, MAP_BYTES, sel)
        numbers = per_lane(value, lanes.every if sel is None else sel)
        for offset, number in zip(offsets.tolist(), numbers.tolist(), strict=True):
            place = slice(offset, offset + MAP_BYTES)
            data = edited(bytes(region.data[place]), field, ordinal, number)
            if data is None:
                raise UsageError(f"{ins.place()}: no tensor map to edit, or no {field} of {number}: {ins.text}")
            region.data[place] = np.frombuffer(data, np.uint8)
        if settle is not None:
            settle(np.zeros(offsets.size, bool))

    return visit(ins, lanes, space, "", MAP_BYTES, address(ins.operands[0], lanes, ins, space == "shared"), replace)


def _copy_and_release(ins: Instruction, lanes: Lanes) -> Step:
    if number_of(ins, ins.operands[2]) != MAP_BYTES:
        raise UnknownInstruction(ins, f"must copy {MAP_BYTES} bytes")
    into, out_of = (address(ins.operands[i], lanes, ins, narrow=bool(i)) for i in (0, 1))
    data = np.zeros((0, MAP_BYTES), np.uint8)

    def fetch(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        nonlocal data
        note_read(ins, lanes, region, offsets, MAP_BYTES, sel)
        data = region.data[offsets[:, None] + np.arange(MAP_BYTES)]

    def put(region: Region, offsets: Ints, at: Ints | None, sel: Ints | None) -> None:
        settle = note_write(ins, lanes, region, offsets, MAP_BYTES, sel)
        region.data[offsets[:, None] + np.arange(MAP_BYTES)] = data if at is None else data[at]
        if settle is not None:
            settle(np.zeros(offsets.size, bool))

    read, write = (
        visit(ins, lanes, "shared", "", MAP_BYTES, out_of, fetch), visit(ins, lanes, "global", "", MAP_BYTES, into, put)
    )  # fmt: skip

    def copy(sel: Ints | None) -> None:
        warps = warps_of(ins, lanes, sel)
        lanes.sync_warp(warps.reshape(-1))
        for lead in warps[:, :1]:
            read(lead)
            write(lead)
        lanes.tensor_map_edits.release(warps.reshape(-1))

    return copy
