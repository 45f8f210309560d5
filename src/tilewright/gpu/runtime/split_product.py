"""Products of float32 by tensor cores of float16: each operand is split into two matrices, which a kernel multiplies.

``gpu/kernels/pack/split_matrices.cu`` splits the operands, and ``gpu/kernels/split_hopper.cu`` multiplies the parts
(``rounded_hopper.cu``, if there are only high parts). If the parts of a row or column do not represent it well enough,
``gpu/kernels/pack/multiply_flagged.cu`` computes the affected parts of C. The GPU itself finds the affected parts; the
host does not wait.

``split_bound`` is the error bound, which ``docs/error-bounds.md`` derives.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...host.cached_property import cached_property
from ...host.sources import PACKAGE
from ...kernels.cuda_kernel import CudaKernel, launched
from ...product.problem import itemsize_of
from .compilations import KernelCode, chosen_params
from .launch import BoxedOperand
from .layout import Matrix, row_major_matrix
from .memory import GRANULE
from .product import MOST
from .steps import OPERANDS, WORKSPACE, BufferPlace, C, GpuStep, KernelLaunch

# ---- how the parts lie in memory, and how accurate their product is --------------------------------------------------

#: Lines that a cluster splits, which have one excess.
LINES = 32
#: The most blocks of a cluster, and those of lines longer than the last number: more blocks hold more of them at once.
_MOST_PARTS, _MOST_OF_LONG, _LONG_LINES = 8, 16, 6144
#: Rows and columns of a part of C that is flagged or not.
FLAGGED = 64, 128
#: The matrices and both parts of their workspace begin at multiples of so many bytes.
_ALIGNMENT = 256
#: ``Operand`` in the source of the kernel that splits.
OPERAND = struct.Struct("<6q6i")
#: The largest of the excesses of a row of A and a column of B together that is ever allowed.
_MOST_EXCESS = 12
#: The same where numbers are split into two of TF32, so that nothing underflows: no product is below 2^(-28 - WIDEST). Their
#: sums are promoted after so many of k.
WIDEST, WIDE_STEP = 72, 32
#: Lines of A and B are counted in whole tiles of so many, by the number of planes.
_TILE = {1: 256, 2: 128}


@dataclass(frozen=True)
class Lines:
    """A matrix whose rows are the lines of an operand: the rows of A or the columns of B. For B, this matrix is the
    transpose of B."""

    matrix: Matrix

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.matrix.rows

    @property
    def k(self) -> int:
        """The number of elements of a row of A or a column of B."""
        return self.matrix.columns

    @cached_property
    def along(self) -> bool:
        """Whether the elements of a line are closer to each other in memory than elements of neighbouring lines. Arrays
        that are made from the lines store elements in the same order."""
        x = self.matrix
        return abs(x.column) <= abs(x.row) if min(x.rows, x.columns) > 1 else x.columns > 1

    @cached_property
    def is_whole(self) -> bool:
        """Whether 16 bytes of neighbouring elements can be read at once."""
        x = self.matrix
        inner, outer = (x.column, x.row) if self.along else (x.row, x.column)
        each = GRANULE // itemsize_of(x.dtype)
        return inner == 1 and x.aligned and outer % each == 0 and x.next % each == 0


def as_they_lie(a: Lines, b: Lines, c: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """A, B and C as arguments for a kernel that computes some parts of C from the original operands."""
    of_a, of_b = a.matrix, b.matrix.transposed
    return (
        of_a._replace(down=of_a.row == 1 != of_a.column),
        of_b._replace(down=of_b.row == 1 != of_b.column),
        c._replace(column=1),
    )


@dataclass(frozen=True)
class SplitOperand(Lines):
    """The rows of A or columns of B of ``matrices`` float32 matrices; a matrix that all products share counts once.
    ``planes`` is the number of float16 matrices that are made from each matrix: two for high and low parts, or one for
    high parts alone."""

    matrices: int = 1
    planes: int = 2

    @cached_property
    def pitch(self) -> int:
        """The distance in elements from one row of a plane to the next, which is a multiple of 64 bytes."""
        return -(-(self.k if self.along else self.lines) // 32) * 32

    @cached_property
    def plane(self) -> int:
        """The number of elements of a plane."""
        return self.pitch * (self.lines if self.along else self.k)

    @cached_property
    def groups(self) -> int:
        """The number of groups of 32 rows of A or columns of B; each group has one excess. The groups fill whole
        tiles."""
        tile = _TILE[self.planes]
        return -(-self.lines // tile) * tile // LINES

    @cached_property
    def words(self) -> int:
        """The number of 4-byte words for the exponents and excesses that are found for a matrix."""
        return self.groups * (LINES + 1)

    @property
    def own_bytes(self) -> int:
        """Bytes of the matrices themselves, without gaps, up to the address at which the parts may begin."""
        return -(-4 * self.lines * self.k * self.matrices // _ALIGNMENT) * _ALIGNMENT

    @cached_property
    def planes_bytes(self) -> int:
        """Bytes of the planes of all matrices."""
        return -(-2 * self.planes * self.plane * self.matrices // _ALIGNMENT) * _ALIGNMENT

    @cached_property
    def workspace_bytes(self) -> int:
        """Bytes of the planes, and of the facts that are found about the matrices."""
        return self.planes_bytes + -(-4 * self.words * self.matrices // _ALIGNMENT) * _ALIGNMENT

    @cached_property
    def blocks(self) -> int:
        """The number of thread blocks that share the work of splitting one row of A or one column of B."""
        return min(
            _MOST_OF_LONG if self.k > _LONG_LINES else _MOST_PARTS, 1 << max(0, (self.k // 128).bit_length() - 1)
        )

    def packed(self, parts: int) -> bytes:
        """The structure ``Operand`` of the kernel's source, for lines that are split by this number of blocks each."""
        part = -(-self.k // (parts * 128)) * 128
        sizes = self.lines, self.k, self.matrices, self.groups, part, self.groups * self.matrices * parts
        x = self.matrix
        return OPERAND.pack(x.row, x.column, x.next, self.pitch, self.plane, self.words, *sizes)

    def boxed(self, box: tuple[int, int]) -> BoxedOperand:
        """The planes as the copy engine sees them: for each matrix the high parts, then the low parts."""
        rows, columns = (self.lines, self.k) if self.along else (self.k, self.lines)
        return BoxedOperand("float16", rows, columns, self.planes * self.matrices, 2 * self.pitch, 2 * self.plane, box)


@dataclass(frozen=True)
class SplitProduct:
    """C = A·B for each product of a batch, in float32. With ``add`` the products are added to C, with one more
    rounding.

    With ``gram`` B is the transpose of A in the same memory, so only one operand is split. With ``triangle`` only tiles
    of the lower triangle of C are computed."""

    a: SplitOperand
    b: SplitOperand
    c: Matrix
    batch: int = 1
    add: bool = False
    gram: bool = False
    triangle: bool = False

    @property
    def operands(self) -> tuple[SplitOperand, ...]:
        """The operands that are split."""
        return (self.a,) if self.gram else (self.a, self.b)

    @property
    def workspace_bytes(self) -> int:
        """The bytes of the planes of the operands, and of the facts that are found about the operands."""
        return sum(x.workspace_bytes for x in self.operands)

    @property
    def tiles(self) -> int:
        """The number of parts of C that may be flagged."""
        rows, columns = FLAGGED
        return -(-self.a.lines // rows) * -(-self.b.lines // columns) * self.batch


def split_of_rows(m: int, n: int, k: int, planes: int = 2, add: bool = False) -> SplitProduct:
    """The split product of A[m×k] and B[k×n], which are row-major without gaps."""
    a, b, c = (row_major_matrix(*shape, "float32") for shape in ((m, k), (k, n), (m, n)))
    return SplitProduct(SplitOperand(a, planes=planes), SplitOperand(b.transposed, planes=planes), c, add=add)


def split_bound(k: int, steps: int, excess: int = 0) -> float:
    """The bound of |C - Ĉ| for each element, in units of 2^-24·|A||B|.

    ``excess`` is the sum of the excesses of a row of A and a column of B, which ``docs/error-bounds.md`` defines. After
    each ``steps`` steps of 64 elements of k, the sums of high parts are added to other accumulators in float32.

    >>> split_bound(4096, 2) < 150 < split_bound(4096, 2, 5) < 4096
    True
    """
    wide, promotions = 2.0**excess, -(-k // (64 * steps))
    represented = 4 + 8 * wide
    high = 4 * steps * (8 * wide + 2)
    cross = k / 8 * 20 * wide / 2048
    return 1.01 * (represented + high + cross + promotions + 1)


def wide_bound(k: int) -> float:
    """The same bound as ``split_bound`` for numbers that are split into two TF32 numbers, for a sum of excesses of at
    most ``WIDEST``.

    >>> wide_bound(128) < 90, wide_bound(4096) < 220
    (True, True)
    """
    represented, each, promotions = 8, 6, -(-k // WIDE_STEP)
    return 1.01 * (represented + 3 * WIDE_STEP / 8 * each + promotions)


def allowed_excess(k: int, steps: int) -> int:
    """The largest ``excess`` of ``split_bound`` with which the classical bound k·2^-24·|A||B| holds; -1 if it does not
    hold even without excess.

    >>> allowed_excess(64, 2), allowed_excess(128, 2), allowed_excess(4096, 2)
    (-1, 0, 5)
    """
    return max((t for t in range(_MOST_EXCESS) if split_bound(k, steps, t) <= k), default=-1)


# ---- the launches ----------------------------------------------------------------------------------------------------

_PACK = PACKAGE / "gpu" / "kernels" / "pack"
_SPLIT, _MULTIPLY_FLAGGED = _PACK / "split_matrices.cu", _PACK / "multiply_flagged.cu"
#: The files beside the kernel on which the bits of a product depend.
SOURCES = tuple(
    PACKAGE / "gpu" / "kernels" / name
    for name in [
        "pack/split_matrices.cu",
        "pack/multiply_flagged.cu",
        "split_hopper.cu",
        "flags.cuh",
        "simt.cuh",
        "mma_split.cuh",
        "mma_tiles.cuh",
        "powers.cuh",
        "wgmma.cuh",
        "hopper.cuh",
        "banded_tiles.cuh",
        "ring.cuh",
    ]
)
#: Threads of a block that splits.
_THREADS = 256
#: The most numbers of four that a thread holds: of a long k fewer, so that more blocks share a multiprocessor.
_MOST_HELD, _LONG, _HELD_OF_LONG = 24, 24576, 12
#: ``Call`` in the source of the kernel that multiplies.
_CALL = struct.Struct("<2q12i")
#: ``Flagged`` in the source of the kernel that multiplies what is flagged, and its parameters.
_FLAGGED = struct.Struct("<9q6i2q4i")
_FLAGGED_PARAMS = {
    "BM": FLAGGED[0], "BN": FLAGGED[1], "BK": WIDE_STEP, "WM": 64, "WN": 32, "TM": 8, "TN": 8, "STAGES": 2, "DEPTH": 3,
    "BLOCKS": 2, "GROUP": 8,
}  # fmt: skip


class PartsOfK(NamedTuple):
    """Pieces of k that are summed separately: the number of pieces, the steps of each piece, and the step that adds
    their float32 sums into C. The sums of the pieces follow one another in memory."""

    many: int
    steps: int
    add: GpuStep


def split_product_steps(
    sms: int,
    kernel: CudaKernel,
    params: Mapping[str, int],
    product: SplitProduct,
    pieces: PartsOfK | None = None,
) -> list[GpuStep]:
    """The steps of the product on a GPU with ``sms`` multiprocessors. All sizes are at least 1. The parts of the
    operands are in the workspace. With ``pieces``, k is cut, and the sums of the pieces may be in the workspace after
    the parts."""
    parts = BufferPlace(WORKSPACE), BufferPlace(WORKSPACE, 0 if product.gram else product.a.workspace_bytes)
    operands = zip(product.operands, OPERANDS, parts, strict=False)
    return [split_step(*operands), *parts_steps(sms, kernel, params, product, parts, pieces)]


def split_step(*operands: tuple[SplitOperand, BufferPlace, BufferPlace]) -> GpuStep:
    """The launch that splits one or two operands. Each argument is an operand, the place of its memory, and the place
    of its parts, which take ``workspace_bytes``."""
    two = operands[0], operands[-1]  # the kernel takes two: of a single one no block splits the second
    first = operands[0][0]
    held, blocks = _held(first), first.blocks * sum(x.groups * x.matrices for x, *_ in operands)
    macros: dict[str, object] = {"PARTS": first.blocks, "HELD": held, "PLANES": first.planes}
    for i, (x, *_) in enumerate(two):
        macros |= {f"ALONG_{i}": int(x.along), f"VECTOR_{i}": int(x.is_whole)}
    structure = b"".join(x.packed(first.blocks) for x, *_ in two)
    places = (place for x, at, parts in two for place in (at, parts, parts.after(x.planes_bytes)))
    code = KernelCode(_SPLIT, tuple(macros.items()))
    return GpuStep(
        KernelLaunch(code, "split_matrices", (blocks, _THREADS, held * _THREADS * 16), structure), tuple(places)
    )


def parts_steps(
    sms: int,
    kernel: CudaKernel,
    params: Mapping[str, int],
    product: SplitProduct,
    parts: tuple[BufferPlace, BufferPlace],
    pieces: PartsOfK | None = None,
) -> list[GpuStep]:
    """The steps of the product of operands that are already split into ``parts``. The operands themselves are still
    needed, to compute those tiles of C for which the split operands are not accurate enough."""
    values = kernel.checked(params)
    limit = allowed_excess(product.a.k, values["CHUNK"]) if product.a.planes > 1 else 0
    launch, flagged = _multiply(sms, kernel, product, values, limit, pieces), _flagged(product, limit)
    found = tuple(at.after(x.planes_bytes) for at, x in zip(parts, (product.a, product.b), strict=True))
    last = GpuStep(flagged, (*OPERANDS, *found))
    if pieces is None:
        return [GpuStep(launch, (*parts, BufferPlace(C), *found)), last]
    return [GpuStep(launch, (*parts, pieces.add.places[0], *found)), pieces.add, last]


def _held(operand: SplitOperand) -> int:
    """The number of groups of four numbers that a thread holds."""
    most = _MOST_HELD if operand.k < _LONG else _HELD_OF_LONG
    return min(most, -(-operand.k // (operand.blocks * 128)) * 128 * LINES // (4 * _THREADS))


def _multiply(
    sms: int,
    kernel: CudaKernel,
    product: SplitProduct,
    values: Mapping[str, int],
    limit: int,
    pieces: PartsOfK | None,
) -> KernelLaunch:
    a, b, c, (m, k), n = product.a, product.b, product.c, product.a.matrix[:2], product.b.lines
    count, steps = (1, -(-k // 64)) if pieces is None else pieces[:2]
    if pieces is not None:
        c = row_major_matrix(m, n, "float32", product.batch * count)
    pairs = not c.alignment % 8 and not (c.row % 2 or c.next % 2 or n % 2)
    macros = {
        "A_DOWN": int(not a.along),
        "B_ACROSS": int(not b.along),
        "STORE_PAIRS": int(pairs),
        "ADD": int(product.add),
        **({"TRIANGLE": 1} if product.triangle else {}),
    }
    launch = kernel.launch_with(values, m, n, k)
    blocks = kernel.triangle_blocks(values, m, k) if product.triangle else launch.blocks
    names = "a" if a.along else "a_down", "b_down" if b.along else "b"
    operands = tuple(x.boxed(kernel.box(name, 2, values)) for name, x in zip(names, (a, b), strict=True))
    sizes = m, n, k, product.batch, int(a.matrix.next != 0), int(b.matrix.next != 0)
    call = _CALL.pack(c.row, c.next, *sizes, a.groups, b.groups, limit, count, steps, 0)
    size = launched(blocks * product.batch * count, sms, values), launch.threads, launch.shared_bytes
    code = KernelCode(kernel, tuple(macros.items()), chosen_params(values))
    return KernelLaunch(code, kernel.entry, size, call, operands)


def _flagged(product: SplitProduct, limit: int) -> KernelLaunch:
    """The launch that computes the parts of C for which the excess is larger than ``limit``."""
    a, b, p = product.a, product.b, _FLAGGED_PARAMS
    rows, columns, steps = p["BM"], p["BN"], p["BK"]
    by_multiply_adds = p["STAGES"] * steps * (rows + 4 + columns + 4)
    sides = (max(side * (steps + 4), steps * (side + 8)) for side in (rows, columns))
    shared = 4 * max(by_multiply_adds, p["DEPTH"] * sum(sides))
    laid = of_a, of_b, of_c = as_they_lie(a, b, product.c)
    macros: dict[str, object] = {
        "A_DOWN": int(of_a.down),
        "B_ACROSS": int(not of_b.down),
        "A_VECTOR": of_a.vector_bytes,
        "B_VECTOR": of_b.vector_bytes,
        "C_VECTOR": of_c.vector_bytes,
        "ADD": int(product.add),
        **p,
    }
    nexts = (a.words if of_a.next else 0), (b.words if of_b.next else 0)
    strides = (number for x in laid for number in (x.row, x.column, x.next))
    sizes = a.lines, b.lines, a.k, product.batch, 1, MOST
    call = _FLAGGED.pack(*strides, *sizes, *nexts, a.groups, b.groups, limit, WIDEST)
    threads = p["BM"] // p["WM"] * (p["BN"] // p["WN"]) * 32
    code = KernelCode(_MULTIPLY_FLAGGED, tuple(macros.items()))
    return KernelLaunch(code, "multiply_flagged", (product.tiles, threads, shared), call)
