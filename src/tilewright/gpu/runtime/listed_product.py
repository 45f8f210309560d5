"""Products of shapes of their own in one launch, by a kernel that takes lists of them (``gpu/kernels/lists.cuh``).

Addresses and sizes are arguments of the launch: nothing is copied to the GPU before it.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...kernels.cuda_kernel import CudaKernel
from ...product.problem import itemsize_of
from .boxed_product import Groups
from .compilations import Chosen, KernelCode
from .device import Device
from .engine_product import EngineProduct
from .layout import Matrix
from .product import MOST, GpuProduct, stream_handle

#: The sizes of the tables with which kernels are compiled, in products: a launch has at most 32,764 bytes of arguments.
TABLES = 32, 64, 128, 256, 512

#: ``Given`` of ``gpu/kernels/lists.cuh`` for groups.
_GROUPED = struct.Struct("<9q6i8x")

#: ``run(addresses, c, stream)``: the addresses of all A, then of all B, as int64; that of the first C; and a stream.
ListedProduct = Callable[[Any, int, Any], None]


class ListedShape(NamedTuple):
    """C[m×n] = A[m×k]·B[k×n], how A and B lie, and the bytes from the first C to this one, which has no gaps."""

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    at_c: int


@functools.lru_cache(maxsize=256)
def prepare_listed_product(
    device: Device, kernel: CudaKernel, dtype: str, shapes: tuple[ListedShape, ...], chosen: Chosen, out: str = ""
) -> ListedProduct:
    """At most ``TABLES[-1]`` products on ``device``, compiled and loaded now: all A lie down, or none, and so do all B.
    ``out`` is the dtype of the results, if it is not that in which the kernel multiplies.

    The device must be the calling thread's current one now and at each call.
    """
    params, size = kernel.checked(dict(chosen)), itemsize_of(dtype)
    table = next(count for count in TABLES if count >= len(shapes))
    down = shapes[0].a.down, shapes[0].b.down
    assert all((shape.a.down, shape.b.down) == down for shape in shapes)
    aligned = math.gcd(16, *(shape.at_c for shape in shapes), *(shape.n * size for shape in shapes))
    macros: dict[str, object] = {
        "TYPE": dtype.upper(),
        "OUT": (out or dtype).upper(),
        "A_DOWN": int(down[0]),
        "B_ACROSS": int(not down[1]),
        "A_VECTOR": min(shape.a.vector_bytes for shape in shapes),
        "B_VECTOR": min(shape.b.vector_bytes for shape in shapes),
        "C_VECTOR": max(size, aligned),
        "LISTED": table,
    }
    compiled = KernelCode(kernel, tuple(macros.items()), tuple(sorted(chosen))).compiled(device.arch)
    launches = [kernel.launch(shape.m, shape.n, shape.k, **params) for shape in shapes]
    given = np.zeros(1, _given(table))[0]
    for name, column in (("m", 0), ("n", 1), ("k", 2), ("at_c", 5)):
        given[name][: len(shapes)] = [shape[column] for shape in shapes]
    given["step_a"][: len(shapes)] = [shape.a.step for shape in shapes]
    given["step_b"][: len(shapes)] = [shape.b.step for shape in shapes]
    given["first"][1 : len(shapes) + 1] = np.cumsum([launch.blocks for launch in launches])
    given["count"], blocks = len(shapes), int(given["first"][len(shapes)])
    if not blocks:
        return lambda addresses, c, stream: None
    rest = given.tobytes()[2 * 8 * table :]
    # An array without elements may have no address.
    read = np.flatnonzero([shape.m * shape.n * shape.k for shape in shapes])
    gap = bytes(8 * (table - len(shapes)))
    size_of_launch = blocks, launches[0].threads, launches[0].shared_bytes
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), size_of_launch, (), given.tobytes())

    def product(addresses: Any, c: int, stream: Any) -> None:
        both = addresses.reshape(2, -1)
        lowest = both[:, read].min(axis=1) if read.size else np.array((c, c))
        at = both - lowest[:, None]
        structure = at[0].tobytes() + gap + at[1].tobytes() + gap + rest
        run(stream_handle(stream), (), (*lowest.tolist(), c), structure)

    return product


@functools.lru_cache(maxsize=1024)
def prepare_grouped_product(
    device: Device, kernel: CudaKernel, product: EngineProduct, groups: Groups, chosen: Chosen
) -> GpuProduct:
    """The same as ``boxed_product.prepare_grouped_boxes``, for A and B of any strides."""
    p, params, (m, n, k) = product, kernel.checked(dict(chosen)), product.sizes
    element, by_k = itemsize_of(p.compute), groups.of_k
    # A group may begin at any element of what is divided, also where these follow each other in memory.
    macros: dict[str, object] = {
        "TYPE": p.compute.upper(),
        "OUT": p.c.dtype.upper(),
        "A_DOWN": int(p.a.down),
        "B_ACROSS": int(not p.b.down),
        "A_VECTOR": p.a.vector_bytes if p.a.down == by_k else element,
        "B_VECTOR": element if by_k and p.b.down else p.b.vector_bytes,
        "C_VECTOR": p.c.vector_bytes,
        **groups.macro,
    }
    compiled = KernelCode(kernel, tuple(macros.items()), chosen).compiled(device.arch)
    band = params["BM"]
    launch = kernel.launch(m if by_k else groups.most_bands(m, band) * band, n, k, **params)
    blocks = launch.blocks * (groups.number if by_k else 1)
    strides = (number for x in (p.a, p.b, p.c) for number in (x.row, x.column, x.next))
    size = blocks, launch.threads, launch.shared_bytes
    given = _GROUPED.pack(*strides, m, n, k, groups.number, 1, MOST)
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, (), given)
    return lambda a, b, c, offsets, stream: run(stream_handle(stream), (), (a, b, c, offsets))


def _given(table: int) -> np.dtype[Any]:
    """``Given`` of ``gpu/kernels/lists.cuh``."""
    longs = [(name, "<i8", table) for name in ("at_a", "at_b", "at_c", "step_a", "step_b")]
    sizes = [(name, "<i4", table) for name in ("m", "n", "k")]
    return np.dtype([*longs, *sizes, ("first", "<i4", table + 1), ("count", "<i4")])
