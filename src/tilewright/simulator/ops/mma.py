"""Instructions on matrices that one warp holds in registers, namely ``mma.sync``, ``ldmatrix`` and related
instructions, and ``wmma`` (PTX ISA 9.7.15).

The layouts of all fragments of ``mma`` follow one rule. In this rule, let g = lane / 4 and t = lane % 4. A 32-bit
register has e elements (1 for tf32 and f64, 2 for halves, 4 for bytes, 8 for 4-bit integers, 32 for bits). Element j of
register r of a fragment is the following element of the matrix:

- for a fragment of A, the element in row g + 8·(r mod M/8) and column e·t + j + 4·e·(r div M/8)
- for a fragment of B, the element in row e·t + j + 4·e·r and column g
- for a fragment of C or D, the element in row g + 8·(r div 2) and column 2·t + r mod 2; for packed halves, the element
  in row g + 8·r and column 2·t + j

The PTX ISA does not say how ``wmma`` lays out fragments in registers. The simulator lays out fragments of ``wmma`` as
for ``mma``, in parts of 16 rows (A, C) or of 8 columns (B), one after another. Compilers for compute capability 8.0 and
above use the same layout. For float16, PTX requires twice as many registers for A and B as GPUs of compute capability
8.0 and above need. In a ``wmma`` fragment of float16, the second half of the registers repeats the first half.
``tensor_core`` computes the products.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..assembly.instructions import Instruction, elements_of
from ..counters.work import mma_work
from ..machine.lanes import Lanes
from ..machine.memory import Region
from ..machine.spaces import WINDOW
from ..machine.values import DTYPES, Array, Ints, per_lane
from ._table import Step, UnknownInstruction, destination, step
from .access import address, note_read, note_work, note_write, visit
from .tensor_core import NARROW, PACKED, RESULTS, TensorProduct, factors

# ---- mma.sync --------------------------------------------------------------------------------------------------------

LANE = np.arange(32)
#: The position of each lane in a fragment: its row in a group of eight, and its number among the four lanes of that row.
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
    """Return the active lanes as whole warps (w, 32). A warp with only some active lanes is reported and left out.

    With ``size`` 128, return the active lanes as whole groups of four warps (w, 128).
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
    """Convert registers, an array of any shape (…), to the numbers that are their elements: (…, e)."""
    parts = np.ascontiguousarray(bits)[..., None]
    return factors(parts if kind in ("f64", "s4", "u4", "b1") else parts.view(f"u{4 // PACKED[kind]}"), kind)


def gathered(registers: list[Array], rows: Ints) -> list[Array]:
    """``per_lane`` for several registers."""
    return [per_lane(x, rows) for x in registers]


