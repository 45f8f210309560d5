"""Products of float32 by tensor cores of float16: each operand is split into two matrices, which a kernel multiplies.

``engine/cuda/pack/split_matrices.cu`` splits, ``engine/cuda/split_hopper.cu`` multiplies, and where the parts of a line do
not represent it well enough, ``engine/cuda/pack/multiply_flagged.cu`` multiplies again. The GPU finds out where; the host
does not wait. ``split_bound`` is the bound of the error, which ``docs/accuracy.md`` derives.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...host.sources import PACKAGE
from ...kernels.cuda_kernel import CudaKernel
from .boxes import BoxedLauncher, BoxedOperand
from .device import Device
from .memory import GRANULE
from .nvrtc import Compiled, compile_file
from .product import MOST, compiled_once
from .strided_product import Strides, vector_bytes

_PACK = PACKAGE / "engine" / "cuda" / "pack"
#: Lines that a cluster splits, which have one excess; threads of a block; the most blocks of a cluster.
_LINES, _THREADS, _MOST_PARTS = 32, 256, 8
#: The most numbers of four that a thread holds: of a long k fewer, so that more blocks share a multiprocessor.
_MOST_HELD, _LONG, _HELD_OF_LONG = 24, 12288, 12
#: Both parts of the workspace of an operand begin at multiples of so many bytes.
_ALIGNMENT = 256
#: ``Operand`` and ``Call`` in the source of the kernel that splits, and ``Call`` in that of the one that multiplies.
_OPERAND, _CALL = struct.Struct("<6q6i"), struct.Struct("<4q6i")
#: ``Flagged`` in the source of the kernel that multiplies again, and its parameters: many tiles where few lines are flagged.
_FLAGGED = struct.Struct("<9q6i2q2i")
_FLAGGED_PARAMS = {
    "BM": 64, "BN": 128, "BK": 16, "WM": 32, "WN": 64, "TM": 8, "TN": 8, "STAGES": 3, "BLOCKS": 3, "GROUP": 8,
}  # fmt: skip
#: The largest of the excesses of a row of A and a column of B together that is ever allowed.
_MOST_EXCESS = 12
#: Lines of A and B are counted in whole tiles of so many.
_TILE = 128

#: ``multiply(a, b, c, workspace, stream)``: addresses, and the handle of a stream.
SplitLaunches = Callable[[int, int, int, int, int], None]


@dataclass(frozen=True)
class SplitOperand:
    """The rows of A or the columns of B, called lines, of ``k`` elements each: elements from one line to the next, from one
    of k to the next, and from one of ``matrices`` to the next, or 0 if all products have the same. ``alignment``: bytes of
    which the address and ``next`` are multiples, at most 16."""

    lines: int
    k: int
    line: int
    step: int
    next: int = 0
    matrices: int = 1
    alignment: int = GRANULE

    @property
    def along(self) -> bool:
        """Whether elements of a line follow each other in the planes, as in memory, rather than those of neighbouring
        lines."""
        return abs(self.step) <= abs(self.line) if min(self.lines, self.k) > 1 else self.k > 1

    @property
    def is_whole(self) -> bool:
        """Whether four neighbours can be read at once."""
        inner, outer = (self.step, self.line) if self.along else (self.line, self.step)
        return inner == 1 and self.alignment == GRANULE and outer % 4 == 0 and self.next % 4 == 0

    @property
    def pitch(self) -> int:
        """Elements from one row of a plane to the next: a multiple of 64 bytes."""
        return -(-(self.k if self.along else self.lines) // 32) * 32

    @property
    def plane(self) -> int:
        """Elements of a plane."""
        return self.pitch * (self.lines if self.along else self.k)

    @property
    def groups(self) -> int:
        """Groups of 32 lines, each of which has one excess; there are whole tiles of them."""
        return -(-self.lines // _TILE) * _TILE // _LINES

    @property
    def words(self) -> int:
        """Words of four bytes of what is found of a matrix: exponents and excesses."""
        return self.groups * (_LINES + 1)

    @property
    def planes_bytes(self) -> int:
        """Bytes of the planes of all matrices."""
        return -(-4 * self.plane * self.matrices // _ALIGNMENT) * _ALIGNMENT

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the planes, and of what is found."""
        return self.planes_bytes + -(-4 * self.words * self.matrices // _ALIGNMENT) * _ALIGNMENT

    def packed(self, parts: int) -> bytes:
        """``Operand`` in the source of the kernel, if each line is split by so many blocks."""
        part = -(-self.k // (parts * 128)) * 128
        sizes = self.lines, self.k, self.matrices, self.groups, part, self.groups * self.matrices * parts
        return _OPERAND.pack(self.line, self.step, self.next, self.pitch, self.plane, self.words, *sizes)

    def boxed(self, box: tuple[int, int]) -> BoxedOperand:
        """Its planes as the copy engine sees them: of each matrix the high parts, then the low ones."""
        rows, columns = (self.lines, self.k) if self.along else (self.k, self.lines)
        return BoxedOperand("float16", rows, columns, 2 * self.matrices, 2 * self.pitch, 2 * self.plane, box)


@dataclass(frozen=True)
class SplitProduct:
    """C[m×n] = A[m×k]·B[k×n] for each product of a batch, in float32. ``row_c`` and ``next_c``: elements from one row of C
    to the next, and from one C to the next. ``alignment``: bytes of which the address of C is a multiple, at most 16."""

    a: SplitOperand
    b: SplitOperand
    row_c: int
    next_c: int
    batch: int
    alignment: int = GRANULE

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the planes of both operands, and of what is found of them."""
        return self.a.workspace_bytes + self.b.workspace_bytes

    @property
    def tiles(self) -> int:
        """Tiles that may have to be multiplied again."""
        return -(-self.a.lines // _FLAGGED_PARAMS["BM"]) * -(-self.b.lines // _FLAGGED_PARAMS["BN"]) * self.batch

    @property
    def found(self) -> tuple[int, int]:
        """The bytes of the workspace where that of A and of B begins."""
        return self.a.planes_bytes, self.a.workspace_bytes + self.b.planes_bytes


def split_bound(k: int, steps: int, excess: int = 0) -> float:
    """The bound of |C - Ĉ| in units of 2^-24·|A||B|, componentwise, where the excesses of a row of A and a column of B are
    ``excess`` together, and sums of high parts are promoted after ``steps`` steps of 64 of k.

    >>> split_bound(4096, 2) < 150 < split_bound(4096, 2, 5) < 4096
    True
    """
    wide, promotions = 2.0**excess, -(-k // (64 * steps))
    represented = 4 + 8 * wide
    high = 4 * steps * (8 * wide + 2)
    cross = k / 8 * 20 * wide / 2048
    return 1.01 * (represented + high + cross + promotions + 1)


def allowed_excess(k: int, steps: int) -> int:
    """The largest excess with which the classical bound k·2^-24·|A||B| holds; -1 if it does not even without.

    >>> allowed_excess(64, 2), allowed_excess(128, 2), allowed_excess(4096, 2)
    (-1, 0, 5)
    """
    return max((t for t in range(_MOST_EXCESS) if split_bound(k, steps, t) <= k), default=-1)


def prepare_split_product(
    device: Device, kernel: CudaKernel, product: SplitProduct, params: Mapping[str, int]
) -> SplitLaunches:
    """The product on ``device``: compiled and loaded now. Sizes are at least 1. The GPU must be the thread's current one,
    here and at each call."""
    a, b, values = product.a, product.b, kernel.checked(params)
    split = _split(device, a, b)
    multiply = _multiply(device, kernel, product, values)
    again = _again(device, product, allowed_excess(a.k, values["CHUNK"]))
    to_b, (found_a, found_b) = a.workspace_bytes, product.found

    def run(at_a: int, at_b: int, c: int, workspace: int, stream: int) -> None:
        planes_a, planes_b, of_a, of_b = (workspace + each for each in (0, to_b, found_a, found_b))
        split(stream, (), (at_a, planes_a, of_a, at_b, planes_b, of_b))
        multiply(stream, (planes_a, planes_b), (c, of_a, of_b))
        again(stream, (), (at_a, at_b, c, of_a + 4 * _LINES * a.groups, of_b + 4 * _LINES * b.groups))

    return run


def _split(device: Device, a: SplitOperand, b: SplitOperand) -> BoxedLauncher:
    parts = min(_MOST_PARTS, 1 << max(0, (a.k // 128).bit_length() - 1))
    most = _MOST_HELD if a.k < _LONG else _HELD_OF_LONG
    held = min(most, -(-a.k // (parts * 128)) * 128 * _LINES // (4 * _THREADS))
    macros: dict[str, object] = {"PARTS": parts, "HELD": held}
    for i, operand in enumerate((a, b)):
        macros |= {f"ALONG_{i}": int(operand.along), f"VECTOR_{i}": int(operand.is_whole)}
    compiled = _compiled("split_matrices", device.arch, **macros)
    blocks = (a.groups * a.matrices + b.groups * b.matrices) * parts
    size = blocks, _THREADS, held * _THREADS * 16
    return device.boxed_launcher(compiled, "split_matrices", size, (), a.packed(parts) + b.packed(parts))


def _multiply(device: Device, kernel: CudaKernel, product: SplitProduct, values: Mapping[str, int]) -> BoxedLauncher:
    a, b = product.a, product.b
    pairs = not product.alignment % 8 and not (product.row_c % 2 or product.next_c % 2 or b.lines % 2)
    given = {"A_DOWN": int(not a.along), "B_ACROSS": int(not b.along), "STORE_PAIRS": int(pairs)}
    compiled = compiled_once(kernel, device.arch, tuple(sorted(values.items())), tuple(given.items()))
    launch = kernel.launch(a.lines, b.lines, a.k, **values)
    names = "a" if a.along else "a_down", "b_down" if b.along else "b"
    operands = [x.boxed(kernel.box(name, 2, values)) for name, x in zip(names, (a, b), strict=True)]
    sizes = a.lines, b.lines, a.k, product.batch, int(a.next != 0), int(b.next != 0)
    call = _CALL.pack(product.row_c, product.next_c, a.words, b.words, *sizes)
    size = (
        min(launch.blocks * product.batch, device.sms // values["CLUSTER"] * values["CLUSTER"]),
        launch.threads,
        launch.shared_bytes,
    )
    return device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, operands, call)


def _again(device: Device, product: SplitProduct, limit: int) -> BoxedLauncher:
    """The launch that multiplies again where the excess is larger than ``limit``."""
    a, b, p = product.a, product.b, _FLAGGED_PARAMS
    m, n, k = a.lines, b.lines, a.k
    of_a = Strides(a.line, a.step, a.next, a.line == 1 and a.step != 1, a.alignment)
    of_b = Strides(b.step, b.line, b.next, b.step == 1 and b.line != 1, b.alignment)
    of_c = Strides(product.row_c, 1, product.next_c, alignment=product.alignment)
    macros: dict[str, object] = {
        "A_DOWN": int(of_a.down),
        "B_ACROSS": int(not of_b.down),
        "A_VECTOR": vector_bytes(of_a, "float32", (m, k)),
        "B_VECTOR": vector_bytes(of_b, "float32", (k, n)),
        "C_VECTOR": vector_bytes(of_c, "float32", (m, n)),
    }
    compiled = _compiled("multiply_flagged", device.arch, **macros, **p)
    shared = p["STAGES"] * p["BK"] * (p["BM"] + 4 + p["BN"] + 4) * 4
    nexts = (a.words if a.next else 0), (b.words if b.next else 0)
    call = _FLAGGED.pack(*of_a[:3], *of_b[:3], *of_c[:3], m, n, k, product.batch, 1, MOST, *nexts, limit, 0)
    threads = p["BM"] // p["WM"] * (p["BN"] // p["WN"]) * 32
    return device.boxed_launcher(compiled, "multiply_flagged", (product.tiles, threads, shared), (), call)


@functools.cache
def _compiled(name: str, arch: str, **macros: object) -> Compiled:
    return compile_file(_PACK / f"{name}.cu", arch=arch, defines=macros)
