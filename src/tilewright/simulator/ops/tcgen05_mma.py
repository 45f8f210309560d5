"""``tcgen05.mma``: products into tensor memory, issued by one thread for a block or for a pair of blocks (PTX ISA
9.7.16.10).

The instruction descriptor gives M, N and the types; K is 32 bytes for every type. A is in shared memory or in tensor
memory, and B is in shared memory. In a pair of blocks, each block has half of the rows of A and D, and half of the
columns of B. Layouts in tensor memory:

- row r of a block's D is in lane r, and column n of D is in column n of tensor memory. For M = 64 of a single block,
  row r of D is in lane r mod 16 + 32·(r div 16), + 16 if D begins at lane 16
- for M = 128 of a pair, each block has 64 rows of D; lanes 64 to 127 have the second half of the columns of these rows.
  With ``.ws``, the columns of D are also divided: into halves if a block has 64 rows of D, into quarters if it has 32
- A is packed: a column of tensor memory has as many elements of A as fit in 32 bits; D is not packed
- the scale of row r of A, or of column r of B, is in lane r mod 32 and column r div 32, in each group of 32 lanes

In shared memory, each 16 bytes have 16 elements of 4 or 6 bits, which are packed at the beginning. For ``mxf4`` and
``mxf4nvf4``, each 16 bytes have 32 elements of 4 bits. ``tensor_core`` computes the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..assembly.instructions import Instruction, operand_tokens
from ..counters.work import tcgen05_work
from ..findings import DESCRIPTOR, TCGEN05_MISUSE
from ..machine.lanes import Lanes
from ..machine.tensor_memory import LANES, OF_CELL, Cells, TensorOperation
from ..machine.values import Array, Bools, Ints, per_lane
from ..machine.warpgroups import Reading
from ._table import Step, UnknownInstruction, number_of, step
from .access import address, note_work
from .async_copy import words_of
from .descriptor import Descriptor, wrong_bits
from .operand_tiles import check_descriptor, read_tile
from .tcgen05 import blocks_used, leaders, of_pair
from .tensor_core import RESULTS, TensorProduct, block_scaled_sum, factors, scales

# ---- forms -----------------------------------------------------------------------------------------------------------

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
#: Kind → the types of A and B and of D by their numbers in the instruction descriptor.
_TYPES: dict[str, tuple[dict[int, str], dict[int, str]]] = {
    "f16": ({0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}),
    "tf32": ({2: "tf32"}, {1: "f32"}),
    "f8f6f4": (_F8F6F4, {0: "f16", 1: "f32"}),
    "i8": ({0: "u8", 1: "s8"}, {2: "s32"}),
    "mxf8f6f4": (_F8F6F4, {}),
    "mxf4": ({1: "e2m1"}, {}),
    "mxf4nvf4": ({1: "e2m1"}, {}),
}
#: Scales of a row of A, for each kind and ``.scale_vec`` or ``.block``.
_SCALES = {
    ("mxf8f6f4", ""): 1, ("mxf8f6f4", "1X"): 1, ("mxf8f6f4", "block32"): 1,
    ("mxf4", ""): 2, ("mxf4", "2X"): 2, ("mxf4", "block32"): 2,
    ("mxf4nvf4", "2X"): 2, ("mxf4nvf4", "block32"): 2, ("mxf4nvf4", "4X"): 4, ("mxf4nvf4", "block16"): 4,
}  # fmt: skip


class _Shape(NamedTuple):
    """What an instruction descriptor says: M, N and K, the types, and how A and B are read."""

    m: int
    n: int
    k: int
    kinds: tuple[str, str]
    result: str
    negate: tuple[bool, bool]
    transposed: tuple[bool, bool]
    saturates: bool
    scale_kind: str
    scale_ids: tuple[int, int]


@dataclass(frozen=True)
class _ProductForm:
    """The form of an instruction: its kind, whether it is for a pair of blocks, whether it is ``.ws`` (``stationary``),
    and the number of scales of a row (0: none)."""

    kind: str
    pair: bool
    stationary: bool
    scales: int

    @classmethod
    def of(cls, ins: Instruction) -> _ProductForm:
        """The form of an instruction. Raises UnknownInstruction for a form of ``tcgen05.mma`` that is not supported."""
        words = words_of(ins)[2:]
        kind = next((w.removeprefix("kind::") for w in words if w.startswith("kind::")), "")
        vector = next(
            (w.removeprefix("scale_vec::") for w in words if w.startswith(("scale_vec::", "block16", "block32"))), ""
        )
        scaled = "block_scale" in words
        rest = {w for w in words if not w.startswith(("kind::", "cta_group::", "scale_vec::", "collector::"))}
        count = _SCALES.get((kind, vector), 0) if scaled else 0
        if kind not in _TYPES or rest - {"block_scale", "block16", "block32", "ws"} or scaled != kind.startswith("mx"):
            raise UnknownInstruction(ins, "is a form of product that is not supported")
        if scaled and not count:
            raise UnknownInstruction(ins, "has a size of scales that its kind does not have")
        return cls(kind, of_pair(ins, words), "ws" in rest, count)

    def shape(self, bits: int) -> tuple[_Shape, str]:
        """Return the shape that an instruction descriptor describes, and a text that says why it is wrong; the text is
        empty if it is right."""
        a, d = _TYPES[self.kind]
        types = (a.get(bits >> 7 & 7, ""), a.get(bits >> 10 & (3 if self.kind.startswith("mxf4") else 7), ""))
        result = "f32" if self.scales else d.get(bits >> 4 & 3, "")
        m, n = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
        k = {"tf32": 8, "f16": 16}.get(self.kind, 64 if self.kind.startswith("mxf4") else 32)
        flags = [bool(bits >> i & 1) for i in range(32)]
        ids = (bits >> 29 & 3, bits >> 4 & 3) if self.scales else (0, 0)
        shape = _Shape(m, n, k, types, result, (flags[13], flags[14]), (flags[15], flags[16]), flags[3],
                       "ue8m0" if flags[23] else "ue4m3", ids)  # fmt: skip
        return shape, self._wrong(shape, sparse=flags[2])

    def _wrong(self, s: _Shape, sparse: bool) -> str:
        rows = [128, 256] if self.pair else [128] if self.scales else [32, 64, 128] if self.stationary else [64, 128]
        every = 16 * (1 + self.pair) if self.kind == "i8" and s.n > 32 else 8 * (1 + self.pair)
        if sparse:
            return "says that A is sparse, which tcgen05.mma.sp is for"
        if not all(s.kinds) or not s.result:
            return f"names types that .kind::{self.kind} does not have"
        if s.m not in rows:
            return f"has M = {s.m}, and {' or '.join(map(str, rows))} are possible"
        if self.scales and s.m == 128 and self.pair:
            return "has M = 128 for a pair with scales, which cannot be run"
        if not 8 <= s.n <= 256 or s.n % every or (self.stationary and s.n not in (64, 128, 256)):
            return f"has N = {s.n}, which is not possible (multiples of {every} up to 256 are)"
        if s.saturates and self.kind != "i8":
            return "saturates, which only integers can"
        return "negates integers" if self.kind == "i8" and any(s.negate) else ""


class _Fold(NamedTuple):
    """The layout of a block's D in tensor memory. The columns are divided into ``parts`` that lie in successive lanes;
    each part has ``rows`` rows, and ``groups`` selects the groups of 16 lanes that D uses."""

    parts: int
    rows: int
    groups: slice

    @property
    def lanes(self) -> slice | Ints:
        """The lanes of D, as an index into the lanes of tensor memory."""
        return Cells(0, self.groups, slice(0)).lanes

    def unfolded(self, words: Array) -> Array:
        """Convert words of tensor memory (…, lanes, columns) to a matrix D (…, rows, n)."""
        split = words.reshape(*words.shape[:-2], self.parts, self.rows, words.shape[-1])
        return np.ascontiguousarray(np.moveaxis(split, -3, -2)).reshape(*words.shape[:-2], self.rows, -1)

    def folded(self, matrix: Array) -> Array:
        """Convert a matrix D (…, rows, n) to words of tensor memory (…, lanes, columns)."""
        split = matrix.reshape(*matrix.shape[:-1], self.parts, -1)
        return np.ascontiguousarray(np.moveaxis(split, -2, -3)).reshape(*matrix.shape[:-2], self.parts * self.rows, -1)


def _fold(form: _ProductForm, m: int, lane: int) -> _Fold | None:
    """How D of each block lies that begins at a lane; None if it cannot begin there."""
    whole = slice(0, LANES // OF_CELL)
    rows = m // (1 + form.pair)
    if rows == 64 and not form.pair and not form.stationary:
        return _Fold(1, 64, slice(lane // OF_CELL, LANES // OF_CELL, 2)) if lane in (0, 16) else None
    return _Fold(LANES // rows, rows, whole) if lane == 0 else None


# ---- the instruction -------------------------------------------------------------------------------------------------


class _Operands:
    """The operands of an instruction, bound to the lanes."""

    def __init__(self, ins: Instruction, lanes: Lanes, form: _ProductForm) -> None:
        given = list(ins.operands)
        self.in_tensor_memory = len(given) > 1 and given[1].startswith("[")
        if len(given) < (7 if form.scales else 5):
            raise UnknownInstruction(ins, "has too few operands")
        self.d = address(given[0], lanes, ins, narrow=True)
        self.a_place = address(given[1], lanes, ins, narrow=True) if self.in_tensor_memory else None
        self.a = None if self.in_tensor_memory else lanes.source(given[1], "u64", ins)
        self.b, self.shape = lanes.source(given[2], "u64", ins), lanes.source(given[3], "u32", ins)
        rest = given[4:]
        self.scales = [address(rest.pop(0), lanes, ins, narrow=True) for _ in range(2 if form.scales else 0)]
        masks = operand_tokens(rest.pop(0)[1:-1]) if rest[0].startswith("{") else []
        self.masks = [lanes.source(name, "u32", ins) for name in masks]
        self.adds = lanes.source(rest.pop(0), "pred", ins)
        self.shift = number_of(ins, rest.pop(0)) if rest and not form.stationary else 0
        if masks and len(masks) != 4 * (1 + form.pair):
            raise UnknownInstruction(ins, f"has {len(masks)} words that disable lanes, and not {4 * (1 + form.pair)}")
        if rest or (self.shift and form.kind not in ("f16", "tf32")) or not 0 <= self.shift <= 15:
            raise UnknownInstruction(ins, "has an operand that is not supported")

    def rows(self, some: Ints) -> Ints:
        """Return the values of all operands for these lanes: (lanes, operands)."""
        columns = [self.d(some), per_lane(self.a, some) if self.a is not None else self.a_place(some)]  # type: ignore[misc]
        columns += [per_lane(self.b, some), per_lane(self.shape, some), per_lane(self.adds, some)]
        columns += [where(some) for where in self.scales] + [per_lane(x, some) for x in self.masks]
        return np.stack([np.asarray(c).astype(np.uint64) for c in columns], axis=1)


@step("tcgen05.mma")
def _mma(ins: Instruction, lanes: Lanes) -> Step:
    form = _ProductForm.of(ins)
    operands, memory = _Operands(ins, lanes, form), lanes.use_tensor_memory()

    def multiply(sel: Ints | None) -> None:
        some = leaders(ins, lanes, sel)
        values = operands.rows(some)
        # Lanes with the same operands, of different blocks, are one product.
        _, same = np.unique(values, axis=0, return_inverse=True)
        same = same.reshape(-1)
        for number in range(int(same.max()) + 1):
            group = some[same == number]
            for lane in group.tolist():
                memory.check_pair(ins, form.pair, lane)
            _Product(ins, lanes, form, operands, group, [int(x) for x in values[np.argmax(same == number)]]).run()

    return multiply


class _Product:
    """One product that several lanes issue, each for its own block or pair of blocks; the operands have the same values
    in all these lanes."""

    def __init__(
        self, ins: Instruction, lanes: Lanes, form: _ProductForm, operands: _Operands, some: Ints, values: list[int]
    ) -> None:
        self.ins, self.lanes, self.form, self.some = ins, lanes, form, some
        self.memory, self.given = lanes.use_tensor_memory(), operands
        self.d, self.a, self.b, self.bits, adds, *rest = values
        self.adds = bool(adds)
        self.scales, masks = rest[: len(operands.scales)], rest[len(operands.scales) :]
        self.shape, self.wrong = form.shape(self.bits)
        fold = _fold(form, self.shape.m, self.d >> 16)
        self.fold = fold or _Fold(1, LANES, slice(0, 8))
        if fold is None and not self.wrong:
            self.wrong = f"says that M is {self.shape.m}, and D begins at lane {self.d >> 16}"
        self.blocks = [blocks_used(lanes, lane, form.pair) for lane in some.tolist()]
        # Lanes of each block of the pair whose results are not stored.
        bits = np.array([word >> i & 1 for word in masks for i in range(32)], bool)
        self.disabled = bits.reshape(-1, LANES) if bits.size else None
        self.operations: list[TensorOperation] = []

    def _report(self, kind: str, text: str) -> None:
        self.memory.report(kind, self.ins, int(self.some[0]), text)

    @property
    def _columns(self) -> slice:
        """The columns of D."""
        first = self.d & 0xFFFF
        return slice(first, first + self.shape.n // self.fold.parts)

    def _descriptor(self, bits: int, side: str) -> Descriptor | None:
        wrong = wrong_bits(bits)
        if wrong:
            self._report(DESCRIPTOR, f"in the descriptor of {side} {wrong}")
            return None
        return Descriptor.of_tcgen05(bits)

    def run(self) -> None:
        """Compute the product and store it. If an operand is invalid, report it and store nothing."""
        if self.wrong:
            self._report(DESCRIPTOR, f"the instruction descriptor {self.wrong}")
            return
        if self.form.pair and self.lanes.cluster.size % 2:
            return
        a = None if self.given.in_tensor_memory else self._descriptor(self.a, "A")
        b = self._descriptor(self.b, "B")
        if b is None or (a is None and not self.given.in_tensor_memory) or not self._begin():
            return
        note_work(self.ins, self.lanes, tcgen05_work(), self.some)
        ranks = range(1 + self.form.pair)
        B = np.concatenate([self._tile(b, 1, rank) for rank in ranks], axis=-1)
        for rank in ranks:
            A = self._tile(a, 0, rank) if a is not None else self._packed(rank)
            blocks = [blocks[rank] for blocks in self.blocks]
            C = self._accumulators(blocks)
            self._store(blocks, self._sum(A, B, C, blocks), None if self.disabled is None else self.disabled[rank])

    def _begin(self) -> bool:
        """Issue the operations, one for each lane, which read and write tensor memory; False if it is not allocated."""
        s, memory = self.shape, self.memory
        first = self.a & 0xFFFF
        a_columns = slice(first, first + s.k * _bits(s.kinds[0], self.form) // 32)
        for lane, blocks in zip(self.some.tolist(), self.blocks, strict=True):
            columns, reads = self._columns, []
            for block in blocks:
                if not memory.in_bounds(
                    self.ins, lane, block, columns.start, columns.stop - columns.start, "writes D to"
                ):
                    return False
                if self.given.in_tensor_memory:
                    if not memory.in_bounds(self.ins, lane, block, first, a_columns.stop - first, "reads A from"):
                        return False
                    reads.append(Cells(block, self.fold.groups, a_columns))
                for at, count, side in zip(self.scales, self._scale_columns(), "AB", strict=False):
                    if not memory.in_bounds(
                        self.ins, lane, block, at & 0xFFFF, count, f"reads the scales of {side} from"
                    ):
                        return False
                    reads.append(Cells(block, slice(0, 8), slice(at & 0xFFFF, (at & 0xFFFF) + count)))
            accumulator = (self.d, s.m, s.n, self.form.kind, self.form.stationary)
            operation = TensorOperation(
                self.ins, "mma", lane, int(self.lanes.base_warp[lane]), self.form.pair, accumulator
            )  # fmt: skip
            memory.begin(operation)
            self.operations.append(operation)
            writes = [Cells(block, self.fold.groups, columns) for block in blocks]
            memory.access(operation, writes, reads)
            for block in blocks:
                if self.adds:
                    memory.check_written(operation, block, self.fold.lanes, columns, "the accumulator ")
            for cells in reads:
                what = "A " if cells.columns == a_columns and self.given.in_tensor_memory else "scales "
                memory.check_written(operation, cells.block, cells.lanes, cells.columns, what)
        return True

    def _scale_columns(self) -> tuple[int, int]:
        return LANES // 32, -(-self.shape.n // 32)

    # ---- operands

    def _tile(self, descriptor: Descriptor, side: int, rank: int) -> Array:
        """A (lanes, rows of a block, k), or for side 1 B (lanes, k, columns of a block), by their descriptor."""
        s, kind = self.shape, self.shape.kinds[side]
        rows = (self.shape.m, self.shape.n)[side] // (1 + self.form.pair)
        each, transposed = 128 // _bits(kind, self.form), s.transposed[side]
        shape = (s.k, -(-rows // each)) if transposed else (rows, s.k // each)
        if rank == 0:
            check_descriptor(
                self.ins, self.lanes, descriptor, self.some, side="AB"[side], shape=shape, transposed=transposed
            )
        chunks, data = descriptor.chunks(*shape, transposed), np.empty((len(self.some), *shape, 16), np.uint8)
        for i, (lane, blocks) in enumerate(zip(self.some, self.blocks, strict=True)):
            reading: Reading = []
            away, lead = blocks[rank] - int(self.lanes.of_block[lane]), np.array([lane])
            tile = read_tile(
                self.ins, self.lanes, chunks, lead, reading, side="AB"[side], mode=descriptor.mode, away=away
            )
            data[i] = tile.reshape(*shape, 16)
            self.memory.reads_shared(self.operations[i], [transfer for _, transfer in reading])
        numbers = _numbers(data, kind, self.form).reshape(len(self.some), shape[0], -1)
        numbers = numbers[:, :, :rows] if transposed else numbers
        numbers = -numbers if s.negate[side] else numbers
        return np.ascontiguousarray(numbers.swapaxes(1, 2)) if transposed != bool(side) else numbers

    def _packed(self, rank: int) -> Array:
        """A (lanes, rows of a block, k) from tensor memory."""
        s, first = self.shape, self.a & 0xFFFF
        bits = _bits(s.kinds[0], self.form)
        if s.kinds[0] in ("e2m1", "e2m3", "e3m2") and bits == 8:
            raise UnknownInstruction(self.ins, f"has A of type {s.kinds[0]} in tensor memory, which cannot be run")
        if (self.a >> 16) != (self.d >> 16):
            self._report(
                TCGEN05_MISUSE, f"has D at lane {self.d >> 16} and A at lane {self.a >> 16}, which must be equal"
            )
        lanes, columns = np.arange(LANES)[self.fold.lanes][: self.fold.rows], slice(first, first + s.k * bits // 32)
        words = np.stack([self.memory.data[blocks[rank], lanes, columns] for blocks in self.blocks])
        data = np.ascontiguousarray(words).view(np.uint8).reshape(len(self.some), self.fold.rows, -1, 16)
        numbers = _numbers(data, s.kinds[0], self.form).reshape(len(self.some), self.fold.rows, -1)
        return -numbers if s.negate[0] else numbers

    def _accumulators(self, blocks: list[int]) -> Array:
        """D (lanes, rows of a block, n) before the product, in its type; zeros if it is not added."""
        s = self.shape
        dtype = np.dtype(RESULTS[s.result])
        if not self.adds:
            return np.zeros((len(blocks), self.fold.rows, s.n), dtype)
        words = np.stack([self.memory.data[block, self.fold.lanes, self._columns] for block in blocks])
        values = self.fold.unfolded(words.astype(f"u{dtype.itemsize}"))
        numbers = values.view(dtype)
        return np.ldexp(numbers, -self.given.shift).astype(dtype) if self.given.shift else numbers

    def _store(self, blocks: list[int], D: Array, disabled: Bools | None) -> None:
        words = self.fold.folded(D).view(f"u{D.dtype.itemsize}").astype(np.uint32)
        lanes, columns = np.arange(LANES)[self.fold.lanes], self._columns
        kept = slice(None) if disabled is None else ~disabled[lanes]
        for block, mine in zip(blocks, words, strict=True):
            self.memory.data[block, lanes[kept], columns] = mine[kept]
            self.memory.written[block, lanes[kept], columns] = True

    def _sum(self, A: Array, B: Array, C: Array, blocks: list[int]) -> Array:
        s = self.shape
        if not self.form.scales:
            flags = frozenset({"satfinite"} if s.saturates else ())
            return TensorProduct("tcgen05", s.kinds, s.result, flags).sum(A, B, C)
        of_a = np.stack([self._scales_of(block, 0, s.m // (1 + self.form.pair)) for block in blocks])
        of_b = np.stack([self._scales_of(block, 1, s.n) for block in blocks])
        return block_scaled_sum(A, B, C, s.kinds, of_a, of_b)

    def _scales_of(self, block: int, side: int, rows: int) -> Array:
        """The scales of the rows of A or the columns of B: (rows, scales)."""
        first, columns = self.scales[side] & 0xFFFF, -(-rows // 32)
        words = self.memory.data[block, :32, first : first + columns]
        data = np.ascontiguousarray(words.T).reshape(-1)[:rows].view(np.uint8).reshape(rows, 4)
        at = self.shape.scale_ids[side]
        return scales(data[:, at : at + self.form.scales], self.shape.scale_kind)


def _bits(kind: str, form: _ProductForm) -> int:
    """Bits of memory for an element."""
    if form.kind.startswith("mxf4"):
        return 4
    return {"tf32": 32, "f16": 16, "bf16": 16}.get(kind, 8)


def _numbers(data: Array, kind: str, form: _ProductForm) -> Array:
    """Chunks of 16 bytes (…, 16) → numbers (…, elements of a chunk)."""
    if kind == "e2m1":
        some = data if form.kind.startswith("mxf4") else data[..., :8]
        return factors(np.stack([some & 15, some >> 4], axis=-1).reshape(*data.shape[:-1], -1), kind)
    if kind in ("e2m3", "e3m2"):
        bits = np.unpackbits(data[..., :12], axis=-1, bitorder="little").reshape(*data.shape[:-1], 16, 6)
        return factors(np.packbits(bits, axis=-1, bitorder="little")[..., 0], kind)
    return factors(data.view(f"u{_bits(kind, form) // 8}"), kind)