def a_fragment(registers: list[Array], kind: str, m: int, k: int) -> Array:
    """Convert the registers (w, 32) of a fragment of A to numbers (w, m, k)."""
    e, high = PACKED[kind], m // 8
    out = np.empty((len(registers[0]), m, k))
    for r, bits in enumerate(registers):
        column = e * MEMBER[:, None] + np.arange(e) + 4 * e * (r // high)
        out[:, GROUP[:, None] + 8 * (r % high), column] = elements(bits, kind)
    return out


def b_fragment(registers: list[Array], kind: str, k: int) -> Array:
    """Convert the registers (w, 32) of a fragment of B to numbers (w, k, 8)."""
    e = PACKED[kind]
    out = np.empty((len(registers[0]), k, 8))
    for r, bits in enumerate(registers):
        out[:, e * MEMBER[:, None] + np.arange(e) + 4 * e * r, GROUP[:, None]] = elements(bits, kind)
    return out


def accumulators(registers: list[Array], kind: str, m: int) -> Array:
    """Convert the registers (w, 32) of a fragment of C to numbers (w, m, 8) of its own type."""
    out = np.empty((len(registers[0]), m, 8), RESULTS[kind])
    for r, bits in enumerate(registers):
        parts = np.ascontiguousarray(bits)
        if kind == "f16":
            out[:, GROUP[:, None] + 8 * r, 2 * MEMBER[:, None] + np.arange(2)] = parts[..., None].view(np.float16)
        else:
            out[:, GROUP + 8 * (r // 2), 2 * MEMBER + r % 2] = parts.view(out.dtype)
    return out


def result_register(D: Array, kind: str, r: int) -> Array:
    """Return register r of the fragment of D, as bits (w, 32)."""
    if kind == "f16":
        pairs = D[:, GROUP[:, None] + 8 * r, 2 * MEMBER[:, None] + np.arange(2)]
        return np.ascontiguousarray(pairs).view(np.uint32)[..., 0]
    values = np.ascontiguousarray(D[:, GROUP + 8 * (r // 2), 2 * MEMBER + r % 2])
    return values.view(np.uint64 if kind == "f64" else np.uint32)


@dataclass(frozen=True)
class _Form:
    """The form of an ``mma`` instruction: its shape, and the product that it computes."""

    m: int
    k: int
    product: TensorProduct

    @classmethod
    def of(cls, ins: Instruction) -> _Form:
        """The form of an instruction. Raises UnknownInstruction for a form of ``mma`` that is not supported."""
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
    d, a, b, c = map(elements_of, ins.operands)
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


# ---- ldmatrix, stmatrix, movmatrix -----------------------------------------------------------------------------------


def _matrices(ins: Instruction, vector: str) -> tuple[list[str], bool]:
    """The registers of a ldmatrix or stmatrix, and whether it transposes."""
    flags = set(ins.parts[1:]) - {"sync", "aligned", "m8n8", "shared", "cta", "b16", "trans"}
    names = elements_of(vector)
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
            settle = note_write(ins, lanes, region, offsets, 16, chosen)
            place = (offsets >> 1)[:, None] + np.arange(8)
            memory = region.view(np.dtype(np.uint16))
            memory[place] = data[slice(None) if at is None else at]
            if settle is not None:
                settle(np.zeros(offsets.size, bool))

        visit(ins, lanes, "shared" if "shared" in ins.parts else "", "stmatrix", 16, where, put)(address_lanes)
        lanes.sync_warp(warps.reshape(-1))

    return store


# ---- wmma ------------------------------------------------------------------------------------------------------------

_WIDE = {(16, 16, 16), (32, 8, 16), (8, 32, 16)}
#: Shapes (m, n, k) of each type of A and B.
_WMMA_SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _WIDE),
    "tf32": {(16, 16, 8)},
    "f64": {(8, 8, 4)},
}
#: Types of C and D, for each type of A and B.
_WMMA_SUMS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "f64": ("f64",),
    "s8": ("s32",),
    "u8": ("s32",),
}


@dataclass(frozen=True)
class _Fragment:
    """A matrix of ``rows`` × ``columns`` in registers, which is A, B, C or D (``role``) of a type."""

    role: str
    kind: str
    rows: int
    columns: int

    @property
    def packed(self) -> int:
        """Elements of a register."""
        return {"f16": 2}.get(self.kind, 1) if self.role in "cd" else PACKED[self.kind]

    @property
    def register(self) -> str:
        """The type of a register."""
        return "b64" if self.kind == "f64" else "b32"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 8 if self.kind == "f64" else 4 // self.packed

    @property
    def count(self) -> int:
        """The number of registers that hold the matrix once."""
        return self.rows * self.columns // (32 * self.packed)

    def names(self, ins: Instruction, operand: str) -> list[str]:
        """Return the registers of an operand. Raises UnknownInstruction if the number of registers does not fit the
        fragment's shape."""
        found = elements_of(operand)
        # PTX lists eight registers for A and B of float16. These GPUs need two, four or eight of them, by the shape.
        need = 8 if self.kind == "f16" and self.role in "ab" else self.count
        if len(found) != need:
            raise UnknownInstruction(ins, "has fragments whose size does not fit its shape")
        return found

    def places(self) -> tuple[Ints, Ints]:
        """Return the row and the column of each element: (registers, 32, packed)."""
        e, j, r = self.packed, np.arange(self.packed), np.arange(self.count)[:, None, None]
        group, member = GROUP[:, None], MEMBER[:, None]
        if self.role == "b":
            deep = self.rows // (4 * e)  # registers of eight columns
            return e * member + j + 4 * e * (r % deep), group + 8 * (r // deep)
        high = min(self.rows, 16) // 8
        if self.role == "a":
            part = self.count * 8 * high // self.rows  # registers of up to 16 rows
            return group + 8 * (r % part % high) + 16 * (r // part), e * member + j + 4 * e * (r % part // high)
        pair = 2 // e  # registers of one row of eight columns
        row = group + 8 * (r // pair % high)
        column = 2 * member + (j if e == 2 else r % 2)
        block = r // (pair * high)
        across = self.columns // 8
        return row + 16 * (block // across) + 0 * j, column + 8 * (block % across)


def _wmma_shape(ins: Instruction) -> tuple[int, int, int]:
    found = next((re.fullmatch(r"m(\d+)n(\d+)k(\d+)", p) for p in ins.parts if re.fullmatch(r"m\d+n\d+k\d+", p)), None)
    if found is None:
        raise UnknownInstruction(ins, "has no shape")
    return int(found[1]), int(found[2]), int(found[3])


def _fragment(ins: Instruction, role: str, kind: str) -> _Fragment:
    m, n, k = _wmma_shape(ins)
    kinds = [
        a
        for a, shapes in _WMMA_SHAPES.items()
        if (m, n, k) in shapes and (kind == a if role in "ab" else kind in _WMMA_SUMS[a])
    ]
    if not kinds:
        raise UnknownInstruction(ins, "has a shape or type that is not supported")
    return _Fragment(role, kind, k if role == "b" else m, k if role == "a" else n)


@step("wmma")
def _wmma(ins: Instruction, lanes: Lanes) -> Step:
    what = ins.parts[1] if len(ins.parts) > 4 else ""
    if what == "mma":
        return _wmma_multiply(ins, lanes)
    if what not in ("load", "store") or ins.parts[2] not in "abcd":
        raise UnknownInstruction(ins)
    flags = set(ins.parts[3:-1]) - {"sync", "aligned", "row", "col", "shared", "cta", "global"}
    flags -= {p for p in flags if re.fullmatch(r"m\d+n\d+k\d+", p)}
    if flags or ("row" in ins.parts) == ("col" in ins.parts):
        raise UnknownInstruction(ins)
    return _Move(ins, lanes).step


class _Request(NamedTuple):
    """An access of a warp to memory: its kind, the row and column (or column and row) of each lane's first element, and
    the bytes per lane."""

    kind: str
    major: Ints
    minor: Ints
    nbytes: int


class _Move:
    """Executes ``wmma.load`` and ``wmma.store``, which move a matrix between memory and a fragment, register by
    register."""

    def __init__(self, ins: Instruction, lanes: Lanes) -> None:
        self.ins, self.lanes = ins, lanes
        self.loads = ins.parts[1] == "load"
        self.fragment = fragment = _fragment(ins, ins.parts[2], ins.parts[-1])
        vector, place = ins.operands[:2] if self.loads else ins.operands[1::-1]
        names = fragment.names(ins, vector)
        by_row = "row" in ins.parts
        spare = fragment.columns if by_row else fragment.rows
        self.space = next((s for s in ("shared", "global") if s in ins.parts), "")
        self.base = address(place, lanes, ins, self.space == "shared")
        self.stride = lanes.source(ins.operands[2] if len(ins.operands) > 2 else str(spare), "u32", ins)
        if self.loads:
            self.outs = [destination(lanes, ins, n, fragment.register)[0] for n in names]
        else:
            self.inputs = [lanes.source(n, fragment.register, ins) for n in names]
        row, column = np.broadcast_arrays(*fragment.places())
        self.major, self.minor = (row, column) if by_row else (column, row)
        # Elements of a register that follow each other in memory are one access.
        joined = bool((np.diff(self.minor, axis=2) == 1).all() and (np.diff(self.major, axis=2) == 0).all())
        self.wide = fragment.packed if joined else 1
        self.requests = self._requests(by_row)

    def _requests(self, by_row: bool) -> list[_Request]:
        """The accesses that the compiler makes of the instruction, which observers count.

        From shared memory, A and B of 8 and 16 bits come by ``ldmatrix``, four registers at once. Otherwise two elements
        of C in a row are one access, and halves across the rows are read along them and transposed in registers.
        """
        f, word = self.fragment, "ld" if self.loads else "st"
        joined, left = self.wide == f.packed > 1, (self.major.min(axis=(1, 2)), self.minor.min(axis=(1, 2)))
        if f.role in "ab" and self.space == "shared" and (joined or f.size == 2):
            most = next(n for n in (4, 2, 1) if f.count % n == 0)
            line = np.arange(8)
            return [
                _Request("ldmatrix", np.concatenate([left[0][r + i] + line for i in range(most)]),
                         np.concatenate([np.full(8, left[1][r + i]) for i in range(most)]), 16)
                for r in range(0, f.count, most)
            ]  # fmt: skip
        if f.size == 2 and not joined:
            return [_Request(word, left[0][r] + GROUP, left[1][r] + 2 * MEMBER, 4) for r in range(f.count)]
        pairs = 2 if f.role in "cd" and f.packed == 1 and by_row else 1
        return [
            _Request(word, self.major[r, :, j], self.minor[r, :, j], f.size * self.wide * pairs)
            for r in range(0, f.count, pairs)
            for j in range(0, f.packed, self.wide)
        ]

    def _observe(self, rows: Ints, base: Ints, stride: Ints) -> None:
        """Tell the observer of the accesses by these warps."""
        lanes, observer = self.lanes, self.lanes.launch.options.observer
        if observer is None:
            return
        name = self.space or {1: "shared", 2: "local"}.get(int(base[0]) >> 56, "global")
        for kind, major, minor, nbytes in self.requests:
            some = rows[:, : len(major)].reshape(-1)
            where = np.broadcast_to(stride, rows.shape)[:, : len(major)] * major + minor
            a = base.reshape(rows.shape)[:, : len(major)] + where * self.fragment.size
            a = (a - (0 if self.space else WINDOW.get(name, 0))).reshape(-1)
            observer.on_access(name, kind, self.ins, lanes.warp[some], lanes.lane[some], a, nbytes)

    def step(self, sel: Ints | None) -> None:
        """Move the matrix between memory and registers, for whole warps."""
        rows = warps_of(self.ins, self.lanes, sel)
        if not rows.size:
            return
        fragment, flat = self.fragment, rows.reshape(-1)
        base = self.base(flat)
        stride = (self.stride if self.stride.ndim == 0 else self.stride[flat]).astype(np.int64)
        self._observe(rows, base, stride if stride.ndim == 0 else stride.reshape(rows.shape))
        lane, nbytes = np.tile(np.arange(32), len(rows)), fragment.size * self.wide
        dtype = np.dtype(f"u{nbytes}")
        for r in range(fragment.count):
            parts = np.zeros((flat.size, fragment.packed // self.wide), dtype)
            if not self.loads:
                bits = np.ascontiguousarray(per_lane(self.inputs[r], rows)).reshape(-1, 1)
                parts[:] = bits.view(dtype)
            for j in range(parts.shape[1]):
                where = base + (self.major[r, lane, j] * stride + self.minor[r, lane, j]) * fragment.size
                self._access(flat, where, parts[:, j], nbytes)
            if self.loads:
                value = np.ascontiguousarray(parts).view(DTYPES[fragment.register])[:, 0]
                for out in self.outs[r :: fragment.count]:
                    out[flat] = value
        self.lanes.sync_warp(flat)

    def _access(self, flat: Ints, where: Ints, column: Array, nbytes: int) -> None:
        """One element, or several that follow each other, of each lane."""
        ins, lanes, loads = self.ins, self.lanes, self.loads

        def act(region: Region, offsets: Ints, at: Ints | None, chosen: Ints | None) -> None:
            memory, place = region.view(column.dtype), slice(None) if at is None else at
            if loads:
                note_read(ins, lanes, region, offsets, nbytes, chosen)
                column[place] = memory[offsets // nbytes]
                return
            settle = note_write(ins, lanes, region, offsets, nbytes, chosen)
            memory[offsets // nbytes] = column[place]
            if settle is not None:
                settle(np.zeros(offsets.size, bool))

        visit(ins, lanes, self.space, "", nbytes, lambda _: where, act)(flat)


#: The ``mma.sync`` that ptxas makes of a ``wmma.mma`` for sm_90, by the type of A: the same for every shape.
_WMMA_WORK = {
    **{kind: mma_work(kind, 16, 16, instructions=2) for kind in ("f16", "bf16", "s8", "u8")},
    "tf32": mma_work("tf32", 16, 4, instructions=4),
    "f64": mma_work("f64", 8, 4),
}


def _wmma_multiply(ins: Instruction, lanes: Lanes) -> Step:
    """``wmma.mma``: D = A·B + C."""
    parts = [p for p in ins.parts[2:] if p not in ("sync", "aligned", "row", "col", "rn", "satfinite")]
    if len(parts) not in (3, 5) or ins.parts.count("row") + ins.parts.count("col") != 2:
        raise UnknownInstruction(ins, "has a shape or type that is not supported")
    kinds = parts[1:] if len(parts) == 5 else [parts[1], "f16", "f16", parts[2]]
    d, a, b, c = (_fragment(ins, role, kind) for role, kind in zip("dabc", kinds, strict=True))
    m, n, k = _wmma_shape(ins)
    if (m, n, k) not in _WMMA_SHAPES[a.kind] or a.kind != b.kind or not {d.kind, c.kind} <= set(_WMMA_SUMS[a.kind]):
        raise UnknownInstruction(ins, "has a shape or type that is not supported")
    # Halves from sums in float32 are rounded twice: the GPU has no instruction that does both.
    product = TensorProduct("wmma", (a.kind, b.kind), c.kind if d.kind == "f16" else d.kind, _wmma_flags(ins))
    outs = [destination(lanes, ins, name, d.register)[0] for name in d.names(ins, ins.operands[0])]
    inputs = [
        [lanes.source(name, f.register, ins) for name in f.names(ins, operand)[: f.count]]
        for f, operand in zip((a, b, c), ins.operands[1:], strict=True)
    ]

    work = _WMMA_WORK[a.kind]

    def multiply(sel: Ints | None) -> None:
        rows = warps_of(ins, lanes, sel)
        if not rows.size:
            return
        A, B, C = (_matrix(f, gathered(x, rows)) for f, x in zip((a, b, c), inputs, strict=True))
        D = product.sum(A, B, C.astype(RESULTS[product.result])).astype(RESULTS[d.kind])
        row, column = d.places()
        for r, out in enumerate(outs):
            values = np.ascontiguousarray(D[:, row[r], column[r]])
            out[rows] = values.view(DTYPES[d.register])[..., 0]
        note_work(ins, lanes, work, rows[:, 0])
        lanes.sync_warp(rows.reshape(-1))

    return multiply


def _wmma_flags(ins: Instruction) -> frozenset[str]:
    return frozenset({"satfinite"} & set(ins.parts))


def _matrix(fragment: _Fragment, registers: list[Array]) -> Array:
    """Registers (w, 32) as a matrix: of C in its own type, of A and B as numbers."""
    row, column = fragment.places()
    out = np.empty(
        (len(registers[0]), fragment.rows, fragment.columns),
        RESULTS[fragment.kind] if fragment.role == "c" else np.float64,
    )
    for r, bits in enumerate(registers):
        parts = np.ascontiguousarray(bits)[..., None]
        if fragment.role == "c":
            out[:, row[r], column[r]] = parts.view(out.dtype)
        else:
            out[:, row[r], column[r]] = factors(parts.view(f"u{fragment.size}"), fragment.kind)
    return out
