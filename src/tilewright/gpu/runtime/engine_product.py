"""Describes the product that a kernel of the engine computes, and turns it into a launch.

``EngineProduct`` describes the layout of the matrices, the parts of k, and the epilogue. A kernel takes the matrices by
pointers and strides, by tensor maps (``boxes``), or as lists of products with different shapes. Launches of these three
forms have different structures of arguments. ``plain_launch`` launches any kernel, also rungs of the ladder, for
row-major operands without gaps.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import UsageError
from ...kernels.cuda_kernel import CudaKernel, Launch, launched
from ...product.epilogue import epilogue_text
from ...product.problem import itemsize_of
from .compilations import Chosen, KernelCode, chosen_params
from .device import Device
from .launch import BoxedLauncher, BoxedOperand, Mapped, check_box_rows, mapped_arguments
from .layout import Matrix, row_major_matrix
from .memory import GRANULE
from .nvrtc import Compiled, compile_with
from .product import MOST, GpuProduct, stream_handle
from .steps import BIAS, OPERANDS, SCALE_A, SCALE_B, A, B, BufferPlace, C, GpuStep, KernelLaunch


class ScaleBlocks(NamedTuple):
    """The strides, in elements, of the scales of blocks: from one row of A to the next, from 128 columns of B to the
    next 128, from 128 elements of k to the next 128 (for A and for B), and from one group's B to the next."""

    row: int
    column: int
    next_of_rows: int
    next_of_columns: int
    next_group: int = 0


class FinishForm(NamedTuple):
    """An epilogue without the addresses of its arrays: the part that a plan depends on.

    For each array the form holds the stride, and for the bias also the dtype; the stride of an absent array is None.
    ``rows`` is the number of rows of one product. Scales of ``blocks`` are applied by the kernel that multiplies. With
    ``by_row`` the bias has one number for each row, because C is transposed."""

    alpha: float
    beta: float
    activation: str | None
    bias: tuple[str, int] | None
    scale_a: int | None
    scale_b: int | None
    rows: int
    blocks: ScaleBlocks | None = None
    by_row: bool = False

    def __str__(self) -> str:
        steps = {"bias": self.bias, "scale_a": self.scale_a, "scale_b": self.scale_b}
        arrays = [name for name, step in steps.items() if step is not None]
        product = "A·B" if self.blocks is None else "A·B with scales of blocks"
        return epilogue_text(self.alpha, self.beta, self.activation, arrays, product)

    def places(self, c: BufferPlace) -> tuple[BufferPlace, BufferPlace, BufferPlace]:
        """The places of the bias and the scales. An absent array has the place of C, whose address the kernel does not
        use."""
        has_blocks = self.blocks is not None
        there = self.bias is not None, has_blocks or self.scale_a is not None, has_blocks or self.scale_b is not None
        bias, of_a, of_b = (
            BufferPlace(x) if found else c for x, found in zip((BIAS, SCALE_A, SCALE_B), there, strict=True)
        )
        return bias, of_a, of_b

    @property
    def transposed(self) -> FinishForm:
        """The form of the same epilogue for Cᵀ = Bᵀ·Aᵀ."""
        return self._replace(scale_a=self.scale_b, scale_b=self.scale_a, by_row=not self.by_row)

    @property
    def vectors(self) -> int:
        """How many arrays of the epilogue have one number for each column."""
        return int(self.bias is not None and not self.by_row) + int(self.scale_b is not None)

    @property
    def macros(self) -> dict[str, object]:
        """The macros for compiling a kernel that applies the epilogue to its sums before it stores them."""
        of_rows, of_columns = self.scale_a is not None, self.scale_b is not None
        return {
            "FINISHED": 1,
            "VECTORS": self.vectors,
            "FACTORS": int(self.alpha != 1 or of_rows),
            "SCALED": of_rows + 2 * of_columns,
            "ADDS": int(self.beta != 0),
            "BIASED": 0 if self.bias is None else 1 if self.by_row else 2,
            "BIAS": (self.bias or ("float32", 0))[0].upper(),
            "ACTIVATION": (self.activation or "none").upper(),
        }


