"""One product by a kernel whose operands are tensor maps (``boxes`` in its header), prepared once for shapes and layouts."""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...kernels.cuda_kernel import CudaKernel, launched
from ...problem import itemsize_of
from .boxes import BoxedLauncher, BoxedOperand
from .device import Device
from .memory import GRANULE
from .product import MOST, Chosen, GpuProduct, compiled_once, stream_handle

#: The last parameter of such a kernel, ``Call`` in its source, and what it has of an epilogue.
_CALL, _FINISH = struct.Struct("<qqiiiiiiii"), struct.Struct("<qqqqqff")

_lock = threading.Lock()


@dataclass(frozen=True)
class Laid:
    """How an operand lies: elements from one row to the next, or where ``down`` from one column to the next, while the other
    way they follow each other; and elements to the operand of the next product of a batch, 0 where all have the same."""

    step: int
    next: int = 0
    down: bool = False


@dataclass(frozen=True)
class BoxedEpilogue:
    """What a kernel makes of its sums S before it stores them: activation(α · row scale · column scale · S + β · C + bias),
    where rows and columns are those of its C. Of scales and bias this has the elements from one to the next, 0 where all
    have the same, or None where they are absent; of the bias also the dtype. ``bias_by_row``: each row has a number."""

    alpha: float
    beta: float
    activation: str | None
    bias: tuple[str, int] | None
    bias_by_row: bool
    row_scales: int | None
    column_scales: int | None

    @property
    def vectors(self) -> int:
        """How many of its arrays have a number for each column."""
        return int(self.bias is not None and not self.bias_by_row) + int(self.column_scales is not None)

    @property
    def macros(self) -> dict[str, object]:
        """What the kernel is compiled with."""
        by_row, by_column = (scales is not None for scales in (self.row_scales, self.column_scales))
        return {
            "FINISHED": 1,
            "VECTORS": self.vectors,
            "FACTORS": int(self.alpha != 1 or by_row),
            "SCALED": by_row + 2 * by_column,
            "ADDS": int(self.beta != 0),
            "BIASED": 0 if self.bias is None else 1 if self.bias_by_row else 2,
            "BIAS": (self.bias or ("float32", 0))[0].upper(),
            "ACTIVATION": (self.activation or "none").upper(),
        }


class ScaleBlocks(NamedTuple):
    """Scales of blocks: elements to the one of the next row of A, and of the next 128 columns of B; and in both to those of
    the next 128 of k; and to those of the next group's B."""

    row: int
    column: int
    next_of_rows: int
    next_of_columns: int
    next_group: int = 0


@dataclass(frozen=True)
class BoxedProduct:
    """C[m×n] = A[m×k]·B[k×n] for each product of a batch, and of each of ``parts`` of k, of ``part_steps`` steps of 128
    bytes, whose sums then follow each other like a batch. ``aligned``: the address of C is a multiple of 16 bytes; those of
    A and B must be, and their strides. ``factors``: the dtypes of A and B, if not ``dtype``. With an ``epilogue``, or
    with scales of ``blocks``, a call has the addresses of bias, row scales and column scales behind the stream, 0 for those
    that are absent."""

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
    epilogue: BoxedEpilogue | None = None
    blocks: ScaleBlocks | None = None


