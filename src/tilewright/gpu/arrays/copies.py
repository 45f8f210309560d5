"""The launches before and after a product on a GPU: copies of matrices with any strides, also to another dtype; the sum
over parts of k; and the epilogue, if the kernel that multiplies does not apply it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...host.cached_property import cached_property
from ...host.sources import PACKAGE
from ...product.problem import itemsize_of
from ..planning.ways import NEXT_LAUNCH_S
from ..runtime.compilations import KernelCode
from ..runtime.engine_product import FinishForm
from ..runtime.layout import Matrix
from ..runtime.memory import GRANULE
from ..runtime.steps import BufferPlace, GpuStep, KernelLaunch
from .gpu_array import merged_axes
from .order import Order, OrderedMatrix

#: Warps of a block.
_WARPS = 8
#: The most blocks of a launch that adds parts; with more elements, each block adds several.
_MOST_BLOCKS = 1 << 16
#: Types of C++ by dtype; others are copied as bits.
_TYPES = {
    "float32": "float",
    "float64": "double",
    "bfloat16": "BFloat16",
    "float16": "Float16",
    "complex64": "Complex64",
    "complex128": "Complex128",
}
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long", 16: "Bits128"}

#: Seconds of a warp, each of which copies up to 512 bytes, among as many others as a GPU runs.
_WARP_S = 0.26e-9
#: The time of a transposing copy of rows at any address over that of whole granules.
_SHIFTED_ACROSS = 1.3
#: The time of a launch that transposes one matrix and not the other, over that of two launches.
_MIXED = 1.75
#: Bytes a second that copies read, and that they write; and seconds of one more launch. Measured on an H200.
_READ_BYTES_S, _WRITE_BYTES_S, _LAUNCH_S = 4.9e12, 3.6e12, 2.3e-6
#: Bytes of a sector: a copy reads whole ones.
_SECTOR = 32


@dataclass(frozen=True)
class MatrixCopy:
    """The copy of each matrix of a batch, with the layout ``source``, into a matrix with the layout ``target``. Each
    axis of the batch is given by its length, by the distance in elements from one source to the next, and by the
    distance from one target to the next.

    Numbers are rounded once, to nearest, ties to even. With ``own`` the memory between the rows of the target may be
    overwritten. With ``conjugate`` imaginary parts change their sign.
    """

    source: Matrix
    target: Matrix
    own: bool = False
    batch: tuple[tuple[int, ...], ...] = ()
    conjugate: bool = False

    @cached_property
    def elements(self) -> int:
        """The number of elements of all matrices."""
        return self.source.rows * self.source.columns * math.prod(axis[0] for axis in self.batch)

    # ---- as its kernel does it: along x the elements of the source follow each other, or are nearest ----------------

    @cached_property
    def down(self) -> bool:
        """Whether the axis x is along the columns of the source."""
        return _direction(self.source)

    @cached_property
    def across(self) -> bool:
        """Whether the copy transposes the matrix in memory."""
        return self.down != _direction(self.target)

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """The bytes of an element of the source, and of an element of the target."""
        return itemsize_of(self.source.dtype), itemsize_of(self.target.dtype)

    @cached_property
    def extents(self) -> tuple[int, int]:
        """The numbers of elements along x and y."""
        rows, columns = self.source.rows, self.source.columns
        return (rows, columns) if self.down else (columns, rows)

    def steps(self, matrix: Matrix) -> tuple[int, int]:
        """The strides of the source and the target along x and y."""
        return (matrix.row, matrix.column) if self.down else (matrix.column, matrix.row)

    @cached_property
    def vectors(self) -> tuple[int, int]:
        """The numbers of elements along x and y that a thread copies at once."""
        size, out = self.sizes
        return (16 // size, min(8, 16 // out)) if self.across else (16 // min(size, out), 1)

    @cached_property
    def is_shifted(self) -> bool:
        """Whether vectors along x may begin at addresses that are not multiples of 16 bytes."""
        y, size, source = self.extents[1], self.sizes[0], self.source
        steps = [self.steps(source)[1]] * (y > 1) + [axis[1] for axis in self.batch]
        return math.gcd(source.alignment, *(step * size for step in steps)) % GRANULE != 0

    @cached_property
    def seconds(self) -> float:
        """The predicted time in seconds of the copy, if it shares a launch with others."""
        moved_s = self.elements * (
            _moved_bytes(self.source) / _READ_BYTES_S + _moved_bytes(self.target) / _WRITE_BYTES_S
        )
        _, across, down = self.parts
        warps_s = across * down * math.prod(axis[0] for axis in self.batch) * _WARP_S
        return max(warps_s, moved_s * (_SHIFTED_ACROSS if self.across and self.is_shifted else 1))

    @cached_property
    def parts(self) -> tuple[int, int, int]:
        """The binary logarithm of the number of a warp's lanes along x, and the numbers of parts into which the x axis
        and the y axis are cut. Each warp copies one rectangle: one part of x by one part of y."""
        (x, y), (vx, vy) = self.extents, self.vectors
        lanes = _lanes(-(-x // vx), -(-y // vy), self.across)
        return lanes, -(-x // (vx << lanes)), -(-y // (vy * (32 >> lanes)))

    def macros(self, i: int) -> dict[str, object]:
        """The macros with which the kernel is compiled for this copy, which is job number ``i``."""
        (x, y), (size, out) = self.extents, self.sizes
        source, target = self.source, self.target
        (from_x, _), (to_x, to_y) = self.steps(source), self.steps(target)
        inner, count = (to_y, y) if self.across else (to_x, x)
        outer, rows = (to_x, x) if self.across else (to_y, y)
        whole = math.gcd(target.alignment, outer * out * (rows > 1), *(step * out for _, _, step in self.batch))
        same = source.dtype == target.dtype and not self.conjugate
        types = [_BITS[size]] * 2 if same else [_TYPES[source.dtype], _TYPES[target.dtype]]
        return {
            f"FROM_{i}": types[0],
            f"TO_{i}": types[1],
            f"ACROSS_{i}": int(self.across),
            f"LOADS_{i}": int(from_x == 1 or x == 1),
            f"SHIFTED_{i}": int(self.is_shifted),
            f"STORES_{i}": int((inner == 1 or count == 1) and whole % GRANULE == 0),
            f"CONJUGATE_{i}": int(self.conjugate),
        }

    def packed(self, axes: int) -> tuple[bytes, int]:
        """The structure ``Job`` of the kernel as bytes, for a batch with this number of axes, and how many thread
        blocks the job takes."""
        x, y = self.extents
        (from_x, from_y), (to_x, to_y) = self.steps(self.source), self.steps(self.target)
        outer, rows = (to_x, x) if self.across else (to_y, y)
        room = max(y if self.across else x, outer if self.own and rows > 1 else 0)
        lengths, from_next, to_next = zip(*[(1, 0, 0)] * (axes - len(self.batch)), *self.batch, strict=True)
        (low, high), (to_low, _) = self.reaches
        lanes, across, down = self.parts
        count = across * down * math.prod(lengths)
        blocks = -(-count // _WARPS)
        nbytes = (high - low + 1) * self.sizes[0]
        long = x, y, from_x, from_y, to_x, to_y, room, -low, -to_low, nbytes, *from_next, *to_next
        short = *lengths, across, down, count, lanes, blocks
        packed = struct.pack(f"<{len(long)}q{len(short)}I", *long, *short)
        return packed + bytes(-len(packed) % 8), blocks

    @cached_property
    def reaches(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The distances in elements from the first element of all matrices to the lowest and to the highest address,
        for the sources and for the targets."""
        return self._reach(self.source, 1), self._reach(self.target, 2)

    def _reach(self, matrix: Matrix, of_axis: int) -> tuple[int, int]:
        steps = [(matrix.rows - 1) * matrix.row, (matrix.columns - 1) * matrix.column]
        steps += [(axis[0] - 1) * axis[of_axis] for axis in self.batch]
        return sum([step for step in steps if step < 0]), sum([step for step in steps if step > 0])


