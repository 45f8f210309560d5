"""Lists of products of one width and depth, and of any heights, by a kernel whose operands are tensor maps.

One map finds all A, another all B, wherever they lie, because it has a matrix at every 16 bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...kernels.cuda_kernel import Card, CudaKernel
from ...product.problem import itemsize_of
from ..planning.ways import EngineShape, Way, ways
from ..runtime.boxed_product import MOST_RAGGED, prepare_scattered_product
from ..runtime.device import Device
from ..runtime.engine_product import EngineProduct
from ..runtime.layout import Matrix, row_major_matrix
from ..runtime.memory import GRANULE
from .layouts import Boxes, is_down

#: ``submit(addresses, c, stream)``: whether the matrices were near enough to each other; else nothing was submitted.
SubmitBoxes = Callable[[Any, int, int], bool]


def scattered_launches(
    gpu: Device, engine: Sequence[CudaKernel], a: Sequence[Matrix], b: Sequence[Matrix]
) -> tuple[float, SubmitBoxes] | None:
    """The launches of these products, whose results follow each other without gaps, and their predicted time; None where
    the matrices are not alike but for the rows of A, or where no kernel with boxes takes them."""
    filled, y = [x for x in a if x.rows], b[0]
    if not filled or any(each[1:] != filled[0][1:] for each in filled) or any(each != y for each in b):
        return None
    x = filled[0]._replace(rows=max(each.rows for each in filled))
    if itemsize_of(x.dtype) != 2 or not y.rows * y.columns or x.rows == 1 or is_down(x):
        return None
    fitting = (Boxes(kernel) for kernel in engine if kernel.boxes)
    kernel = next((boxes.kernel for boxes in fitting if boxes.fits(0, x) and boxes.fits(1, y)), None)
    if kernel is None:
        return None
    rows, of_b = [each.rows for each in a], Boxes(kernel).given(1, y)
    way = min(
        whole_ways(kernel, EngineShape(x.dtype, x.dtype, x.rows, y.columns, y.rows), gpu.card),
        key=lambda way: _seconds(kernel, way, rows, y, gpu),
    )
    launches = []
    for first in range(0, len(rows), MOST_RAGGED):
        some = tuple(rows[first : first + MOST_RAGGED])
        if any(some):
            m, n = sum(some), y.columns
            c = row_major_matrix(m, n, x.dtype)._replace(alignment=math.gcd(GRANULE, n * 2))
            product = EngineProduct(x.dtype, x._replace(rows=m), of_b, c)
            launches.append((first, some, sum(rows[:first]) * n * 2, product))

    def submit(addresses: Any, c: int, stream: int) -> bool:
        both = addresses.reshape(2, -1)
        with gpu:
            for first, some, at, product in launches:
                run = prepare_scattered_product(gpu, kernel, product, some, tuple(way.params.items()))
                if not run(both[:, first : first + len(some)], c + at, stream):
                    return False
        return True

    return _seconds(kernel, way, rows, y, gpu), submit


@functools.lru_cache(maxsize=256)  # lists of as many rows in all come again and again
def whole_ways(kernel: CudaKernel, shape: EngineShape, card: Card) -> list[Way]:
    """The ways that do not cut k."""
    return [way for way in ways(kernel, shape, card) if way.parts == 1]


def padded_rows(rows: Sequence[int], params: Mapping[str, int]) -> int:
    """The rows of all tiles of products with so many rows."""
    band = params["BM"] * params.get("CLUSTER", 1)
    return sum(-(-count // band) * band for count in rows)


def _seconds(kernel: CudaKernel, way: Way, rows: Sequence[int], b: Matrix, gpu: Device) -> float:
    """The predicted time of one launch: as that of a batch with as many rows of tiles."""
    mean = -(-padded_rows(rows, way.params) // len(rows))
    shape = EngineShape(b.dtype, b.dtype, mean, b.columns, b.rows, len(rows))
    return next(each.seconds for each in whole_ways(kernel, shape, gpu.card) if each.params == way.params)
