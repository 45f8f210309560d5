"""``wgmma``: matrix products of a warpgroup, which are four warps (PTX ISA 9.7.16).

The simulator computes a product when the instruction is issued. The operands of a product are read from shared memory
by their descriptors, and ``tensor_core`` computes the fused sum. Fragments of A in registers, and fragments of D, are
laid out as for ``mma``. Warp w of the warpgroup has rows 16·w to 16·w + 15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..assembly.instructions import Instruction, operand_tokens, ptx_integer
from ..counters.work import wgmma_work
from ..machine.lanes import Lanes
from ..machine.values import Array, Ints, per_lane
from ..machine.warpgroups import Reading
from ._table import Step, UnknownInstruction, destination, number_of, step
from .access import note_work
from .descriptor import Descriptor
from .mma import a_fragment, gathered, warps_of
from .operand_tiles import check_descriptor, read_tile
from .tensor_core import NARROW, RESULTS, TensorProduct, factors

_INTEGERS = ("s8", "u8")
_SIZES = {"tf32": 4, "f16": 2, "bf16": 2, **dict.fromkeys((*NARROW, *_INTEGERS), 1)}
_SUMS = {"tf32": ("f32",), "bf16": ("f32",), **dict.fromkeys(("f16", *NARROW), ("f16", "f32"))}
_ROWS = 64  # of A and D
_DEPTH = 32  # bytes of K


@dataclass(frozen=True)
class _WarpgroupForm:
    """The form of a ``wgmma.mma_async``: the columns of B, the depth in elements, the product, and how operands are
    read."""

    n: int
    k: int
    product: TensorProduct
    from_registers: bool
    negate: tuple[bool, bool]
    transposed: tuple[bool, bool]

    @classmethod
    def of(cls, ins: Instruction) -> _WarpgroupForm:
        """The form of an instruction. Raises UnknownInstruction for a form of ``wgmma`` that is not supported."""
        parts = list(ins.parts)
        flags = {"satfinite"} & {parts[-1]}
        if flags:
            del parts[-1]
        shape = re.fullmatch(r"m64n(\d+)k(\d+)", parts[4]) if len(parts) == 8 else None
        if shape is None or parts[2:4] != ["sync", "aligned"]:
            raise UnknownInstruction(ins, "has a shape or type that is not supported")
        n, k, (d_kind, a_kind, b_kind) = int(shape[1]), int(shape[2]), parts[5:]
        integers = a_kind in _INTEGERS
        same = (
            a_kind == b_kind or (a_kind in _INTEGERS and b_kind in _INTEGERS) or (a_kind in NARROW and b_kind in NARROW)
        )
        known = same and d_kind in (("s32",) if integers else _SUMS.get(a_kind, ())) and k * _SIZES[a_kind] == _DEPTH
        columns = 8 <= n <= 256 and n % (16 if integers and n > 24 else 8) == 0
        if not (known and columns) or (flags and not integers):
            raise UnknownInstruction(ins, "has a shape or type that is not supported")
        registers = len(ins.operands) > 1 and ins.operands[1].startswith("{")
        numbers = [ptx_integer(o) for o in ins.operands[4:]]
        halves = _SIZES[a_kind] == 2
        count = 0 if integers else 2 + halves * (1 if registers else 2)
        if (
            len(numbers) != count
            or any(x not in (1, -1) for x in numbers[:2])
            or any(x not in (0, 1) for x in numbers[2:])
        ):
            raise UnknownInstruction(ins, "has operands that do not fit its form")
        transposed = [bool(x) for x in numbers[2:]]
        return cls(
            n, k, TensorProduct("wgmma", (a_kind, b_kind), d_kind, frozenset(flags)), registers,
            (-1 in numbers[:1], -1 in numbers[1:2]),
            (transposed[0] if len(transposed) == 2 else False, transposed[-1] if transposed else False),
        )  # fmt: skip


@step("wgmma")
def _wgmma(ins: Instruction, lanes: Lanes) -> Step:
    what = ins.parts[1] if len(ins.parts) > 1 else ""
    if what == "mma_async":
        return _multiply(ins, lanes)
    if what not in ("fence", "commit_group", "wait_group") or set(ins.parts[2:]) - {"sync", "aligned"}:
        raise UnknownInstruction(ins)
    if len(ins.operands) != (what == "wait_group"):
        raise UnknownInstruction(ins)

    keep = number_of(ins, ins.operands[0]) if what == "wait_group" else 0

    def turn(sel: Ints | None) -> None:
        lanes.sync_warp(sel)
        if what == "fence":
            lanes.warpgroups.fence(sel)
        elif what == "commit_group":
            lanes.warpgroups.commit(sel)
        else:
            lanes.warpgroups.wait(keep, sel)

    return turn


def _multiply(ins: Instruction, lanes: Lanes) -> Step:
    """``wgmma.mma_async``: a step for whole warpgroups."""
    form = _WarpgroupForm.of(ins)
    kinds, kind = form.product.kinds, form.product.result
    names = operand_tokens(ins.operands[0][1:-1])
    if len(names) != form.n // (4 if kind == "f16" else 2):
        raise UnknownInstruction(ins, "has fragments whose size does not fit its shape")
    outs = [destination(lanes, ins, name, "b32")[0] for name in names]
    a_names = operand_tokens(ins.operands[1][1:-1]) if form.from_registers else [ins.operands[1]]
    if form.from_registers and len(a_names) != 4:
        raise UnknownInstruction(ins, "has fragments whose size does not fit its shape")
    a_in = [lanes.source(name, "b32" if form.from_registers else "u64", ins) for name in a_names]
    b_in, adds = lanes.source(ins.operands[2], "u64", ins), lanes.source(ins.operands[3], "pred", ins)

    work = wgmma_work(form.n, from_registers=form.from_registers)

    def tile(bits: int, side: int, groups: Ints, reading: Reading) -> Array:
        """Return the numbers that the descriptor of a side describes: of A as (groups, 64, k) or, for side 1, of B as
        (groups, k, n)."""
        rows, elements = (_ROWS, form.n)[side], 16 // _SIZES[kinds[side]]
        transposed = form.transposed[side]
        shape = (form.k, rows // elements) if transposed else (rows, _DEPTH // 16)
        descriptor = Descriptor.of(bits)
        check_descriptor(ins, lanes, descriptor, groups[:, 0], side="AB"[side], shape=shape, transposed=transposed)
        chunks = descriptor.chunks(*shape, transposed)
        data = read_tile(ins, lanes, chunks, groups[:, 0], reading, side="AB"[side], mode=descriptor.mode)
        data = data.reshape(len(groups), shape[0], -1)
        numbers = factors(data.view(f"u{_SIZES[kinds[side]]}"), kinds[side])
        if form.negate[side]:
            numbers = -numbers
        return np.ascontiguousarray(numbers.swapaxes(1, 2)) if transposed != bool(side) else numbers

    def multiply(sel: Ints | None) -> None:
        rows = warps_of(ins, lanes, sel, 128)
        if not rows.size:
            return
        first = rows[:, 0]
        note_work(ins, lanes, work, first)
        lanes.launch.multiplying.update((lanes.tid[first] // 128).tolist())
        b_bits = per_lane(b_in, first)
        a_bits = b_bits if form.from_registers else per_lane(a_in[0], first)
        # Groups with the same descriptors, of different blocks, are one product.
        _, same = np.unique(np.stack([a_bits, b_bits]), axis=1, return_inverse=True)
        for number in range(int(same.max()) + 1):
            some = np.flatnonzero(same == number)
            groups = rows[some]
            reading: Reading = []
            if form.from_registers:
                warps = groups.reshape(-1, 32)
                A = a_fragment(gathered(a_in, warps), kinds[0], 16, form.k).reshape(len(some), _ROWS, form.k)
                A = -A if form.negate[0] else A
            else:
                A = tile(int(a_bits[some[0]]), 0, groups, reading)
            B = tile(int(b_bits[some[0]]), 1, groups, reading)
            fresh = ~per_lane(adds, groups[:, 0])
            parts = a_names if form.from_registers else []
            lanes.warpgroups.issue(ins, groups, [] if fresh.all() else names, parts, reading)
            C = _accumulators_of(outs, groups, kind)
            C[fresh] = 0
            _put(outs, groups, kind, form.product.sum(A, B, C))

    return multiply


def _lanes_of(groups: Ints) -> Ints | slice:
    """The lanes of some groups as an index: a slice where they follow each other, which NumPy reads faster."""
    first, last = int(groups[0, 0]), int(groups[-1, -1])
    return slice(first, last + 1) if last - first + 1 == groups.size else groups.reshape(-1)


def _accumulators_of(registers: list[Array], groups: Ints, kind: str) -> Array:
    """The registers of D as (groups, 64, n) in the type of the accumulator."""
    lanes = _lanes_of(groups)
    bits = np.empty((len(registers), groups.size), np.uint32)
    for row, register in zip(bits, registers, strict=True):
        row[:] = register[lanes]
    return np.ascontiguousarray(_as_fragment(bits.view(RESULTS[kind]), len(groups), kind)).reshape(
        len(groups), _ROWS, -1
    )


def _put(registers: list[Array], groups: Ints, kind: str, D: Array) -> None:
    """Store D in its registers."""
    bits = np.empty((len(registers), groups.size), np.uint32)
    fragment = _as_fragment(bits.view(RESULTS[kind]), len(groups), kind)
    fragment[...] = D.reshape(fragment.shape)
    lanes = _lanes_of(groups)
    for row, register in zip(bits, registers, strict=True):
        register[lanes] = row


def _as_fragment(values: Array, groups: int, kind: str) -> Array:
    """Registers × lanes as a view (groups, warp, row div 8 of the warp, row mod 8, n div 8, member, 2)."""
    if kind == "f16":  # register 2·c + h, lane, element
        return values.reshape(-1, 2, groups, 4, 8, 4, 2).transpose(2, 3, 1, 4, 0, 5, 6)
    return values.reshape(-1, 2, 2, groups, 4, 8, 4).transpose(3, 4, 1, 5, 0, 6, 2)
