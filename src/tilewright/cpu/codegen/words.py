"""Packing of narrow elements into words of 32 bits, each of which holds a group of consecutive steps of k of one row or
column.

A word has two elements of 16 bits or four of 8 bits; 8-bit integers can be widened to 16 bits. Elements of a word
beyond the end of k are zeros. If the elements of consecutive steps of k are contiguous in memory, words are loaded
directly. If rows of A or columns of B are contiguous, vectors of each step are interleaved with those of the other
steps. Loaded or interleaved words are then transposed in registers if the target needs it. A matrix without contiguous
rows or columns is packed element by element.

As in ``pack.py``, the elements that are packed next are prefetched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .memory import address, itemsize, offset
from .pack import exchanged
from .vectors import I8, I32, I64, Vectors, bits_of

#: Rows of A between one that is copied and the one that is prefetched meanwhile.
_ROWS_AHEAD = 2


def word_packers(
    vector_bits: int, *, least_bits: int = 8, first_high: bool = False
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return compiled functions ``pack_rows`` and ``pack_columns``, which pack elements of 8 or 16 bits as ``packer``
    does.

    - ``pack_rows(a, top, rows, low, kc, target, at, ld)`` writes the words ``low`` to ``low + kc`` of rows of A;
    - ``pack_columns(b, flip, low, kc, left, columns, target, at, ld)`` writes the same words of columns of B, with one
      row of the target for each step; the bits that are set in the word ``flip`` are inverted.

    Narrower elements are widened to ``least_bits`` bits in a word. With ``first_high`` the first of a word's steps of k
    is in the highest bits of the word, not in the lowest.
    """
    order = vector_bits, least_bits, first_high
    rows_along, columns_across, columns_interleaved = _along(*order), _across(*order), _interleaved(*order)
    rows_across, columns_along = _transposed(*order, along=False), _transposed(*order, along=True)
    word, least, lanes = _word(least_bits, first_high), least_bits // 8, vector_bits // 32

    @nb.njit(nogil=True)
    def pack_rows(a: np.ndarray, top: int, rows: int, low: int, kc: int, target: np.ndarray, at: int, ld: int) -> None:
        down, along = a.strides
        item, group = itemsize(a), 4 // max(least, itemsize(a))
        high, wide = 0, 0  # rows and words that vectors copy
        whole = min(kc, a.shape[1] // group - low) // lanes * lanes
        if along == item:
            high, wide = rows, whole
            for r in range(rows):
                for s in range(0, wide, lanes):
                    row, to = address(a, top + r, (low + s) * group), offset(target, at + r * ld + s)
                    rows_along(source=row, step=0, target=to, ahead=_ROWS_AHEAD * down, ld=0, flip=0)
        elif down == item:
            high, wide = rows // lanes * lanes, whole
            for s in range(0, wide, lanes):
                for r in range(0, high, lanes):
                    square, to = address(a, top + r, (low + s) * group), offset(target, at + r * ld + s)
                    rows_across(source=square, step=along, target=to, ahead=0, ld=ld, flip=0)
        for r in range(rows):
            for s in range(wide if r < high else 0, kc):
                p = (low + s) * group
                word(address(a, top + r, p), along, a.shape[1] - p, offset(target, at + r * ld + s), 0)

    @nb.njit(nogil=True)
    def pack_columns(
        b: np.ndarray, flip: int, low: int, kc: int, left: int, columns: int, target: np.ndarray, at: int, ld: int
    ) -> None:
        down, along = b.strides
        item, group = itemsize(b), 4 // max(least, itemsize(b))
        high, wide = 0, columns // lanes * lanes
        whole = min(kc, b.shape[0] // group - low)
        if along == item:
            high, together = whole, columns // (group * lanes) * (group * lanes)
            for r in range(high):
                for s in range(0, together, group * lanes):
                    row, to = address(b, (low + r) * group, left + s), offset(target, at + r * ld + s)
                    columns_interleaved(source=row, step=down, target=to, ahead=columns * item, ld=0, flip=flip)
                for s in range(together, wide, lanes):
                    row, to = address(b, (low + r) * group, left + s), offset(target, at + r * ld + s)
                    columns_across(source=row, step=down, target=to, ahead=0, ld=0, flip=flip)
        elif down == item:
            high = whole // lanes * lanes
            for s in range(0, wide, lanes):
                for r in range(0, high, lanes):
                    square, to = address(b, (low + r) * group, left + s), offset(target, at + r * ld + s)
                    columns_along(source=square, step=along, target=to, ahead=0, ld=ld, flip=flip)
        for r in range(kc):
            p = (low + r) * group
            for s in range(wide if r < high else 0, columns):
                word(address(b, p, left + s), down, b.shape[0] - p, offset(target, at + r * ld + s), flip)

    return pack_rows, pack_columns


# ---- vectors of words ------------------------------------------------------------------------------------------------


class _Words:
    """Emits vectors of words from elements of the type that ``source``, Numba's type of a pointer, points to."""

    def __init__(self, builder: Any, source: Any, lanes: int, least_bits: int, *, first_high: bool) -> None:
        self.builder, self.lanes, self.signed = builder, lanes, source.dtype.signed
        self.element = ir.IntType(source.dtype.bitwidth)
        self.bits = max(least_bits, source.dtype.bitwidth)
        self.group = 32 // self.bits
        self.words = Vectors(builder, I32, lanes)
        self.shifts = [self.bits * p for p in range(self.group)]
        if first_high:
            self.shifts.reverse()

    def elements(self, pointer: Any) -> Any:
        """Load contiguous elements, as many as a vector of words has lanes."""
        memory = Vectors(self.builder, self.element, self.lanes * self.group)
        return self._widened(memory.load(pointer), ir.VectorType(ir.IntType(self.bits), memory.lanes))

    def along(self, pointer: Any) -> Any:
        """Load words that follow each other in memory, with all of their steps of k."""
        value = self.builder.bitcast(self.elements(pointer), self.words.vector)
        if self.shifts[0] == 0:
            return value
        half = self.words.broadcast(I32(16))  # only pairs are reversed
        return self.builder.or_(self.builder.shl(value, half), self.builder.lshr(value, half))

    def interleaved(self, rows: list[Any]) -> list[Any]:
        """Return vectors of words, in order, whose steps of k are in ``rows``.

        Processors interleave within parts of 128 bits, which are four words. So the elements of the same four words are
        first brought to the same part of 128 bits.
        """
        builder, parts, group = self.builder, self.lanes // 4, self.group
        fours = ir.VectorType(ir.IntType(4 * self.bits), parts * group)
        order = [parts * v + part for part in range(parts) for v in range(group)]
        rows = [builder.bitcast(row, fours) for row in (rows if self.shifts[0] == 0 else reversed(rows))]
        return self._joined([self._picked(row, row, order) for row in rows])

    def _joined(self, rows: list[Any]) -> list[Any]:
        """Pairs of rows, then pairs of these: part by part, an element of the first, one of the second, and so on."""
        if len(rows) == 1:
            return rows
        half = len(rows) // 2
        bits = self.bits * half
        kind, count = ir.VectorType(ir.IntType(bits), 32 * self.lanes // bits), 128 // bits
        joined = []
        for pair in zip(self._joined(rows[:half]), self._joined(rows[half:]), strict=True):
            x, y = (self.builder.bitcast(row, kind) for row in pair)
            for start in (0, count // 2):  # the lower half of each part, then the upper one
                low = [part + start + i for part in range(0, kind.count, count) for i in range(count // 2)]
                order = [place for i in low for place in (i, kind.count + i)]
                joined.append(self.builder.bitcast(self._picked(x, y, order), self.words.vector))
        return joined

    def _picked(self, x: Any, y: Any, order: list[int]) -> Any:
        return self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(order)), order))

    def across(self, pointer: Any, step: Any) -> Any:
        """Load the words of neighbouring rows or columns; the steps of k of each word are ``step`` bytes apart."""
        row, joined = Vectors(self.builder, self.element, self.lanes), self.words.zero
        for p, shift in enumerate(self.shifts):
            element = row.load(moved_by(self.builder, pointer, self.builder.mul(step, I64(p))))
            joined = self.builder.or_(joined, self.placed(element, shift))
        return joined

    def placed(self, element: Any, shift: int) -> Any:
        """Shift elements to their place in words; the elements may be vectors or scalars."""
        vector = isinstance(element.type, ir.VectorType)
        kinds = [
            ir.VectorType(ir.IntType(bits), self.lanes) if vector else ir.IntType(bits) for bits in (self.bits, 32)
        ]
        word = self.builder.zext(self._widened(element, kinds[0]), kinds[1])
        return self.builder.shl(word, self.words.broadcast(I32(shift)) if vector else I32(shift))

    def _widened(self, value: Any, kind: Any) -> Any:
        if value.type == kind:
            return value
        return (self.builder.sext if self.signed else self.builder.zext)(value, kind)


def moved_by(builder: Any, pointer: Any, distance: Any) -> Any:
    """Return a pointer that is ``distance`` bytes after ``pointer``."""
    start = builder.bitcast(pointer, I8.as_pointer())
    return builder.bitcast(builder.gep(start, [distance]), pointer.type)


class _WordCopy(NamedTuple):
    """The arguments of ``_copy``, in the order of its parameters. A copy that does not use one of the arguments gets 0
    for it."""

    source: Any  # a pointer to elements
    step: Any  # bytes from an element of a word to the next, or from a vector to the next
    target: Any  # a pointer to words
    ahead: Any  # bytes from what is read to what is prefetched
    ld: Any  # words from a row of the target to the next
    flip: Any  # a word whose bits are inverted in each word


def _copy(
    vector_bits: int, least_bits: int, first_high: bool, emit: Callable[[_Words, _WordCopy], None]
) -> Callable[..., None]:
    """An intrinsic that copies as ``emit`` does, and takes the arguments of ``_WordCopy`` by name."""

    @intrinsic
    def copy(typingctx: Any, source: Any, step: Any, target: Any, ahead: Any, ld: Any, flip: Any) -> Any:  # noqa: ARG001
        number = types.intp
        signature = types.void(*_WordCopy(source, step=number, target=target, ahead=number, ld=number, flip=number))

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            given = _WordCopy(*args)
            words = _Words(builder, source, vector_bits // 32, least_bits, first_high=first_high)
            flip = words.words.broadcast(builder.trunc(given.flip, I32))
            emit(words, given._replace(target=_to_words(builder, given.target), flip=flip))
            return context.get_dummy_value()

        return signature, codegen

    return copy


def _along(vector_bits: int, least_bits: int, first_high: bool) -> Callable[..., None]:
    """A ``_copy`` of one vector of words that follow each other in memory; prefetches ``ahead``."""

    def emit(words: _Words, copy: _WordCopy) -> None:
        words.words.prefetch(moved_by(words.builder, copy.source, copy.ahead))
        words.words.store(words.builder.xor(words.along(copy.source), copy.flip), copy.target)

    return _copy(vector_bits, least_bits, first_high, emit)


def _across(vector_bits: int, least_bits: int, first_high: bool) -> Callable[..., None]:
    """A ``_copy`` of one vector of words, whose elements lie ``step`` bytes apart."""

    def emit(words: _Words, copy: _WordCopy) -> None:
        words.words.store(words.builder.xor(words.across(copy.source, copy.step), copy.flip), copy.target)

    return _copy(vector_bits, least_bits, first_high, emit)


def _interleaved(vector_bits: int, least_bits: int, first_high: bool) -> Callable[..., None]:
    """A ``_copy`` of as many vectors of words as a word has steps, which lie ``step`` bytes apart; prefetches ``ahead`` of
    each of these rows."""

    def emit(words: _Words, copy: _WordCopy) -> None:
        builder, rows = words.builder, []
        for p in range(words.group):
            row = moved_by(builder, copy.source, builder.mul(copy.step, I64(p)))
            words.words.prefetch(moved_by(builder, row, copy.ahead))
            rows.append(words.elements(row))
        for v, value in enumerate(words.interleaved(rows)):
            words.words.store(builder.xor(value, copy.flip), copy.target, v * words.lanes)

    return _copy(vector_bits, least_bits, first_high, emit)


def _transposed(vector_bits: int, least_bits: int, first_high: bool, *, along: bool) -> Callable[..., None]:
    """A ``_copy`` of a square of words: each vector becomes a column. Rows of the target lie ``ld`` words apart.

    ``along``: the words of a vector follow each other in memory, and the next vector begins ``step`` bytes further.
    Otherwise elements of a word lie ``step`` bytes apart, and the next vector begins a whole group of these further.
    """

    def emit(words: _Words, copy: _WordCopy) -> None:
        builder, columns = words.builder, []
        for column in range(words.lanes):
            here = moved_by(builder, copy.source, builder.mul(copy.step, I64(column * (1 if along else words.group))))
            columns.append(words.along(here) if along else words.across(here, copy.step))
        for i, row in enumerate(exchanged(builder, columns)):
            words.words.store(builder.xor(row, copy.flip), copy.target, builder.mul(copy.ld, I64(i)))

    return _copy(vector_bits, least_bits, first_high, emit)


def _word(least_bits: int, first_high: bool) -> Callable[..., None]:
    """An intrinsic ``word(source, step, live, target, flip)``: one word, of whose steps ``live`` exist, at least one; the
    others are zeros."""

    @intrinsic
    def word(typingctx: Any, source: Any, step: Any, live: Any, target: Any, flip: Any) -> Any:  # noqa: ARG001
        signature = types.void(source, types.intp, types.intp, target, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            pointer, step, live, to, flip = args
            words = _Words(builder, source, 1, least_bits, first_high=first_high)
            joined = I32(0)
            for p, shift in enumerate(words.shifts):
                exists = builder.icmp_signed("<", I64(p), live)
                safe = builder.mul(step, builder.select(exists, I64(p), I64(0)))
                element = builder.load(moved_by(builder, pointer, safe))
                element.align = bits_of(words.element) // 8
                joined = builder.or_(joined, builder.select(exists, words.placed(element, shift), I32(0)))
            builder.store(builder.xor(joined, builder.trunc(flip, I32)), _to_words(builder, to))
            return context.get_dummy_value()

        return signature, codegen

    return word


def _to_words(builder: Any, pointer: Any) -> Any:
    return builder.bitcast(pointer, I32.as_pointer())


@intrinsic
def _pointer_as(typingctx: Any, pointer: Any, matrix: Any) -> Any:  # noqa: ARG001
    """The same pointer, as one to elements of the dtype of ``matrix``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(matrix.dtype)(pointer, matrix), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
pointer_as: Callable[..., Any] = _pointer_as