def copy_of(order: Order, place: OrderedMatrix) -> MatrixCopy:
    """The copy of all matrices of an operand, which the kernel then reads; or of all matrices of the kernel's result,
    for the caller."""
    axes = [axis for axis in zip(order.batch, place.steps, place.used_steps, strict=True) if axis[1]]
    lengths, steps, used_steps = zip(*axes, strict=True) if axes else ((), (), ())
    if place is order.c:
        return MatrixCopy(place.used, place.original, False, tuple(merged_axes(lengths, used_steps, steps)))
    return MatrixCopy(place.original, place.used, True, tuple(merged_axes(lengths, steps, used_steps)))


def copy_steps(copies: Sequence[tuple[MatrixCopy, BufferPlace, BufferPlace]], memory_ratio: float) -> list[GpuStep]:
    """The launches of one or two copies, each with the places of the first source and target. Two copies share one
    launch if this takes less time on the GPU, whose memory bandwidth ``memory_ratio`` describes (``Card``)."""
    filled = [each for each in copies if each[0].elements]
    together, apart = _seconds([copy for copy, *_ in filled], memory_ratio) if len(filled) > 1 else (0, 0)
    some = [filled] if together <= apart else [[each] for each in filled]
    return [_step_of(each) for each in some if each]


def _step_of(copies: Sequence[tuple[MatrixCopy, BufferPlace, BufferPlace]]) -> GpuStep:
    """The launch that does all of these copies."""
    axes = max(1, *(len(copy.batch) for copy, *_ in copies))
    packed = [copy.packed(axes) for copy, *_ in copies]
    macros: dict[str, object] = {"JOBS": len(copies), "AXES": axes}
    places = list[BufferPlace]()
    for i, (copy, source, target) in enumerate(copies):
        macros |= copy.macros(i)
        for place, is_target, size in zip((source, target), (False, True), copy.sizes, strict=True):
            places.append(place.after(copy.reaches[is_target][0] * size))
    code, structure = pack_code("copy_matrices", **macros), b"".join(data for data, _ in packed)
    blocks = sum(each for _, each in packed)
    return GpuStep(KernelLaunch(code, "copy_matrices", (blocks, _WARPS * 32, 0), structure), tuple(places))