@dataclass(frozen=True)
class EngineProduct:
    """C = A·B for each product of a batch and each of ``parts`` of k, whose sums follow one another like a batch.

    Each part of k has ``part_steps`` steps of the kernel's loop. ``compute`` is the dtype in which the kernel
    multiplies. ``padded`` says for A and for B whether a row, or with ``down`` a column, may be read to the end of its
    last vector. The arrays of an ``epilogue``, or of scales of ``blocks``, are the bias, the scales of rows and the
    scales of columns; the place of C stands for an absent array. With ``triangle`` C is symmetric, and only tiles of
    its lower triangle are computed."""

    compute: str
    a: Matrix
    b: Matrix
    c: Matrix
    batch: int = 1
    parts: int = 1
    part_steps: int = MOST
    padded: tuple[bool, bool] = (False, False)
    epilogue: FinishForm | None = None
    blocks: ScaleBlocks | None = None
    triangle: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.rows, self.b.columns, self.a.columns


# ---- kernels of pointers and strides (``strides`` in their headers) --------------------------------------------------

#: The last parameter of such a kernel, ``Call`` in ``gpu/kernels/strided.cuh``.
_STRIDED_CALL = struct.Struct("<qqqqqqqqqiiiiii")
#: The most blocks of a launch.
_MOST_STRIDED_BLOCKS = 2**31 - 1


def strided_step(
    sms: int, kernel: CudaKernel, params: Mapping[str, int], p: EngineProduct, arrays: Sequence[BufferPlace] = ()
) -> GpuStep:
    """The launch of the product on a GPU with ``sms`` multiprocessors. All sizes are at least 1. Raises UsageError for
    parameters that the kernel does not take."""
    values, (m, n, k) = kernel.checked(params), p.sizes
    macros: dict[str, object] = {
        "TYPE": p.compute.upper(),
        "OUT": p.c.dtype.upper(),
        "A_DOWN": int(p.a.down),
        "B_ACROSS": int(not p.b.down),
        "A_VECTOR": p.a.vector_bytes,
        "B_VECTOR": p.b.vector_bytes,
        "C_VECTOR": _stored_bytes(p.c),
        **{f"{name}_PADDED": 1 for name, is_padded in zip("AB", p.padded, strict=True) if is_padded},
    }
    launch = kernel.launch_with(values, m, n, k)
    blocks = launch.blocks * p.batch * p.parts
    if kernel.persistent:
        blocks = launched(blocks, sms, values)
    strides = (number for x in (p.a, p.b, p.c) for number in (x.row, x.column, x.next))
    call = _STRIDED_CALL.pack(*strides, m, n, k, p.batch, p.parts, p.part_steps)
    size = min(blocks, _MOST_STRIDED_BLOCKS), launch.threads, launch.shared_bytes
    code = KernelCode(kernel, tuple(macros.items()), chosen_params(params))
    return GpuStep(KernelLaunch(code, kernel.entry, size, call), (*OPERANDS, *arrays))


def _stored_bytes(c: Matrix) -> int:
    """The most bytes that are stored at once. 16 bytes of float64 are half a sector: if rows begin in the middle of a
    sector, sectors would be stored in parts."""
    in_two = c.dtype == "float64" and c.rows > 1 and (c.row | c.next) % 4
    return min(c.vector_bytes, 8) if in_two else c.vector_bytes


# ---- kernels whose operands are tensor maps (``boxes`` in their headers) ---------------------------------------------

#: The last parameter of such a kernel, ``Call`` in its source, and what it has of an epilogue.
_BOXED_CALL, _FINISH = struct.Struct("<qqiiiiiiii"), struct.Struct("<qqqqqff")


def are_whole(itemsize: int, *lengths: int) -> bool:
    """Whether the copy engine can store a C whose elements have ``itemsize`` bytes. The copy engine can do so if
    ``itemsize`` is two or four, and all given lengths and strides are multiples of 16 bytes. Lengths are in elements.

    >>> are_whole(2, 264, 272), are_whole(2, 264, 261), are_whole(8, 264)
    (True, False, False)
    """
    return itemsize in (2, 4) and all(length * itemsize % GRANULE == 0 for length in lengths)


def stores_boxes(c: Matrix) -> bool:
    """Whether the copy engine can store a C with this layout."""
    return c.aligned and are_whole(itemsize_of(c.dtype), c.rows if c.down else c.columns, c.step, c.next)


