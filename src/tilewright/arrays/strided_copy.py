"""The copy of a matrix on a GPU, between any strides, also into the other floating-point type, in one launch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..host.sources import PACKAGE
from ..runtime.gpu.device import Device
from ..runtime.gpu.nvrtc import Compiled, compile_file
from .gpu_array import Matrix

SOURCE = PACKAGE / "engine" / "cuda" / "strided_copy.cu"
TILE, ROWS = 32, 8
#: The most blocks of a launch, enough to fill any GPU; with more tiles, each block copies several.
MOST_BLOCKS = 1 << 16

#: ``copy(source, target, stream)``: addresses, and the handle of a stream.
Copy = Callable[[int, int, int], None]


def prepare_copy(device: Device, source: Matrix, target: Matrix) -> Copy:
    """A function that copies a matrix like ``source`` into one like ``target``: compiled and checked now; a call takes
    microseconds and does not wait for the copy.

    float64 is rounded to float32 as C++ does. The GPU must be the thread's current one, here and at each call.
    """
    tiles = -(-source.rows // TILE) * -(-source.columns // TILE)
    if not tiles:
        return _nothing
    entry = f"{source.dtype}_to_{target.dtype}"
    launch = device.launcher(_compiled(device.arch), entry, min(tiles, MOST_BLOCKS), (TILE, ROWS))
    numbers = (source.rows, source.columns, source.row, source.column, target.row, target.column)
    sizes = tuple(map(np.int64, numbers))

    def copy(source: int, target: int, stream: int) -> None:
        launch(stream, source, target, *sizes)

    return copy


@functools.cache
def _compiled(arch: str) -> Compiled:
    return compile_file(SOURCE, arch=arch)


def _nothing(source: int, target: int, stream: int) -> None:
    """The copy of a matrix without elements."""
