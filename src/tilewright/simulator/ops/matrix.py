"""Matrix instructions of a warp: mma.sync, ldmatrix, stmatrix (PTX ISA 9.7.14).

All fragments of ``mma.sync`` follow one rule. With g = lane / 4, t = lane % 4 and e elements to a 32-bit register
(1 for tf32 and f64, 2 for halves, 4 for bytes), element j of register r is

- of A: row g + 8·(r mod M/8), column e·t + j + 4·e·(r div M/8)
- of B: row e·t + j + 4·e·r, column g
- of C and D: row g + 8·(r div 2), column 2·t + r mod 2 (packed halves: row g + 8·r, column 2·t + j)

Products of tf32, half, bfloat16 and 8-bit floats are exact, their sum is formed in float64 and rounded once; tensor
cores keep fewer bits in between, so the last bits may differ from theirs. f64 is a chain of fused multiply-adds in
order of k.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..assembly.instructions import Instruction, operand_tokens
from ..machine.lanes import Lanes
from ..machine.memory import Region
from ..machine.values import Array, Ints
from ._table import Step, UnknownInstruction, destination, step
from .access import address, note_read, note_write, visit
from .floating import halves, put_halves
from .rounding import fma64
from .small_floats import VALUES, decode

_LANE = np.arange(32)
_GROUP, _MEMBER = _LANE // 4, _LANE % 4
#: Shapes of each input type: (m, k) with n = 8.
_SHAPES = {
    "tf32": {(16, 4), (16, 8)},
    "f16": {(16, 8), (16, 16)},
    "bf16": {(16, 8), (16, 16)},
    "f64": {(8, 4), (16, 4), (16, 8), (16, 16)},
    "e4m3": {(16, 32)},
    "e5m2": {(16, 32)},
    "s8": {(16, 16), (16, 32)},
    "u8": {(16, 16), (16, 32)},
}
_SUMS = {"tf32": {"f32"}, "f16": {"f32", "f16"}, "bf16": {"f32"}, "f64": {"f64"}, "s8": {"s32"}, "u8": {"s32"}}
_SUMS |= {"e4m3": {"f32"}, "e5m2": {"f32"}}
_PACKED = {"tf32": 1, "f64": 1, "f16": 2, "bf16": 2, "s8": 4, "u8": 4, "e4m3": 4, "e5m2": 4}
#: Types of A and B that may be combined with each other.
_MIXED = ({"s8", "u8"}, {"e4m3", "e5m2"})


def warps_of(ins: Instruction, lanes: Lanes, sel: Ints | None) -> Ints:
    """The active lanes as whole warps (w, 32); reports warps of which only a part is active and leaves them out."""
    active = lanes.every if sel is None else sel
    if active.size % 32 == 0 and lanes.threads % 32 == 0:
        rows = active.reshape(-1, 32)
        if (lanes.base_warp[rows] == lanes.base_warp[rows[:, :1]]).all():
            return rows
    count = np.bincount(lanes.base_warp[active])[lanes.base_warp[active]]
    text = f"only a part of the warp executes what all 32 threads must: {ins.text}"
    lanes.reports.report("divergent barrier", ins, sel, count < 32, None, text)
    return active[count == 32].reshape(-1, 32)


def _numbers(bits: Array, kind: str) -> Array:
    """Registers (w, 32) → elements (w, 32, e) as numbers."""
    if kind == "f64":
        return bits.view(np.float64)[..., None]
    if kind == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[..., None]
    parts = np.ascontiguousarray(bits)[..., None]
    if kind in VALUES:
        return decode(parts.view(np.uint8), kind)
    if kind in ("s8", "u8"):
        return parts.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)
    return halves(parts.view(np.float16 if kind == "f16" else np.uint16), kind)


@step("mma", ("f32", "f16", "f64", "s32"))
def _mma(ins: Instruction, lanes: Lanes) -> Step:
    parts = ins.parts
    if len(parts) < 8:
        raise UnknownInstruction(ins)
    d_kind, a_kind, b_kind, c_kind = parts[-4:]
    shape = re.fullmatch(r"m(\d+)n8k(\d+)", parts[3]) if len(parts) > 8 else None
    extra = set(parts[1:-4]) - {"sync", "aligned", parts[3], "row", "col", "satfinite"}
    m, k = (int(shape[1]), int(shape[2])) if shape else (0, 0)
    same = a_kind == b_kind or {a_kind, b_kind} in _MIXED
    known = same and (m, k) in _SHAPES.get(a_kind, ()) and d_kind in _SUMS.get(a_kind, ()) and c_kind in _SUMS[a_kind]
    if extra or not known or parts[4:6] != ["row", "col"]:
        raise UnknownInstruction(ins, "has a shape or type that is not supported")
    saturate = "satfinite" in parts
    e, high = _PACKED[a_kind], m // 8
    raw = "b64" if a_kind == "f64" else "b32"
    d, a, b, c = ([*operand_tokens(o[1:-1])] if o.startswith("{") else [o] for o in ins.operands)
    if len(a) != high * k // (4 * e) or len(b) != k // (4 * e):
        raise UnknownInstruction(ins, "has fragments whose size does not fit its shape")
    outs = [destination(lanes, ins, n, raw)[0] for n in d]
    a_in, b_in, c_in = ([lanes.source(n, raw, ins) for n in names] for names in (a, b, c))
    j = np.arange(e)

    def fragment(registers: list[Array], rows: Ints) -> list[Array]:
        return [np.broadcast_to(x, rows.shape) if x.ndim == 0 else x[rows] for x in registers]

    def multiply(sel: Ints | None) -> None:
        rows = warps_of(ins, lanes, sel)
        if not rows.size:
            return
        dtype: Any = np.int64 if a_kind in ("s8", "u8") else np.float64
        A, B = np.zeros((len(rows), m, k), dtype), np.zeros((len(rows), k, 8), dtype)
        for r, bits in enumerate(fragment(a_in, rows)):
            column = e * _MEMBER[:, None] + j + 4 * e * (r // high)
            A[:, _GROUP[:, None] + 8 * (r % high), column] = _numbers(bits, a_kind)
        for r, bits in enumerate(fragment(b_in, rows)):
            B[:, e * _MEMBER[:, None] + j + 4 * e * r, _GROUP[:, None]] = _numbers(bits, b_kind)
        C = _accumulators(fragment(c_in, rows), c_kind, m)
        if a_kind == "f64":
            for i in range(k):
                fma64(C, A[:, :, i, None], B[:, i, None, :], C.copy())
            D = C
        else:
            D = A @ B + C
        if saturate:
            D = np.clip(D, -(1 << 31), (1 << 31) - 1)
        for r, out in enumerate(outs):
            out[rows] = _result_register(D, d_kind, r)
        lanes.sync_warp(rows.reshape(-1))

    return multiply


def _accumulators(registers: list[Array], kind: str, m: int) -> Array:
    """The accumulator fragment as (w, m, 8)."""
    if kind == "f16":
        C = np.zeros((len(registers[0]), m, 8))
        for r, bits in enumerate(registers):
            C[:, _GROUP[:, None] + 8 * r, 2 * _MEMBER[:, None] + np.arange(2)] = _numbers(bits, "f16")
        return C
    real = {"f32": np.float32, "f64": np.float64, "s32": np.int32}[kind]
    C = np.zeros((len(registers[0]), m, 8), np.int64 if kind == "s32" else np.float64)
    for r, bits in enumerate(registers):
        C[:, _GROUP + 8 * (r // 2), 2 * _MEMBER + r % 2] = np.ascontiguousarray(bits).view(real)
    return C


def _result_register(D: Array, kind: str, r: int) -> Array:
    """Register r of the result fragment, as bits (w, 32)."""
    if kind == "f16":
        pairs = np.ascontiguousarray(D[:, _GROUP[:, None] + 8 * r, 2 * _MEMBER[:, None] + np.arange(2)])
        out = np.empty(pairs.shape[0] * 32, np.uint32)
        put_halves(out, pairs.reshape(-1), "f16x2")
        return out.reshape(-1, 32)
    values = D[:, _GROUP + 8 * (r // 2), 2 * _MEMBER + r % 2]
    if kind == "s32":
        return values.astype(np.int32).view(np.uint32)
    return values.astype(np.float32).view(np.uint32) if kind == "f32" else np.ascontiguousarray(values).view(np.uint64)


def _matrices(ins: Instruction, vector: str) -> tuple[list[str], bool]:
    """The registers of a ldmatrix or stmatrix, and whether it transposes."""
    flags = set(ins.parts[1:]) - {"sync", "aligned", "m8n8", "shared", "cta", "b16", "trans"}
    names = operand_tokens(vector[1:-1]) if vector.startswith("{") else [vector]
    if flags != {f"x{len(names)}"} or len(names) not in (1, 2, 4) or "m8n8" not in ins.parts:
        raise UnknownInstruction(ins)
    return names, "trans" in ins.parts


def _place(trans: bool) -> tuple[Array, Array]:
    """Row and column, within an 8 × 8 matrix, of the two elements a lane holds: (32, 2) each."""
    near, far = np.repeat(_GROUP[:, None], 2, axis=1), 2 * _MEMBER[:, None] + np.arange(2)
    return (far, near) if trans else (near, far)


@step("ldmatrix", ("b16",))
def _ldmatrix(ins: Instruction, lanes: Lanes) -> Step:
    names, trans = _matrices(ins, ins.operands[0])
    outs = [destination(lanes, ins, n, "b32")[0] for n in names]
    where = address(ins.operands[1], lanes, ins, True)
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

        visit(ins, lanes, "shared", "ldmatrix", 16, where, fetch)(address_lanes)
        table = data.reshape(len(warps), len(names), 8, 8)
        for i, out in enumerate(outs):
            out[warps] = np.ascontiguousarray(table[:, i][:, row, column]).view(np.uint32)[..., 0]
        lanes.sync_warp(warps.reshape(-1))

    return load


@step("stmatrix", ("b16",))
def _stmatrix(ins: Instruction, lanes: Lanes) -> Step:
    names, trans = _matrices(ins, ins.operands[1])
    inputs = [lanes.source(n, "b32", ins) for n in names]
    where = address(ins.operands[0], lanes, ins, True)
    row, column = _place(trans)

    def store(sel: Ints | None) -> None:
        warps = warps_of(ins, lanes, sel)
        address_lanes = warps[:, : 8 * len(names)].reshape(-1)
        if not address_lanes.size:
            return
        table = np.zeros((len(warps), len(names), 8, 8), np.uint16)
        for i, x in enumerate(inputs):
            bits = np.ascontiguousarray(np.broadcast_to(x, warps.shape) if x.ndim == 0 else x[warps])
            table[:, i, row, column] = bits[..., None].view(np.uint16)
        data = table.reshape(-1, 8)

        def put(region: Region, offsets: Ints, at: Ints | None, chosen: Ints | None) -> None:
            settle = note_write(ins, lanes, region, offsets, 16, chosen, None)
            place = (offsets >> 1)[:, None] + np.arange(8)
            memory = region.view(np.dtype(np.uint16))
            memory[place] = data[slice(None) if at is None else at]
            if settle is not None:
                settle(np.zeros(offsets.size, bool))

        visit(ins, lanes, "shared", "stmatrix", 16, where, put)(address_lanes)
        lanes.sync_warp(warps.reshape(-1))

    return store