def boxed_step(
    sms: int, kernel: CudaKernel, params: Mapping[str, int], p: EngineProduct, arrays: Sequence[BufferPlace] = ()
) -> GpuStep:
    """The launch of the product on a GPU with ``sms`` multiprocessors. All sizes are at least 1; the addresses and
    strides of A and B are multiples of 16 bytes. ``arrays`` are the places of the epilogue's arrays that the kernel
    applies. Raises UsageError for parameters that the kernel does not take."""
    values, (m, n, k), size = kernel.checked(params), p.sizes, itemsize_of(p.c.dtype)
    # A box begins at a multiple of 16 bytes of a row, and so must the tiles.
    in_boxes = stores_boxes(p.c) and (p.c.down or values["BN"] * size % GRANULE == 0)
    launch = kernel.launch_with(values, m, n, k)
    blocks = kernel.triangle_blocks(values, m, k) if p.triangle else launch.blocks
    of_a, of_b = _boxed_operand(kernel, "a", p, p.batch, values, m), _boxed_operand(kernel, "b", p, p.batch, values)
    # Where C is not stored in boxes, its map is not used, and that of A stands in its place.
    of_c = _boxed_operand(kernel, "c", p, p.batch * p.parts, values) if in_boxes else of_a
    maps, places = [of_a, of_b, of_c], [BufferPlace(A), BufferPlace(B), BufferPlace(C if in_boxes else A)]
    if p.triangle and "c" in kernel.boxes:  # elements are stored a second time by the map of its transpose
        assert in_boxes
        assert not p.c.down
        of_transpose = replace(p, c=p.c.transposed._replace(down=True))
        maps.append(_boxed_operand(kernel, "c", of_transpose, p.batch * p.parts, values))
        places.append(BufferPlace(C))
    moves = int(p.a.next != 0), int(p.b.next != 0)
    call = _BOXED_CALL.pack(p.c.step, p.c.next, m, n, k, p.batch, *moves, p.parts, p.part_steps)
    shared = launch.shared_bytes
    if p.epilogue is not None or p.blocks is not None:
        call += _steps_of_scales(p)
    if p.epilogue is not None:
        shared += kernel.shared_to_finish(values, p.epilogue.vectors)
    size_of_launch = launched(blocks * p.batch * p.parts, sms, values), launch.threads, shared
    code = KernelCode(kernel, tuple(_boxed_macros(p, in_boxes).items()), chosen_params(params))
    return GpuStep(
        KernelLaunch(code, kernel.entry, size_of_launch, call, tuple(maps)),
        (*places, BufferPlace(C), *arrays),
    )


