"""Products by kernels whose operands are tensor maps (``boxes`` in their headers)."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...kernels.cuda_kernel import CudaKernel, launched
from ...product.problem import itemsize_of
from .boxes import BoxedLauncher, BoxedOperand
from .compilations import Chosen, KernelCode, chosen_params
from .device import Device
from .engine_product import EngineProduct, FinishForm, ScaleBlocks
from .memory import GRANULE
from .product import MOST, GpuProduct, stream_handle
from .steps import A, B, BufferPlace, C, GpuStep, KernelLaunch

#: The last parameter of such a kernel, ``Call`` in its source, and what it has of an epilogue.
_CALL, _FINISH = struct.Struct("<qqiiiiiiii"), struct.Struct("<qqqqqff")


def are_whole(itemsize: int, *lengths: int) -> bool:
    """Whether the copy engine stores a C of such elements, whose rows and the steps between them have these lengths in
    elements: those of two or four bytes, in whole granules.

    >>> are_whole(2, 264, 272), are_whole(2, 264, 261), are_whole(8, 264)
    (True, False, False)
    """
    return itemsize in (2, 4) and all(length * itemsize % GRANULE == 0 for length in lengths)


def boxed_step(
    sms: int, kernel: CudaKernel, params: Mapping[str, int], p: EngineProduct, arrays: Sequence[BufferPlace] = ()
) -> GpuStep:
    """The product on a GPU with so many multiprocessors. Sizes are at least 1; the addresses of A and B, and their strides,
    are multiples of 16 bytes. ``arrays``: the places of those that it applies. Raises UsageError for parameters that the
    kernel does not take."""
    values, (m, n, k), size = kernel.checked(params), p.sizes, itemsize_of(p.c.dtype)
    # A box begins at a multiple of 16 bytes of a row, and so must the tiles.
    in_boxes = (
        p.c.aligned
        and are_whole(size, m if p.c.down else n, p.c.step, p.c.next)
        and (p.c.down or values["BN"] * size % GRANULE == 0)
    )
    launch = kernel.launch_with(values, m, n, k)
    of_a, of_b = _operand(kernel, "a", p, p.batch, values, m), _operand(kernel, "b", p, p.batch, values)
    # Where C is not stored in boxes, its map is not used, and that of A stands in its place.
    of_c = _operand(kernel, "c", p, p.batch * p.parts, values) if in_boxes else of_a
    moves = int(p.a.next != 0), int(p.b.next != 0)
    call = _CALL.pack(p.c.step, p.c.next, m, n, k, p.batch, *moves, p.parts, p.part_steps)
    shared = launch.shared_bytes
    if p.epilogue is not None or p.blocks is not None:
        call += _steps_of_scales(p)
    if p.epilogue is not None:
        shared += kernel.shared_to_finish(values, p.epilogue.vectors)
    size_of_launch = launched(launch.blocks * p.batch * p.parts, sms, values), launch.threads, shared
    code = KernelCode(kernel, tuple(_macros(p, in_boxes).items()), chosen_params(params))
    return GpuStep(
        KernelLaunch(code, kernel.entry, size_of_launch, call, (of_a, of_b, of_c)),
        (BufferPlace(A), BufferPlace(B), BufferPlace(C if in_boxes else A), BufferPlace(C), *arrays),
    )


#: The most products of one launch that have rows of their own number.
MOST_RAGGED = 256


@functools.lru_cache(maxsize=1024)
def prepare_ragged_product(
    device: Device,
    kernel: CudaKernel,
    product: EngineProduct,
    rows: tuple[int, ...],
    chosen: Chosen,
) -> GpuProduct:
    """Products of which each has its own number of ``rows``, on ``device``. The rows of all A follow each other, and so do
    those of all C; ``product.a`` has their sum, and k is in one part. There are at most ``MOST_RAGGED`` of them."""
    values, p = kernel.checked(dict(chosen)), product
    operands = [
        _operand(kernel, "a", p, 1, values),
        _operand(kernel, "b", p, len(rows), values),
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
    product: EngineProduct,
    rows: tuple[int, ...],
    chosen: Chosen,
) -> ScatteredProduct:
    """The same for A and B at any addresses that are multiples of 16 bytes, within 32 GiB; the rows of all C follow each
    other."""
    values, p = kernel.checked(dict(chosen)), product
    most, row_bytes = max(rows), p.a.step * itemsize_of(p.compute)
    operands = [
        _operand(kernel, "a", replace(p, a=p.a._replace(rows=most)), 1, values),
        _operand(kernel, "b", p, 1, values),
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
    p: EngineProduct,
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
    compiled = KernelCode(kernel, tuple(given.items()), tuple(sorted(values.items()))).compiled(device.arch)
    m, n, k = p.sizes
    launch = kernel.launch(bands[-1] * band, n, k, **values)
    call = _CALL.pack(p.c.step, 0, m, n, k, len(rows), 0, int(p.b.next != 0), 1, MOST)
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
    device: Device, kernel: CudaKernel, product: EngineProduct, groups: Groups, chosen: Chosen
) -> GpuProduct:
    """Products of groups on ``device``: ``run(a, b, c, offsets, stream)``, where ``offsets`` are the ends of the groups as
    int32. ``product`` has all rows, or all of k, and the batch of its B, or of its C, are the groups. Of k both operands are
    read in boxes of whole rows: A is given ``down``, and B is not. With scales of ``blocks`` their addresses precede the
    stream."""
    values, p, (m, n, k) = kernel.checked(dict(chosen)), product, product.sizes
    size = itemsize_of(p.c.dtype)
    in_boxes = p.c.aligned and are_whole(size, n, p.c.step, p.c.next) and values["BN"] * size % GRANULE == 0
    of_a, of_b = _operand(kernel, "a", p, 1, values), _operand(kernel, "b", p, groups.number, values)
    of_c = _operand(kernel, "c", p, groups.number, values) if in_boxes else of_a
    code = KernelCode(kernel, tuple({**_macros(p, in_boxes), **groups.macro}.items()), chosen)
    compiled, band = code.compiled(device.arch), values["BM"] * values["CLUSTER"]
    launch = kernel.launch(m if groups.of_k else groups.most_bands(m, band) * band, n, k, **values)
    grid = launched(launch.blocks * (groups.number if groups.of_k else 1), device.sms, values)
    call = _CALL.pack(p.c.step, p.c.next, m, n, k, groups.number, 0, int(p.b.next != 0), 1, MOST)
    if p.blocks is not None:
        call += _steps_of_scales(p) + struct.pack("<q", p.blocks.next_group)
    shape = grid, launch.threads, launch.shared_bytes
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), shape, (of_a, of_b, of_c), call)

    def multiply(a: int, b: int, c: int, offsets: int, *others: Any) -> None:
        *scales, stream = others
        vectors = (c, *scales) if scales else ()  # a bias is absent
        run(stream_handle(stream), (a, b, c if in_boxes else a), (c, *vectors, offsets))

    return multiply


def _steps_of_scales(p: EngineProduct) -> bytes:
    """What ``Call`` has of epilogue and blocks."""
    e = p.epilogue or FinishForm(1.0, 0.0, None, None, None, None, 0)
    scales = p.blocks or ScaleBlocks(e.scale_a or 0, e.scale_b or 0, 0, 0)
    return _FINISH.pack((e.bias or ("", 0))[1], *scales[:4], e.alpha, e.beta)


def _macros(p: EngineProduct, in_boxes: bool) -> dict[str, object]:
    # A pair of numbers of eight bytes is half a sector: where rows begin at the other half, sectors would be written in two.
    size, narrow = itemsize_of(p.c.dtype), p.compute.startswith("float8")
    together = 4 if size == 8 else 2
    in_pairs = not p.c.down and (p.c.step | p.c.next) % together == 0 and p.b.columns % 2 == 0 and p.c.aligned
    # Others store rows through shared memory, and read pairs only of a C that is added.
    needs_pairs = size == 8 or (size == 1 and not in_boxes) or (p.epilogue is not None and p.epilogue.beta != 0)
    return {
        "TYPE": p.compute.upper(),
        "TYPE_A": (p.a.dtype if narrow else p.compute).upper(),
        "TYPE_B": (p.b.dtype if narrow else p.compute).upper(),
        "OUT": p.c.dtype.upper(),
        "A_DOWN": int(p.a.down),
        "B_ACROSS": int(not p.b.down),
        "STORE_BOXES": int(in_boxes),
        "STORE_PAIRS": int(in_pairs and needs_pairs),
        **({} if p.epilogue is None else p.epilogue.macros),
        **({} if p.blocks is None else {"BLOCKS": 1}),
        **({"C_DOWN": 1} if p.c.down else {}),
    }


def _operand(
    kernel: CudaKernel, name: str, p: EngineProduct, batch: int, params: Mapping[str, int], m: int = 1 << 30
) -> BoxedOperand:
    matrix = {"a": p.a, "b": p.b, "c": p.c}[name]
    dtype, down = matrix.dtype if name == "c" else p.compute, matrix.down
    rows, columns = (matrix.columns, matrix.rows) if down else (matrix.rows, matrix.columns)
    size = itemsize_of(dtype)
    # A stride over a single row is never used, but the driver wants one.
    row = matrix.step if rows > 1 else -(-columns * size // GRANULE) * GRANULE // size
    count = batch if matrix.next else 1
    box = kernel.box(f"{name}_down" if down else name, size, params, m)
    return BoxedOperand(dtype, rows, columns, count, row * size, (matrix.next or row * rows) * size, box)
