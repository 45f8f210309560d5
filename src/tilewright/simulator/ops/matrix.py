"""Matrices between registers and shared memory: ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.15.5)."""

from __future__ import annotations

import numpy as np

from ..assembly.instructions import Instruction, operand_tokens
from ..machine.lanes import Lanes
from ..machine.memory import Region
from ..machine.values import Array, Ints, per_lane
from ._table import Step, UnknownInstruction, destination, step
from .access import address, note_read, note_write, visit
from .mma import GROUP, MEMBER, warps_of


def _matrices(ins: Instruction, vector: str) -> tuple[list[str], bool]:
    """The registers of a ldmatrix or stmatrix, and whether it transposes."""
    flags = set(ins.parts[1:]) - {"sync", "aligned", "m8n8", "shared", "cta", "b16", "trans"}
    names = operand_tokens(vector[1:-1]) if vector.startswith("{") else [vector]
    if flags != {f"x{len(names)}"} or len(names) not in (1, 2, 4) or "m8n8" not in ins.parts:
        raise UnknownInstruction(ins)
    return names, "trans" in ins.parts


def _place(trans: bool) -> tuple[Array, Array]:
    """Row and column, within an 8 × 8 matrix, of the two elements a lane holds: (32, 2) each."""
    near, far = np.repeat(GROUP[:, None], 2, axis=1), 2 * MEMBER[:, None] + np.arange(2)
    return (far, near) if trans else (near, far)


@step("ldmatrix", ("b16",))
def _ldmatrix(ins: Instruction, lanes: Lanes) -> Step:
    names, trans = _matrices(ins, ins.operands[0])
    outs = [destination(lanes, ins, n, "b32")[0] for n in names]
    where = address(ins.operands[1], lanes, ins, "shared" in ins.parts)
    row, column = _place(trans)

    def load(sel: Ints | None) -> None:
        warps = warps_of(ins, lanes, sel)
        address_lanes = warps[:, : 8 * len(names)].reshape(-1)  # lane 8·i + r gives the address of row r of matrix i
        if not address_lanes.size:
            return
        data = np.zeros((address_lanes.size, 8), np.uint16)

        def fetch(region: Region, offsets: Ints, at: Ints | None, chosen: Ints | None) -> None:
            note_read(ins, lanes, region, offsets, 16, chosen)
            rows = region.view(np.dtype(np.uint16))[(offsets >> 1)[:, None] + np.arange(8)]
            data[slice(None) if at is None else at] = rows

        visit(ins, lanes, "shared" if "shared" in ins.parts else "", "ldmatrix", 16, where, fetch)(address_lanes)
        table = data.reshape(len(warps), len(names), 8, 8)
        for i, out in enumerate(outs):
            out[warps] = np.ascontiguousarray(table[:, i][:, row, column]).view(np.uint32)[..., 0]
        lanes.sync_warp(warps.reshape(-1))

    return load


@step("movmatrix", ("b16",))
def _movmatrix(ins: Instruction, lanes: Lanes) -> Step:
    if ins.parts[1:-1] != ("sync", "aligned", "m8n8", "trans") or len(ins.operands) != 2:
        raise UnknownInstruction(ins)
    out, given = destination(lanes, ins, ins.operands[0], "b32")[0], lanes.source(ins.operands[1], "b32", ins)

    def move(sel: Ints | None) -> None:
        warps = warps_of(ins, lanes, sel)
        if not warps.size:
            return
        bits = np.ascontiguousarray(per_lane(given, warps))
        table = np.ascontiguousarray(bits.view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2))
        out[warps] = table.reshape(len(warps), 64).view(np.uint32)
        lanes.sync_warp(warps.reshape(-1))

    return move


@step("stmatrix", ("b16",))
def _stmatrix(ins: Instruction, lanes: Lanes) -> Step:
    names, trans = _matrices(ins, ins.operands[1])
    inputs = [lanes.source(n, "b32", ins) for n in names]
    where = address(ins.operands[0], lanes, ins, "shared" in ins.parts)
    row, column = _place(trans)

    def store(sel: Ints | None) -> None:
        warps = warps_of(ins, lanes, sel)
        address_lanes = warps[:, : 8 * len(names)].reshape(-1)
        if not address_lanes.size:
            return
        table = np.zeros((len(warps), len(names), 8, 8), np.uint16)
        for i, x in enumerate(inputs):
            bits = np.ascontiguousarray(per_lane(x, warps))
            table[:, i, row, column] = bits[..., None].view(np.uint16)
        data = table.reshape(-1, 8)

        def put(region: Region, offsets: Ints, at: Ints | None, chosen: Ints | None) -> None:
            settle = note_write(ins, lanes, region, offsets, 16, chosen, None)
            place = (offsets >> 1)[:, None] + np.arange(8)
            memory = region.view(np.dtype(np.uint16))
            memory[place] = data[slice(None) if at is None else at]
            if settle is not None:
                settle(np.zeros(offsets.size, bool))

        visit(ins, lanes, "shared" if "shared" in ins.parts else "", "stmatrix", 16, where, put)(address_lanes)
        lanes.sync_warp(warps.reshape(-1))

    return store