# The cached functions below prepare launches: kernels stay loaded, and addresses come with each launch.

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
    """Prepare products on ``device`` of which each has its own number of ``rows``.

    The rows of all A follow one another, and so do those of all C. ``product.a`` has all rows of all products, and k is
    not cut into parts. There are at most ``MOST_RAGGED`` products."""
    values, p = kernel.checked(dict(chosen)), product
    operands = [
        _boxed_operand(kernel, "a", p, 1, values),
        _boxed_operand(kernel, "b", p, len(rows), values),
    ]
    run, call = _ragged_launch(device, kernel, p, rows, values, operands)
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
    """Prepare products as ``prepare_ragged_product`` does, but for A and B at any addresses that are multiples of 16
    bytes, within 32 GiB. The rows of all C follow one another."""
    values, p = kernel.checked(dict(chosen)), product
    most, row_bytes = max(rows), p.a.step * itemsize_of(p.compute)
    operands = [
        _boxed_operand(kernel, "a", replace(p, a=p.a._replace(rows=most)), 1, values),
        _boxed_operand(kernel, "b", p, 1, values),
    ]
    operands = [operand._replace(matrices=_MOST_SCATTERED, next_bytes=GRANULE) for operand in operands]
    run, call = _ragged_launch(device, kernel, p, rows, values, operands, SCATTERED=1)
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
    **macros: object,
) -> tuple[BoxedLauncher, bytes]:
    """The launch of a ragged product, and the beginning of its structure of arguments."""
    band = values["BM"] * values.get("CLUSTER", 1)
    tops, bands = [0], [0]
    for count in rows:
        tops.append(tops[-1] + count)
        bands.append(bands[-1] + -(-count // band))
    given = {**_boxed_macros(p, in_boxes=False), "RAGGED": MOST_RAGGED, **macros}
    compiled = KernelCode(kernel, tuple(given.items()), tuple(sorted(values.items()))).compiled(device.arch)
    m, n, k = p.sizes
    launch = kernel.launch(bands[-1] * band, n, k, **values)
    call = _BOXED_CALL.pack(p.c.step, 0, m, n, k, len(rows), 0, int(p.b.next != 0), 1, MOST)
    call += b"".join(
        struct.pack(f"<{MOST_RAGGED + 1}i", *each, *[0] * (MOST_RAGGED - len(rows))) for each in (tops, bands)
    )
    nbytes = len(call) + (12 * MOST_RAGGED if macros else 0)
    size = launched(launch.blocks, device.sms, values), launch.threads, launch.shared_bytes
    whole = call + bytes(-(-nbytes // 8) * 8 - len(call))
    run = device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, [*operands, operands[0]], whole)
    return run, call if macros else whole


class Groups(NamedTuple):
    """``number`` groups of rows of A and C, each with its own B; or with ``of_k`` groups of k, each with its own C. The
    ends of the groups are known only on the GPU."""

    number: int
    of_k: bool

    @property
    def macro(self) -> dict[str, object]:
        """The macro with which kernels for these groups are compiled."""
        return {"GROUPED": "OF_K" if self.of_k else "OF_ROWS"}

    def most_bands(self, rows: int, band: int) -> int:
        """The largest possible number of bands of at most ``band`` rows, if no band has rows of two groups. The groups,
        and the rows after the last group, have ``rows`` rows in all."""
        return rows // band + min(self.number + 1, rows)


@functools.lru_cache(maxsize=1024)
def prepare_grouped_boxes(
    device: Device, kernel: CudaKernel, product: EngineProduct, groups: Groups, chosen: Chosen
) -> GpuProduct:
    """Prepare a grouped product on ``device``. Returns a function ``run(a, b, c, offsets, stream)``, where ``offsets``
    are the ends of the groups as int32.

    For groups of rows, ``product`` has all rows, and its B is a batch with one matrix for each group. For groups of k,
    ``product`` has all of k, and its C is a batch with one matrix for each group. For groups of k, both operands are
    read in boxes of whole rows; A is passed with ``down``, and B without it. With scales of ``blocks`` the addresses of
    the scales precede the stream."""
    values, p, (m, n, k) = kernel.checked(dict(chosen)), product, product.sizes
    size = itemsize_of(p.c.dtype)
    in_boxes = p.c.aligned and are_whole(size, n, p.c.step, p.c.next) and values["BN"] * size % GRANULE == 0
    of_a, of_b = _boxed_operand(kernel, "a", p, 1, values), _boxed_operand(kernel, "b", p, groups.number, values)
    of_c = _boxed_operand(kernel, "c", p, groups.number, values) if in_boxes else of_a
    code = KernelCode(kernel, tuple({**_boxed_macros(p, in_boxes), **groups.macro}.items()), chosen)
    compiled, band = code.compiled(device.arch), values["BM"] * values["CLUSTER"]
    launch = kernel.launch(m if groups.of_k else groups.most_bands(m, band) * band, n, k, **values)
    grid = launched(launch.blocks * (groups.number if groups.of_k else 1), device.sms, values)
    call = _BOXED_CALL.pack(p.c.step, p.c.next, m, n, k, groups.number, 0, int(p.b.next != 0), 1, MOST)
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
    """The fields of ``Call`` for the epilogue and for scales of blocks."""
    e = p.epilogue or FinishForm(1.0, 0.0, None, None, None, None, 0)
    scales = p.blocks or ScaleBlocks(e.scale_a or 0, e.scale_b or 0, 0, 0)
    return _FINISH.pack((e.bias or ("", 0))[1], *scales[:4], e.alpha, e.beta)


def _boxed_macros(p: EngineProduct, in_boxes: bool) -> dict[str, object]:
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
        **({"TRIANGLE": 1} if p.triangle else {}),
    }


def _boxed_operand(
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


# ---- kernels that take lists of products (``gpu/kernels/lists.cuh``) -------------------------------------------------

#: The sizes of the tables with which kernels are compiled, in products: a launch has at most 32,764 bytes of arguments.
TABLES = 32, 64, 128, 256, 512

#: ``Given`` of ``gpu/kernels/lists.cuh`` for groups.
_GROUPED = struct.Struct("<9q6i8x")

#: ``run(addresses, c, stream)``: the addresses of all A, then of all B, as int64; that of the first C; and a stream.
ListedProduct = Callable[[Any, int, Any], None]


class ListedShape(NamedTuple):
    """C[m×n] = A[m×k]·B[k×n] in a list: the layouts of A and B, and the distance in bytes from the first C of the list
    to this C, which has no gaps."""

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
    """Prepare at most ``TABLES[-1]`` products on ``device``; the kernel is compiled and loaded now. Either all A are
    column-major or none is; the same holds for all B. ``out`` is the dtype of the results, if it differs from the dtype
    in which the kernel multiplies.

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
    given = np.zeros(1, _listed_dtype(table))[0]
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
    """Prepare a grouped product as ``prepare_grouped_boxes`` does, for A and B with any strides."""
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


def _listed_dtype(table: int) -> np.dtype[Any]:
    """The NumPy dtype of the structure ``Given`` in ``gpu/kernels/lists.cuh``."""
    longs = [(name, "<i8", table) for name in ("at_a", "at_b", "at_c", "step_a", "step_b")]
    sizes = [(name, "<i4", table) for name in ("m", "n", "k")]
    return np.dtype([*longs, *sizes, ("first", "<i4", table + 1), ("count", "<i4")])


# ---- one product of row-major operands, for the laboratory -----------------------------------------------------------

#: How the arguments of a kernel refer to operands: the number of one, 0 (A), 1 (B) or 2 (C), and how it lies if the kernel
#: takes its tensor map.
Taken = tuple[int, BoxedOperand | None]


@dataclass(frozen=True)
class PlainLaunch:
    """A compiled kernel, the size of its launch, and its arguments. ``places`` says which arguments are operands, and
    ``rest`` are the arguments that follow the operands."""

    compiled: Compiled
    entry: str
    launch: Launch
    places: tuple[Taken, ...]
    rest: tuple[Any, ...]

    def arguments(self, operands: Sequence[Any]) -> list[Any]:
        """All arguments of the launch for these operands A, B and C. Operands that the kernel takes as tensor maps are
        ``Mapped``."""
        given = [operands[i] if how is None else Mapped(operands[i], how) for i, how in self.places]
        return [*given, *self.rest]

    @property
    def result(self) -> int:
        """The position of C among the arguments."""
        return next(position for position, (i, _) in enumerate(self.places) if i == 2)


def plain_launch(
    kernel: CudaKernel,
    shape: tuple[int, int, int],
    dtype: str,
    params: Mapping[str, int],
    *,
    arch: str,
    sms: int,
    defines: Mapping[str, object] | None = None,
    include: Sequence[str | Path] = (),
) -> PlainLaunch:
    """The launch of ``kernel`` for C[m×n] = A[m×k]·B[k×n] of ``dtype``, on a GPU of architecture ``arch`` with ``sms``
    multiprocessors. ``params`` are the parameters that differ from the defaults.

    Raises UsageError for sizes, parameters or options that the kernel does not take, and any error of ``compile_with``.
    """
    if kernel.in_engine:
        if defines or include:
            raise UsageError(f"{kernel.name} is a kernel of the engine: it takes no macros and no folders of the user")
        return _of_engine(kernel, shape, dtype, params, arch, sms)
    launch = kernel.launch_on(sms, *shape, **params)
    check_box_rows(kernel, shape, itemsize_of(dtype))
    compiled = compile_with(kernel, params, arch, defines or {}, include)
    given = mapped_arguments(kernel, shape, dtype, kernel.checked(params), (0, 1, 2))
    places = tuple((i, each.operand if isinstance(each, Mapped) else None) for i, each in enumerate(given))
    return PlainLaunch(compiled, compiled.entry(kernel.entry), launch, places, shape)


def _of_engine(
    kernel: CudaKernel, shape: tuple[int, int, int], dtype: str, params: Mapping[str, int], arch: str, sms: int
) -> PlainLaunch:
    m, n, k = shape
    if not min(shape):
        raise UsageError(f"{kernel.name} at {m}x{n}x{k}: C or k is empty, so the engine launches no kernel")
    if kernel.suits is not None and not kernel.suits(m=m, n=n, k=k, batch=2):
        raise UsageError(f"{kernel.name} at {m}x{n}x{k}: it is for {kernel.suits.text}")
    a, b, c = (row_major_matrix(*each, dtype) for each in ((m, k), (k, n), (m, n)))
    if kernel.boxes:
        size = itemsize_of(dtype)
        if "b" not in kernel.boxes or size not in (2, 8):
            raise UsageError(f"{kernel.name} multiplies {dtype} only if the columns of B follow each other")
        if k * size % GRANULE or n * size % GRANULE:
            raise UsageError(
                f"{kernel.name} takes A and B as tensor maps, whose rows must be multiples of {GRANULE} bytes: "
                f"those of A have {k * size} bytes, those of B {n * size}"
            )
    make = boxed_step if kernel.boxes else strided_step
    step, places = make(sms, kernel, params, EngineProduct(dtype, a, b, c))
    assert isinstance(step, KernelLaunch)
    compiled, (blocks, threads, shared) = step.code.compiled(arch), step.size
    taken = itertools.zip_longest((at.buffer for at in places), step.maps)
    launch = Launch((blocks, 1, 1), (threads, 1, 1), shared)
    return PlainLaunch(compiled, compiled.entry(step.entry), launch, tuple(taken), (step.rest,))
