"""Copies of a matrix on a GPU in one launch: between any strides, also into another floating-point type."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..host.sources import PACKAGE
from ..problem import itemsize_of
from ..runtime.gpu.device import Device
from ..runtime.gpu.nvrtc import Compiled, compile_file
from .gpu_array import Matrix

PACK = PACKAGE / "engine" / "cuda" / "pack"
TILE, ROWS = 32, 8
#: Threads of a block that copies rows, the parts of rows that it copies at once, and the bytes of a part.
ROW_THREADS, ROW_PARTS, PART_BYTES = 256, 8, 1024
#: The most blocks of a launch, enough to fill any GPU; with more tiles, each block copies several.
MOST_BLOCKS = 1 << 16

#: Bytes a second that copies read and write, and that sums of parts do; and seconds of one more launch.
_COPIED, _ADDED, _LAUNCH_S = 2.4e12, 3.9e12, 2.5e-6

#: ``copy(source, target, stream)``: addresses, and the handle of a stream.
Copy = Callable[[int, int, int], None]


def prepare_copy(device: Device, source: Matrix, target: Matrix, *, own: bool = False) -> Copy:
    """A function that copies a matrix like ``source`` into one like ``target``: compiled and checked now; a call takes
    microseconds and does not wait for the copy.

    Numbers are rounded once, to nearest, ties to even. ``own``: nobody reads what lies between the rows of the target, so
    it may be written. The GPU must be the thread's current one, here and at each call.
    """
    if not source.rows * source.columns:
        return _nothing
    if source.dtype == target.dtype:
        for x, y in ((source, target), (source.transposed, target.transposed)):
            if x.column == y.column == 1 and _is_of_words(y, own):
                return _copy_of_rows(device, x, y)
    tiles = -(-source.rows // TILE) * -(-source.columns // TILE)
    entry = f"{source.dtype}_to_{target.dtype}"
    launch = device.launcher(_compiled("strided_copy", device.arch), entry, min(tiles, MOST_BLOCKS), (TILE, ROWS))
    numbers = (source.rows, source.columns, source.row, source.column, target.row, target.column)
    sizes = tuple(map(np.int64, numbers))

    def copy(source: int, target: int, stream: int) -> None:
        launch(stream, source, target, *sizes)

    return copy


def copy_seconds(source: Matrix, target: Matrix) -> float:
    """The predicted time of a copy."""
    return _LAUNCH_S + (source.nbytes + target.nbytes) / _COPIED


def sum_seconds(parts: int, elements: int, sums: str, out: str) -> float:
    """The predicted time of adding parts of k, of so many elements of all products."""
    return _LAUNCH_S + elements * (parts * itemsize_of(sums) + itemsize_of(out)) / _ADDED


def prepare_sum(device: Device, parts: int, batch: int, sums: str, target: Matrix, next_target: int) -> Copy:
    """A function that adds the sums of ``parts`` of k, of dtype ``sums``, which follow each other for each product of a
    batch, into matrices like ``target``, ``next_target`` elements apart: in a fixed order, rounded once."""
    compiled = _compiled("add_parts", device.arch, target.dtype, sums)
    blocks = min(-(-target.rows * target.columns * batch // 32), MOST_BLOCKS)
    launch = device.launcher(compiled, "add_parts", blocks, 256)
    sizes = tuple(map(np.int64, (target.rows, target.columns, target.row, target.column, next_target)))
    counts = np.int32(parts), np.int32(batch)

    def add(source: int, target: int, stream: int) -> None:
        launch(stream, source, target, *sizes, *counts)

    return add


def _is_of_words(matrix: Matrix, own: bool) -> bool:
    """Whether rows begin at multiples of 4 bytes and are whole words, or may be written as such."""
    row, step = matrix.columns * itemsize_of(matrix.dtype), matrix.row * itemsize_of(matrix.dtype)
    return matrix.aligned and step % 4 == 0 and (row % 4 == 0 or (own and row + 3 <= step))


def _copy_of_rows(device: Device, source: Matrix, target: Matrix) -> Copy:
    size = itemsize_of(source.dtype)
    blocks = min(-(-source.rows * -(-source.columns * size // PART_BYTES) // ROW_PARTS), MOST_BLOCKS)
    launch = device.launcher(_compiled("copy_rows", device.arch), "copy_rows", blocks, ROW_THREADS)
    numbers = (source.rows, source.columns * size, source.row * size, target.row * size)
    sizes = tuple(map(np.int64, numbers))

    def copy(source: int, target: int, stream: int) -> None:
        launch(stream, source, target, *sizes)

    return copy


@functools.cache
def _compiled(name: str, arch: str, out: str = "", sums: str = "") -> Compiled:
    defines = {"OUT": out.upper(), "SUM": sums.upper()} if out else {}
    return compile_file(PACK / f"{name}.cu", arch=arch, defines=defines)


def _nothing(source: int, target: int, stream: int) -> None:
    """The copy of a matrix without elements."""