def are_whole(itemsize: int, *lengths: int) -> bool:
    """Whether the copy engine stores a C of such elements, whose rows and the steps between them have these lengths in
    elements: those of two or four bytes, in whole granules.

    >>> are_whole(2, 264, 272), are_whole(2, 264, 261), are_whole(8, 264)
    (True, False, False)
    """
    return itemsize in (2, 4) and all(length * itemsize % GRANULE == 0 for length in lengths)


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
def _prepared(device: Device, kernel: CudaKernel, p: BoxedProduct, chosen: Chosen) -> GpuProduct:
    params = kernel.checked(dict(chosen))
    inner = p.m if p.c.down else p.n
    size = itemsize_of(p.out)
    # A box begins at a multiple of 16 bytes of a row, and so must the tiles.
    in_boxes = (
        p.aligned and are_whole(size, inner, p.c.step, p.c.next) and (p.c.down or params["BN"] * size % GRANULE == 0)
    )
    macros = _macros(p, in_boxes)
    compiled = compiled_once(kernel, device.arch, chosen, tuple(macros.items()))
    launch = kernel.launch(p.m, p.n, p.k, **params)
    operands = [
        _operand(kernel, "a", p.dtype, (p.m, p.k), p.a, p.batch, params, p.m),
        _operand(kernel, "b", p.dtype, (p.k, p.n), p.b, p.batch, params),
    ]
    # Where C is not stored in boxes, its map is not used, and that of A stands in its place.
    operands.append(
        _operand(kernel, "c", p.out, (p.m, p.n), p.c, p.batch * p.parts, params) if in_boxes else operands[0]
    )
    grid = launched(launch.blocks * p.batch * p.parts, device.sms, params)
    moves = int(p.a.next != 0), int(p.b.next != 0)
    call = _CALL.pack(p.c.step, p.c.next, p.m, p.n, p.k, p.batch, *moves, p.parts, p.part_steps)
    shared = launch.shared_bytes
    if p.epilogue is not None or p.blocks is not None:
        call += _steps_of_scales(p)
    if p.epilogue is not None:
        shared += kernel.shared_to_finish(params, p.epilogue.vectors)
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), (grid, launch.threads, shared), operands, call)

    def product(a: int, b: int, c: int, stream: Any, *arrays: int) -> None:
        run(stream_handle(stream), (a, b, c if in_boxes else a), (c, *(at or c for at in arrays)))

    return product


#: The most products of one launch that have rows of their own number.
MOST_RAGGED = 256


@functools.lru_cache(maxsize=1024)
def prepare_ragged_product(
    device: Device,
    kernel: CudaKernel,
    product: BoxedProduct,
    rows: tuple[int, ...],
    chosen: Chosen,
) -> GpuProduct:
    """Products of which each has its own number of ``rows``, on ``device``. The rows of all A follow each other, and so do
    those of all C; ``product.m`` is their sum, and k is in one part. There are at most ``MOST_RAGGED`` of them."""
    values, p = kernel.checked(dict(chosen)), product
    operands = [
        _operand(kernel, "a", p.dtype, (p.m, p.k), p.a, 1, values),
        _operand(kernel, "b", p.dtype, (p.k, p.n), p.b, len(rows), values),
    ]
    run, call = _ragged_launch(device, kernel, p, rows, values, operands, {})
    return lambda a, b, c, stream: run(stream_handle(stream), (a, b, a), (c,), call)


#: The bytes from one matrix to the next of a map by which matrices anywhere are read, and the most of them.
_MOST_SCATTERED = 2**31 - 1

#: ``run(addresses, c, stream)``: the addresses of all A, then of all B; whether they were near enough to each other.
ScatteredProduct = Callable[[Any, int, Any], bool]