def copies_seconds(copies: Sequence[MatrixCopy], memory_ratio: float) -> float:
    """The predicted time of copies on a GPU whose memory bandwidth ``memory_ratio`` describes (``Card``)."""
    return min(_seconds(copies, memory_ratio)) if copies else 0


def _seconds(copies: Sequence[MatrixCopy], memory_ratio: float) -> tuple[float, float]:
    """The predicted times of copies in one launch, and in one launch for each. A copy that transposes needs so many
    registers that fewer warps fit, which also slows another copy in the same launch."""
    ratio = (1 + memory_ratio) / 2  # much of what is written stays in the cache until the product reads it
    moved = ratio * sum(copy.seconds for copy in copies)
    is_mixed = len({copy.across for copy in copies}) > 1
    return _LAUNCH_S + moved * (_MIXED if is_mixed else 1), _LAUNCH_S + moved + NEXT_LAUNCH_S * (len(copies) - 1)


#: Blocks of eight warps on a multiprocessor.
_BLOCKS_AT_ONCE = 8


def sum_step(
    sms: int, parts: int, batch: int, sums: str, target: Matrix, places: tuple[BufferPlace, BufferPlace]
) -> GpuStep:
    """The launch that adds the sums of ``parts`` of k in a fixed order, rounds the total once, and writes it to
    matrices with the layout ``target``.

    The sums have the dtype ``sums``, and the sums of one product of a batch follow one another in memory. ``places``
    are the places of the sums and of the target."""
    code = pack_code("add_parts", OUT=target.dtype.upper(), SUM=sums.upper())
    each, size = 16 // itemsize_of(sums), target.rows * target.columns
    follow = target.column == 1 and target.row == target.columns and (batch == 1 or target.next == size)
    if target.columns % each and (size % each or not follow):  # 16 bytes would be of two rows
        each = 1
    is_single = each * itemsize_of(sums) < 16
    across = target.row == 1 != target.column and not is_single
    # A warp has 32 times as many, or 16 rows of twice as many; and a block of eight warps has so many pieces of such.
    pieces = (
        -(-target.rows // 16) * -(-target.columns // (2 * each)) * batch if across else -(-size * batch // (32 * each))
    )
    of_block = 1 if parts > 4 else 2 if parts > 2 else 4
    is_many = is_single or pieces > of_block * _BLOCKS_AT_ONCE * sms
    entry = "add_single_parts" if is_single else f"add_{'many_' * is_many}parts{'_across' * across}"
    blocks = -(-pieces // (of_block * (4 if is_many else 1)))
    sizes = tuple(map(np.int64, (target.rows, target.columns, target.row, target.column, target.next)))
    launch = KernelLaunch(code, entry, (min(blocks, _MOST_BLOCKS), 256, 0), (*sizes, np.int32(parts), np.int32(batch)))
    return GpuStep(launch, places)


#: The rows of a square that a block mirrors.
_SQUARE = 64


def mirror_step(c: Matrix, batch: int, place: BufferPlace) -> GpuStep:
    """The launch that copies the elements below the diagonal of each matrix of a batch to the elements above it. ``c``
    is the layout of the matrices."""
    sides = -(-c.rows // _SQUARE)
    jobs = batch * sides * (sides + 1) // 2
    # Lanes follow each other in memory: of a symmetric matrix rows and columns may change places.
    row, column = (c.row, c.column) if abs(c.column) <= abs(c.row) else (c.column, c.row)
    sizes = tuple(map(np.int64, (row, column, c.next)))
    code = pack_code("mirror", ELEMENT=_BITS[itemsize_of(c.dtype)], SIDE=_SQUARE)
    size = min(jobs, _MOST_BLOCKS), 256, 0
    return GpuStep(KernelLaunch(code, "mirror", size, (*sizes, np.int32(c.rows), np.int32(batch))), (place,))


def mirror_seconds(c: Matrix, batch: int, memory_ratio: float) -> float:
    """The predicted time of the launch that mirrors: half of C is read, and half of C is written."""
    half = c.rows * c.columns * itemsize_of(c.dtype) * batch / 2
    return NEXT_LAUNCH_S + memory_ratio * (half / _READ_BYTES_S + half / _WRITE_BYTES_S)


def _moved_bytes(matrix: Matrix) -> int:
    """The bytes that a copy moves for each of its elements, counted in whole sectors."""
    size, strides = (
        itemsize_of(matrix.dtype),
        [abs(matrix.row)] * (matrix.rows > 1) + [abs(matrix.column)] * (matrix.columns > 1),
    )
    return max(size, min(_SECTOR, size * min(strides, default=1)))


def _direction(matrix: Matrix) -> bool:
    """Whether the elements of a column are closer to each other in memory than the elements of a row."""
    if 1 in (matrix.rows, matrix.columns):
        return matrix.columns == 1 and matrix.rows > 1
    return abs(matrix.row) < abs(matrix.column)


def _lanes(x: int, y: int, across: bool) -> int:
    """The logarithm of the number of lanes of a warp along x, for these numbers of threads along x and y."""
    most_x, most_y = ((n - 1).bit_length() for n in (x, y))
    if not across:
        return min(most_x, 5)
    return min(most_x, 5, max(2, 5 - most_y))


def pack_code(name: str, **macros: object) -> KernelCode:
    """The source ``name`` in the folder of kernels that copy, add, or apply an epilogue."""
    return KernelCode(PACKAGE / f"gpu/kernels/pack/{name}.cu", tuple(macros.items()))


# ---- the launch that applies an epilogue -----------------------------------------------------------------------------

RESULTS_OF_EPILOGUES = ("float32", "float64", "bfloat16", "float16")
#: Elements that a block finishes along x and y, its threads, and the most blocks of a launch.
_FINISH_TILE, _FINISH_THREADS, _MOST_FINISH_BLOCKS = (128, 8), 256, 1 << 16


def finish_steps(copy: MatrixCopy, form: FinishForm, places: Sequence[BufferPlace], *, swapped: bool) -> list[GpuStep]:
    """The launch that applies the epilogue to the sums in ``copy.source`` and writes ``copy.target``, for the whole
    batch. There is no launch if C has no elements.

    ``places`` are the places of the sums, C, the bias, the scales of rows and the scales of columns. With ``swapped``
    the sums and C are transposed."""
    source, target = (m.transposed if swapped else m for m in (copy.source, copy.target))
    count = math.prod(axis[0] for axis in copy.batch)
    if not copy.elements:
        return []
    x_is_columns = abs(target.column) <= abs(target.row) or target.rows == 1
    extents = (source.columns, source.rows)[:: 1 if x_is_columns else -1]
    strides = [(m.column, m.row)[:: 1 if x_is_columns else -1] for m in (source, target)]
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
        "ACROSS": int(x_is_columns),
        "AXES": len(axes),
    }
    lengths, from_next, to_next = zip(*axes, strict=True)
    # The fields of ``Finish`` in ``gpu/kernels/pack/finish.cu``, in its order.
    int64_fields = *strides[0], *strides[1], *from_next, *to_next, bias_step, form.scale_a or 0, form.scale_b or 0
    uint32_fields = *extents, *lengths, count, form.rows
    packed = struct.pack(
        f"<{len(int64_fields)}q2d{len(uint32_fields)}I", *int64_fields, form.alpha, form.beta, *uint32_fields
    )
    tiles = math.prod(-(-n // side) for n, side in zip(extents, _FINISH_TILE, strict=True)) * count
    size = min(tiles, _MOST_FINISH_BLOCKS), _FINISH_THREADS, 0
    structure = packed + bytes(-len(packed) % 8)
    return [GpuStep(KernelLaunch(pack_code("finish", **macros), "finish", size, structure), tuple(places))]


def finish_seconds(copy: MatrixCopy, form: FinishForm, memory_ratio: float) -> float:
    """The predicted time of the launch that applies the epilogue."""
    read, written = itemsize_of(copy.source.dtype), itemsize_of(copy.target.dtype)
    seconds_each = (read + written * (form.beta != 0)) / _READ_BYTES_S + written / _WRITE_BYTES_S
    return NEXT_LAUNCH_S + memory_ratio * copy.elements * seconds_each
