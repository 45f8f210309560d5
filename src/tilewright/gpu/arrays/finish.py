"""The epilogue of a product on a GPU: a kernel that multiplies applies it, or the last launch, which scales, adds and rounds
sums that a kernel left in the workspace."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from ...product.problem import itemsize_of
from ..planning.ways import NEXT_LAUNCH_S
from ..runtime.engine_product import FinishForm
from ..runtime.steps import BufferPlace, GpuStep, KernelLaunch
from .copies import READ, WRITTEN, MatrixCopy, pack_code

RESULTS_OF_EPILOGUES = ("float32", "float64", "bfloat16", "float16")
#: Elements that a block finishes along x and y, its threads, and the most blocks of a launch.
_TILE, _THREADS, _MOST_BLOCKS = (128, 8), 256, 1 << 16


def finish_steps(copy: MatrixCopy, form: FinishForm, places: Sequence[BufferPlace], *, swapped: bool) -> list[GpuStep]:
    """The launch, if there is an element, that finishes the sums of ``copy.source`` into ``copy.target``, of all products of
    its batch. ``places``: of sums, C, bias and scales. ``swapped``: both matrices are transposed."""
    source, target = (m.transposed if swapped else m for m in (copy.source, copy.target))
    count = math.prod(axis[0] for axis in copy.batch)
    if not copy.elements:
        return []
    across = abs(target.column) <= abs(target.row) or target.rows == 1
    extents = (source.columns, source.rows)[:: 1 if across else -1]
    steps = [(m.column, m.row)[:: 1 if across else -1] for m in (source, target)]
    axes = copy.batch or ((1, 0, 0),)
    bias, bias_step = form.bias or ("float32", 0)
    macros = {
        "SUM": source.dtype.upper(),
        "OUT": target.dtype.upper(),
        "BIAS": bias.upper(),
        "BIASED": int(form.bias is not None),
        "SCALED_A": int(form.scale_a is not None),
        "SCALED_B": int(form.scale_b is not None),
        "ADDS": int(form.beta != 0),
        "ACTIVATION": (form.activation or "none").upper(),
        "ACROSS": int(across),
        "AXES": len(axes),
    }
    lengths, from_next, to_next = zip(*axes, strict=True)
    long = *steps[0], *steps[1], *from_next, *to_next, bias_step, form.scale_a or 0, form.scale_b or 0
    short = *extents, *lengths, count, form.rows
    packed = struct.pack(f"<{len(long)}q2d{len(short)}I", *long, form.alpha, form.beta, *short)
    tiles = math.prod(-(-n // side) for n, side in zip(extents, _TILE, strict=True)) * count
    size = min(tiles, _MOST_BLOCKS), _THREADS, 0
    structure = packed + bytes(-len(packed) % 8)
    return [GpuStep(KernelLaunch(pack_code("finish", **macros), "finish", size, structure), tuple(places))]


def finish_seconds(copy: MatrixCopy, form: FinishForm, memory_ratio: float) -> float:
    """The predicted time of the last launch."""
    read, written = itemsize_of(copy.source.dtype), itemsize_of(copy.target.dtype)
    each = (read + written * (form.beta != 0)) / READ + written / WRITTEN
    return NEXT_LAUNCH_S + memory_ratio * copy.elements * each