@functools.lru_cache(maxsize=256)
def prepare_scattered_product(
    device: Device,
    kernel: CudaKernel,
    product: BoxedProduct,
    rows: tuple[int, ...],
    chosen: Chosen,
) -> ScatteredProduct:
    """The same for A and B at any addresses that are multiples of 16 bytes, within 32 GiB; the rows of all C follow each
    other."""
    values, p, size = kernel.checked(dict(chosen)), product, itemsize_of(product.dtype)
    most, row_bytes = max(rows), p.a.step * size
    operands = [
        _operand(kernel, "a", p.dtype, (most, p.k), p.a, 1, values),
        _operand(kernel, "b", p.dtype, (p.k, p.n), p.b, 1, values),
    ]
    operands = [operand._replace(matrices=_MOST_SCATTERED, next_bytes=GRANULE) for operand in operands]
    run, call = _ragged_launch(device, kernel, p, rows, values, operands, {"SCATTERED": 1})
    tops = np.zeros(MOST_RAGGED, np.int32)
    tops[: len(rows)] = most - np.array(rows)
    filled, before = np.flatnonzero(rows), np.zeros((2, len(rows)), np.int64)
    before[0] = (most - np.array(rows)) * row_bytes
    call, gap = call + tops.tobytes(), bytes(4 * (MOST_RAGGED - len(rows)))

    def multiply(addresses: Any, c: int, stream: Any) -> bool:
        begin = addresses.reshape(2, -1) - before
        lowest = begin[:, filled].min(axis=1)
        at = (begin - lowest[:, None]) // GRANULE
        if at[:, filled].max() >= _MOST_SCATTERED:
            return False
        a, b = at.astype(np.int32)
        of_a, of_b = lowest.tolist()
        structure = call + a.tobytes() + gap + b.tobytes() + gap
        run(stream_handle(stream), (of_a, of_b, of_a), (c,), structure + bytes(-len(structure) % 8))
        return True

    return multiply


