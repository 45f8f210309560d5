"""Copies of a GPU's matrices, from any strides into any, also into the other floating-point type: one launch."""

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
#: More tiles than this are several a block: enough to fill any GPU.
MOST_BLOCKS = 1 << 16

#: ``copy(source, target, stream)``: addresses, and the handle of a stream.
Copy = Callable[[int, int, int], None]


def prepared_copy(device: Device, source: Matrix, target: Matrix) -> Copy:
    """A copy of a matrix like ``source`` into one like ``target``, checked now; a call costs microseconds and does not wait.

    float64 becomes float32 as C++ rounds it. The GPU must be the thread's current one, here and at each call.
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
    """There are no elements."""
