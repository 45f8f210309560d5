"""One product by a kernel whose operands are tensor maps (``boxes`` in its header), prepared once for shapes and layouts."""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...kernels.cuda_kernel import CudaKernel
from ...problem import itemsize_of
from .boxes import GRANULE, BoxedOperand
from .device import Device
from .nvrtc import Compiled, compile_with
from .product import MOST, GpuProduct

#: The last parameter of such a kernel, ``Call`` in its source.
_CALL = struct.Struct("<qqiiiiiiii")

_lock = threading.Lock()


@dataclass(frozen=True)
class Laid:
    """How an operand lies: elements from one row to the next, or where ``down`` from one column to the next, while the other
    way they follow each other; and elements to the operand of the next product of a batch, 0 where all have the same."""

    step: int
    next: int = 0
    down: bool = False


@dataclass(frozen=True)
class BoxedProduct:
    """C[m×n] = A[m×k]·B[k×n] for each product of a batch, and of each of ``parts`` of k, of ``part_steps`` steps of 128
    bytes, whose sums then follow each other like a batch. ``aligned``: the address of C is a multiple of 16 bytes; those of
    A and B must be, and their strides. ``factors``: the dtypes of A and B, if not ``dtype``."""

    dtype: str
    out: str
    m: int
    n: int
    k: int
    batch: int
    a: Laid
    b: Laid
    c: Laid
    aligned: bool
    parts: int = 1
    part_steps: int = MOST
    factors: tuple[str, str] | None = None


def prepare_boxed_product(
    device: Device, kernel: CudaKernel, product: BoxedProduct, params: Mapping[str, int]
) -> GpuProduct:
    """The product on ``device``: compiled, loaded and checked now, and cached. Sizes are at least 1.

    The device must be the calling thread's current one now and at each call. Raises UsageError for parameters that the
    kernel does not take, CompileError, LaunchError.
    """
    with _lock:
        return _prepared(device, kernel, product, tuple(sorted(params.items())))


@functools.lru_cache(maxsize=4096)
def _prepared(device: Device, kernel: CudaKernel, p: BoxedProduct, chosen: tuple[tuple[str, int], ...]) -> GpuProduct:
    params = kernel.checked(dict(chosen))
    size = itemsize_of(p.out)
    in_boxes = (
        size in (2, 4) and p.aligned and p.n * size % GRANULE == 0 and not (p.c.step * size | p.c.next * size) % GRANULE
    )
    macros = _macros(p, in_boxes)
    compiled = _compiled(kernel, device.arch, chosen, tuple(macros.items()))
    launch = kernel.launch(p.m, p.n, p.k, **params)
    operands = [
        _operand(kernel, "a", p.dtype, (p.m, p.k), p.a, p.batch, params),
        _operand(kernel, "b", p.dtype, (p.k, p.n), p.b, p.batch, params),
    ]
    # Where C is not stored in boxes, its map is not used, and that of A stands in its place.
    operands.append(
        _operand(kernel, "c", p.out, (p.m, p.n), p.c, p.batch * p.parts, params) if in_boxes else operands[0]
    )
    grid = _grid(device, launch.blocks * p.batch * p.parts, params)
    moves = int(p.a.next != 0), int(p.b.next != 0)
    call = _CALL.pack(p.c.step, p.c.next, p.m, p.n, p.k, p.batch, *moves, p.parts, p.part_steps)
    size_of_launch = grid, launch.threads, launch.shared_bytes
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), size_of_launch, operands, call)

    def product(a: int, b: int, c: int, stream: Any) -> None:
        handle = stream if type(stream) is int else int(getattr(stream, "handle", stream))
        run(handle, (a, b, c if in_boxes else a), (c,))

    return product


#: The most products of one launch that have rows of their own number.
MOST_RAGGED = 256


@functools.lru_cache(maxsize=1024)
def prepare_ragged_product(
    device: Device,
    kernel: CudaKernel,
    product: BoxedProduct,
    rows: tuple[int, ...],
    chosen: tuple[tuple[str, int], ...],
) -> GpuProduct:
    """Products of which each has its own number of ``rows``, on ``device``. The rows of all A follow each other, and so do
    those of all C; ``product.m`` is their sum, and k is in one part. There are at most ``MOST_RAGGED`` of them."""
    values, p = kernel.checked(dict(chosen)), product
    band = values["BM"] * values.get("CLUSTER", 1)
    tops, bands = [0], [0]
    for count in rows:
        tops.append(tops[-1] + count)
        bands.append(bands[-1] + -(-count // band))
    macros = _macros(p, in_boxes=False) | {"RAGGED": MOST_RAGGED}
    compiled = _compiled(kernel, device.arch, tuple(sorted(chosen)), tuple(macros.items()))
    launch = kernel.launch(bands[-1] * band, p.n, p.k, **values)
    operands = [
        _operand(kernel, "a", p.dtype, (p.m, p.k), p.a, 1, values),
        _operand(kernel, "b", p.dtype, (p.k, p.n), p.b, len(rows), values),
    ]
    call = _CALL.pack(p.c.step, 0, p.m, p.n, p.k, len(rows), 0, int(p.b.next != 0), 1, MOST)
    table = b"".join(
        struct.pack(f"<{MOST_RAGGED + 1}i", *each, *[0] * (MOST_RAGGED - len(rows))) for each in (tops, bands)
    )
    size = _grid(device, launch.blocks, values), launch.threads, launch.shared_bytes
    call += table + bytes(-len(call + table) % 8)
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, [*operands, operands[0]], call)
    return lambda a, b, c, stream: run(int(stream), (a, b, a), (c,))


def _grid(device: Device, blocks: int, params: Mapping[str, int]) -> int:
    """Of a persistent kernel there are as many blocks as run at once, in whole clusters."""
    cluster = params.get("CLUSTER", 1)
    return min(blocks, device.sms // cluster * cluster)


def _macros(p: BoxedProduct, in_boxes: bool) -> dict[str, object]:
    of_a, of_b = p.factors or (p.dtype, p.dtype)
    in_pairs = p.c.step % 2 == 0 and p.c.next % 2 == 0 and p.n % 2 == 0 and p.aligned
    return {
        "TYPE": p.dtype.upper(),
        "TYPE_A": of_a.upper(),
        "TYPE_B": of_b.upper(),
        "OUT": p.out.upper(),
        "A_DOWN": int(p.a.down),
        "B_ACROSS": int(not p.b.down),
        "STORE_BOXES": int(in_boxes),
        "STORE_PAIRS": int(in_pairs),
    }


@functools.cache
def _compiled(
    kernel: CudaKernel, arch: str, chosen: tuple[tuple[str, int], ...], macros: tuple[tuple[str, object], ...]
) -> Compiled:
    return compile_with(kernel, dict(chosen), arch, dict(macros))


def _operand(
    kernel: CudaKernel,
    name: str,
    dtype: str,
    shape: tuple[int, int],
    laid: Laid,
    batch: int,
    params: Mapping[str, int],
) -> BoxedOperand:
    rows, columns = shape[::-1] if laid.down else shape
    size = itemsize_of(dtype)
    # A stride over a single row is never used, but the driver wants one.
    row = laid.step if rows > 1 else -(-columns * size // GRANULE) * GRANULE // size
    count = batch if laid.next else 1
    box = kernel.box(f"{name}_down" if laid.down else name, size, params)
    return BoxedOperand(dtype, rows, columns, count, row * size, (laid.next or row * rows) * size, box)