def _ragged_launch(
    device: Device,
    kernel: CudaKernel,
    p: BoxedProduct,
    rows: tuple[int, ...],
    values: Mapping[str, int],
    operands: list[BoxedOperand],
    macros: Mapping[str, object],
) -> tuple[BoxedLauncher, bytes]:
    """The launch, and what its structure begins with."""
    band = values["BM"] * values.get("CLUSTER", 1)
    tops, bands = [0], [0]
    for count in rows:
        tops.append(tops[-1] + count)
        bands.append(bands[-1] + -(-count // band))
    given = {**_macros(p, in_boxes=False), "RAGGED": MOST_RAGGED, **macros}
    compiled = compiled_once(kernel, device.arch, tuple(sorted(values.items())), tuple(given.items()))
    launch = kernel.launch(bands[-1] * band, p.n, p.k, **values)
    call = _CALL.pack(p.c.step, 0, p.m, p.n, p.k, len(rows), 0, int(p.b.next != 0), 1, MOST)
    call += b"".join(
        struct.pack(f"<{MOST_RAGGED + 1}i", *each, *[0] * (MOST_RAGGED - len(rows))) for each in (tops, bands)
    )
    nbytes = len(call) + (12 * MOST_RAGGED if macros else 0)
    size = launched(launch.blocks, device.sms, values), launch.threads, launch.shared_bytes
    whole = call + bytes(-(-nbytes // 8) * 8 - len(call))
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, [*operands, operands[0]], whole)
    return run, call if macros else whole


class Groups(NamedTuple):
    """A ``number`` of groups of rows of A and C, each with a B of its own, or if ``of_k`` of k, each with a C of its own.
    Where they end is known on the GPU alone."""

    number: int
    of_k: bool

    @property
    def macro(self) -> dict[str, object]:
        """What kernels are compiled with."""
        return {"GROUPED": "OF_K" if self.of_k else "OF_ROWS"}

    def most_bands(self, rows: int, band: int) -> int:
        """The most bands of so many rows that groups of ``rows`` rows in all, and those that follow the last, can have."""
        return rows // band + min(self.number + 1, rows)


@functools.lru_cache(maxsize=1024)
def prepare_grouped_boxes(
    device: Device, kernel: CudaKernel, product: BoxedProduct, groups: Groups, chosen: Chosen
) -> GpuProduct:
    """Products of groups on ``device``: ``run(a, b, c, offsets, stream)``, where ``offsets`` are the ends of the groups as
    int32. ``product`` has all rows, or all of k, and the batch of its B, or of its C, are the groups. Of k both operands are
    read in boxes of whole rows: A is laid ``down``, and B is not. With scales of ``blocks`` their addresses precede the
    stream."""
    values, p = kernel.checked(dict(chosen)), product
    size = itemsize_of(p.out)
    in_boxes = p.aligned and are_whole(size, p.n, p.c.step, p.c.next) and values["BN"] * size % GRANULE == 0
    operands = [
        _operand(kernel, "a", p.dtype, (p.m, p.k), p.a, 1, values),
        _operand(kernel, "b", p.dtype, (p.k, p.n), p.b, groups.number, values),
    ]
    operands.append(_operand(kernel, "c", p.out, (p.m, p.n), p.c, groups.number, values) if in_boxes else operands[0])
    compiled = compiled_once(kernel, device.arch, chosen, tuple({**_macros(p, in_boxes), **groups.macro}.items()))
    band = values["BM"] * values["CLUSTER"]
    rows = p.m if groups.of_k else groups.most_bands(p.m, band) * band
    launch = kernel.launch(rows, p.n, p.k, **values)
    grid = launched(launch.blocks * (groups.number if groups.of_k else 1), device.sms, values)
    call = _CALL.pack(p.c.step, p.c.next, p.m, p.n, p.k, groups.number, 0, int(p.b.next != 0), 1, MOST)
    if p.blocks is not None:
        call += _steps_of_scales(p) + struct.pack("<q", p.blocks.next_group)
    shape = grid, launch.threads, launch.shared_bytes
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), shape, operands, call)

    def multiply(a: int, b: int, c: int, offsets: int, *others: Any) -> None:
        *scales, stream = others
        vectors = (c, *scales) if scales else ()  # a bias is absent
        run(stream_handle(stream), (a, b, c if in_boxes else a), (c, *vectors, offsets))

    return multiply


def _steps_of_scales(p: BoxedProduct) -> bytes:
    """What ``Call`` has of epilogue and blocks."""
    e = p.epilogue or BoxedEpilogue(1.0, 0.0, None, None, False, None, None)
    scales = p.blocks or ScaleBlocks(e.row_scales or 0, e.column_scales or 0, 0, 0)
    return _FINISH.pack((e.bias or ("", 0))[1], *scales[:4], e.alpha, e.beta)


def _macros(p: BoxedProduct, in_boxes: bool) -> dict[str, object]:
    of_a, of_b = p.factors or (p.dtype, p.dtype)
    # A pair of numbers of eight bytes is half a sector: where rows begin at the other half, sectors would be written in two.
    size = itemsize_of(p.out)
    together = 4 if size == 8 else 2
    in_pairs = not p.c.down and (p.c.step | p.c.next) % together == 0 and p.n % 2 == 0 and p.aligned
    # Others store rows through shared memory, and read pairs only of a C that is added.
    needs_pairs = size == 8 or (size == 1 and not in_boxes) or (p.epilogue is not None and p.epilogue.beta != 0)
    return {
        "TYPE": p.dtype.upper(),
        "TYPE_A": of_a.upper(),
        "TYPE_B": of_b.upper(),
        "OUT": p.out.upper(),
        "A_DOWN": int(p.a.down),
        "B_ACROSS": int(not p.b.down),
        "STORE_BOXES": int(in_boxes),
        "STORE_PAIRS": int(in_pairs and needs_pairs),
        **({} if p.epilogue is None else p.epilogue.macros),
        **({} if p.blocks is None else {"BLOCKS": 1}),
        **({"C_DOWN": 1} if p.c.down else {}),
    }


def _operand(
    kernel: CudaKernel,
    name: str,
    dtype: str,
    shape: tuple[int, int],
    laid: Laid,
    batch: int,
    params: Mapping[str, int],
    m: int = 1 << 30,
) -> BoxedOperand:
    rows, columns = shape[::-1] if laid.down else shape
    size = itemsize_of(dtype)
    # A stride over a single row is never used, but the driver wants one.
    row = laid.step if rows > 1 else -(-columns * size // GRANULE) * GRANULE // size
    count = batch if laid.next else 1
    box = kernel.box(f"{name}_down" if laid.down else name, size, params, m)
    return BoxedOperand(dtype, rows, columns, count, row * size, (laid.next or row * rows) * size, box)
