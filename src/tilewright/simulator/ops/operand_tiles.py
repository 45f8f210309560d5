"""Reads tiles of A and B in shared memory, as ``wgmma`` and ``tcgen05`` do by a descriptor.

The module reports a descriptor that contradicts its own swizzle, or the box that a copy wrote to the tile.
"""

from __future__ import annotations

import numpy as np

from ..assembly.instructions import Instruction
from ..findings import DESCRIPTOR
from ..machine.lanes import Lanes
from ..machine.values import Array, Ints
from ..machine.warpgroups import Reading
from .descriptor import CHUNKS, SWIZZLES, Descriptor


def check_descriptor(
    ins: Instruction, lanes: Lanes, d: Descriptor, leaders: Ints, *, side: str, shape: tuple[int, int], transposed: bool
) -> None:
    """Report offsets in a descriptor that are not multiples of the size of its swizzle pattern."""
    wide = CHUNKS[d.mode]
    pattern = 128 * wide  # bytes of eight rows
    slabs = transposed and shape[1] > wide
    wrong = ""
    if d.mode and shape[0] > 8 and d.stride % pattern:
        wrong = f"its stride offset, {d.stride} bytes, is no multiple of the {pattern} bytes"
    elif d.mode and slabs and d.leading % pattern:
        wrong = f"its leading offset, {d.leading} bytes, is no multiple of the {pattern} bytes"
    elif d.mode and not d.base and d.start % pattern // (16 * wide) and not _starts_a_pattern(lanes, d, leaders):
        wrong = f"it starts in row {d.start % pattern // (16 * wide)}, and not at a multiple of the {pattern} bytes"
    if wrong:
        text = f"the descriptor of {side} has a {SWIZZLES[d.mode]}, but {wrong} of the pattern's 8 rows: {ins.text}"
        lanes.reports.report(DESCRIPTOR, ins, leaders, np.ones(leaders.size, bool), None, text)


def _starts_a_pattern(lanes: Lanes, d: Descriptor, leaders: Ints) -> bool:
    """Whether a tile begins where the pattern of the copy that wrote it does, although not at a multiple of its bytes. The
    hardware swizzles by address on both sides, so what is read is what was written."""
    shared = lanes.shared
    first = int(shared.offsets(shared.region, np.array([d.start]), leaders[:1])[0])
    row = lanes.origins.row(shared.region, first)
    return row is not None and row % 8 == 0


def read_tile(
    ins: Instruction, lanes: Lanes, tile: Ints, leaders: Ints, reading: Reading, *, side: str, mode: int, away: int = 0
) -> Array:
    """Return the 16-byte chunks of a tile at these addresses: bytes (leaders, …, 16). The leaders are the lanes that
    issue the product. The addresses are in the shared memory of each leader's block, or of the block ``away`` blocks
    further in its cluster.

    For each leader, the transfer that reads the tile is added to ``reading``.
    """
    chunks = tile.reshape(-1)
    data = np.zeros((len(leaders), chunks.size), "V16")
    for row, leader in zip(data, leaders.tolist(), strict=True):
        sel = np.full(chunks.size, leader)
        for region, offsets, at in lanes.shared.pieces(ins, chunks, 16, sel):
            if away:
                offsets = offsets + away * lanes.shared.stride
                lanes.shared.visit(ins, sel[:1], lanes.of_block[sel[:1]] + away)
            found = lanes.origins.contradiction(region, offsets.reshape(tile.shape)) if at is None else None
            if found is not None:
                box, wrong = found
                text = f"the descriptor of {side} does not describe the box that the copy at {box.ins.place(ins)} wrote"
                text += f", whose rows have {16 * box.across} bytes: {ins.text}"
                lanes.reports.report(DESCRIPTOR, ins, sel, wrong.reshape(-1), chunks, text)
            if lanes.mbarriers.log is not None and at is None:
                _note_operand(ins, lanes, offsets.reshape(tile.shape), side, mode)
            reading.append((leader, lanes.transfers.read(ins, region, offsets, leader)))
            row[slice(None) if at is None else at] = region.view(np.dtype("V16"))[offsets >> 4]
    return data.view(np.uint8).reshape(len(leaders), chunks.size, 16)


def _note_operand(ins: Instruction, lanes: Lanes, offsets: Ints, side: str, mode: int) -> None:
    """Record the first eight chunks that the tensor cores read as one group, and where they come from."""
    places, origins, log = offsets[:8, 0], lanes.origins, lanes.mbarriers.log
    if log is not None and origins.boxes and ins.parts[0] == "wgmma":  # the pictures are those of its layouts
        start = places[0] // lanes.shared.stride * lanes.shared.stride
        log.operand(ins, side, mode, places - start, origins.box[places >> 4], origins.number[places >> 4])
