"""``mma.sync``: one matrix product of a warp, operands and result in registers (PTX ISA 9.7.15.5).

All fragments follow one rule. With g = lane / 4, t = lane % 4 and e elements to a 32-bit register (1 for tf32 and f64,
2 for halves, 4 for bytes, 8 for 4-bit integers, 32 for bits), element j of register r is

- of A: row g + 8·(r mod M/8), column e·t + j + 4·e·(r div M/8)
- of B: row e·t + j + 4·e·r, column g
- of C and D: row g + 8·(r div 2), column 2·t + r mod 2 (packed halves: row g + 8·r, column 2·t + j)

``tensor_core`` has the arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..assembly.instructions import Instruction, operand_tokens
from ..counters.work import mma_work
from ..machine.lanes import Lanes
from ..machine.values import Array, Ints, per_lane
from ._table import Step, UnknownInstruction, destination, step
from .access import note_work
from .tensor_core import NARROW, PACKED, RESULTS, TensorProduct, factors

LANE = np.arange(32)
#: Place of each lane in a fragment: its row in a group of eight, and its member of four in that row.
GROUP, MEMBER = LANE // 4, LANE % 4
_BYTES, _NIBBLES = {(8, 16), (16, 16), (16, 32)}, {(8, 32), (16, 32), (16, 64)}
_NARROW_SHAPES = {(16, 16), (16, 32)}
#: Shapes of each input type: (m, k) with n = 8.
_SHAPES = {
    "tf32": {(16, 4), (16, 8)},
    "f16": {(16, 8), (16, 16)},
    "bf16": {(16, 8), (16, 16)},
    "f64": {(8, 4), (16, 4), (16, 8), (16, 16)},
    "e4m3": _NARROW_SHAPES,
    "e5m2": _NARROW_SHAPES,
    "s8": _BYTES,
    "u8": _BYTES,
    "s4": _NIBBLES,
    "u4": _NIBBLES,
    "b1": {(8, 128), (16, 128), (16, 256)},
}
#: Types of the sum, for each input type; of integers s32.
_SUMS = {"tf32": ("f32",), "bf16": ("f32",), "f64": ("f64",), **dict.fromkeys(("f16", *NARROW), ("f32", "f16"))}
#: Types of A and B that may be combined with each other.
_MIXED = ({"s8", "u8"}, {"s4", "u4"}, set(NARROW))


def warps_of(ins: Instruction, lanes: Lanes, sel: Ints | None, size: int = 32) -> Ints:
    """The active lanes as whole warps (w, 32); reports warps of which only a part is active and leaves them out.

    With ``size`` 128: as whole groups of four warps (w, 128).
    """
    active = lanes.every if sel is None else sel
    of_group = (lanes.base_warp if size == 32 else lanes.of_block * 8 + lanes.tid // size)[active]
    if active.size % size == 0 and lanes.threads % size == 0:
        rows = of_group.reshape(-1, size)
        if (rows == rows[:, :1]).all():
            return active.reshape(-1, size)
    count = np.bincount(of_group)[of_group]
    whole = "warp executes what all 32 threads" if size == 32 else "warpgroup executes what all 128 threads"
    text = f"only a part of the {whole} must: {ins.text}"
    if (count < size).any():
        lanes.reports.report("divergent barrier", ins, sel, count < size, None, text)
    return active[count == size].reshape(-1, size)


def elements(bits: Array, kind: str) -> Array:
    """Registers of any shape (…) → elements (…, e) as numbers."""
    parts = np.ascontiguousarray(bits)[..., None]
    return factors(parts if kind in ("f64", "s4", "u4", "b1") else parts.view(f"u{4 // PACKED[kind]}"), kind)


def gathered(registers: list[Array], rows: Ints) -> list[Array]:
    """``per_lane`` of several registers."""
    return [per_lane(x, rows) for x in registers]


def a_fragment(registers: list[Array], kind: str, m: int, k: int) -> Array:
    """Registers (w, 32) of a fragment of A → numbers (w, m, k)."""
    e, high = PACKED[kind], m // 8
    out = np.empty((len(registers[0]), m, k))
    for r, bits in enumerate(registers):
        column = e * MEMBER[:, None] + np.arange(e) + 4 * e * (r // high)
        out[:, GROUP[:, None] + 8 * (r % high), column] = elements(bits, kind)
    return out


def b_fragment(registers: list[Array], kind: str, k: int) -> Array:
    """Registers (w, 32) of a fragment of B → numbers (w, k, 8)."""
    e = PACKED[kind]
    out = np.empty((len(registers[0]), k, 8))
    for r, bits in enumerate(registers):
        out[:, e * MEMBER[:, None] + np.arange(e) + 4 * e * r, GROUP[:, None]] = elements(bits, kind)
    return out


def accumulators(registers: list[Array], kind: str, m: int) -> Array:
    """Registers (w, 32) of a fragment of C → (w, m, 8) in its own type."""
    out = np.empty((len(registers[0]), m, 8), RESULTS[kind])
    for r, bits in enumerate(registers):
        parts = np.ascontiguousarray(bits)
        if kind == "f16":
            out[:, GROUP[:, None] + 8 * r, 2 * MEMBER[:, None] + np.arange(2)] = parts[..., None].view(np.float16)
        else:
            out[:, GROUP + 8 * (r // 2), 2 * MEMBER + r % 2] = parts.view(out.dtype)
    return out


def result_register(D: Array, kind: str, r: int) -> Array:
    """Register r of the fragment of D, as bits (w, 32)."""
    if kind == "f16":
        pairs = D[:, GROUP[:, None] + 8 * r, 2 * MEMBER[:, None] + np.arange(2)]
        return np.ascontiguousarray(pairs).view(np.uint32)[..., 0]
    values = np.ascontiguousarray(D[:, GROUP + 8 * (r // 2), 2 * MEMBER + r % 2])
    return values.view(np.uint64 if kind == "f64" else np.uint32)


@dataclass(frozen=True)
class _Form:
    """What an ``mma`` instruction multiplies: its shape, and the product."""

    m: int
    k: int
    product: TensorProduct

    @classmethod
    def of(cls, ins: Instruction) -> _Form:
        """The form of an instruction. Raises UnknownInstruction for one that is not supported."""
        parts = list(ins.parts)
        bits = tuple(parts[-2:]) if parts[-1] == "popc" else ()
        if bits:
            del parts[-2:]
        if len(parts) < 9 or parts[1:3] != ["sync", "aligned"]:
            raise UnknownInstruction(ins, "has a shape or type that is not supported")
        d_kind, a_kind, b_kind, c_kind = parts[-4:]
        shape = re.fullmatch(r"m(\d+)n8k(\d+)", parts[3])
        m, k = (int(shape[1]), int(shape[2])) if shape else (0, 0)
        allowed = {"rn"} if a_kind == "f64" else {"satfinite"} if a_kind[0] in "su" else set()
        same = a_kind == b_kind or {a_kind, b_kind} in _MIXED
        known = (
            same and (m, k) in _SHAPES.get(a_kind, ()) and d_kind == c_kind and d_kind in _SUMS.get(a_kind, ("s32",))
        )
        known &= bits in ((("and", "popc"), ("xor", "popc")) if a_kind == "b1" else ((),))
        if not known or parts[4:6] != ["row", "col"] or set(parts[6:-4]) - allowed:
            raise UnknownInstruction(ins, "has a shape or type that is not supported")
        flags = set(parts[6:-4]) | set(bits[:1])
        return cls(m, k, TensorProduct("mma", (a_kind, b_kind), d_kind, frozenset(flags)))


@step("mma", ("f32", "f16", "f64", "s32", "popc"))
def _mma(ins: Instruction, lanes: Lanes) -> Step:
    form = _Form.of(ins)
    m, k, product = form.m, form.k, form.product
    (a_kind, b_kind), d_kind = product.kinds, product.result
    raw = "b64" if a_kind == "f64" else "b32"
    d, a, b, c = ([*operand_tokens(o[1:-1])] if o.startswith("{") else [o] for o in ins.operands)
    e, sums = PACKED[a_kind], m // (8 if d_kind == "f16" else 4)
    if [len(x) for x in (d, a, b, c)] != [sums, m * k // (32 * e), k // (4 * e), sums]:
        raise UnknownInstruction(ins, "has fragments whose size does not fit its shape")
    work = mma_work(a_kind, m, k, xor="xor" in ins.parts)
    outs = [destination(lanes, ins, n, raw)[0] for n in d]
    a_in, b_in, c_in = ([lanes.source(n, raw, ins) for n in names] for names in (a, b, c))

    def multiply(sel: Ints | None) -> None:
        rows = warps_of(ins, lanes, sel)
        if not rows.size:
            return
        A = a_fragment(gathered(a_in, rows), a_kind, m, k)
        B = b_fragment(gathered(b_in, rows), b_kind, k)
        D = product.sum(A, B, accumulators(gathered(c_in, rows), d_kind, m))
        for r, out in enumerate(outs):
            out[rows] = result_register(D, d_kind, r)
        note_work(ins, lanes, work, rows[:, 0])
        lanes.sync_warp(rows.reshape(-1))

    return multiply
