"""Products of float64 and complex128 on tensor cores of int8: the operands are converted to residues of integers, which
a kernel multiplies.

``gpu/kernels/pack/write_residues.cu`` computes the residues. ``residues_hopper.cu``, or on other GPUs
``residues_mma.cu``, multiplies the residues for each modulus. ``gpu/kernels/pack/reconstruct.cu`` computes C from the
residues of C. Parts of C for which residues would not keep the error bound are computed by
``gpu/kernels/pack/multiply_flagged_f64.cu`` instead. The GPU itself finds these flagged parts of C; the host does not
wait. ``product.residues`` has the moduli and the bounds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ...host.sources import PACKAGE
from ...kernels.cuda_kernel import CudaKernel, launched
from ...product.residues import CLASSICAL, REALS_PER_ELEMENT, check_factor, largest_norm
from .compilations import KernelCode, chosen_params
from .launch import BoxedOperand
from .layout import Matrix, row_major_matrix
from .product import MOST
from .split_product import Lines, as_they_lie
from .steps import OPERANDS, WORKSPACE, BufferPlace, GpuStep, KernelLaunch

# ---- how the residues lie in memory ----------------------------------------------------------------------------------

#: Rows and columns of a part of C that is flagged or not.
FLAGGED = 128, 64
#: Lines of real numbers that a block of the preparing kernels handles.
_LINES = 32
#: The number of lines is rounded up to a multiple of this.
_LINES_TILE = 256
#: Real numbers of a line that a block of ``find_norms`` reads, and elements of a line that one of ``write_residues`` rounds.
_NORM_STEP, _ROUND_STEP = 1024, 512
#: Parts of the workspace begin at multiples of so many bytes.
_ALIGNMENT = 256
#: ``Operand`` in ``gpu/kernels/pack/write_residues.cu``, and the bytes of a ``Line``.
_OPERAND, _LINE = struct.Struct("<5q8i"), 16


@dataclass(frozen=True)
class ResidueOperand(Lines):
    """A float64 or complex128 operand as a list of lines, which are the rows of A or the columns of B. Each element has
    one or two residues for each of the ``moduli``."""

    moduli: int

    @property
    def each(self) -> int:
        """The number of real numbers in an element: 1, or 2 for a complex element."""
        return REALS_PER_ELEMENT[self.matrix.dtype]

    @property
    def planes(self) -> int:
        """The number of residues of an element. Each residue is stored in a plane of its own."""
        return self.moduli * self.each

    @property
    def norm(self) -> float:
        """The largest 2-norm of a scaled row of A or column of B."""
        return largest_norm(self.moduli, self.matrix.dtype)

    @property
    def pitch(self) -> int:
        """The bytes from one row of a plane to the next. The number is a multiple of a cache line, because the copy
        engine reads a plane in whole cache lines."""
        return _up(self.k, 128)

    @property
    def sampled_one_in(self) -> int:
        """The sampling interval for the bound of |A||B|: one of this many groups of 128 steps of k is sampled."""
        return max(1, min(4, self.k // 2048))

    @property
    def sampled(self) -> int:
        """How many bytes of sampled magnitudes there are for each row of A or column of B."""
        return -(-self.k // (128 * self.sampled_one_in)) * 128

    @property
    def sample_offset(self) -> int:
        """Offset in bytes of the sampled magnitudes."""
        return _up(self.planes * self.lines * self.pitch, _ALIGNMENT)

    @property
    def norms_offset(self) -> int:
        """The offset in bytes of the norms; there is one norm for each part of k of each row of A or column of B."""
        return self.sample_offset + _up(self.lines * self.sampled, _ALIGNMENT)

    @property
    def lines_offset(self) -> int:
        """The offset in bytes of the ``Line`` structures, each of which holds the scale, bits and kind of a row of A or
        column of B."""
        return self.norms_offset + _up(8 * self.parts * self.padded, _ALIGNMENT)

    @property
    def parts(self) -> int:
        """The number of parts into which k is cut, so that separate thread blocks compute the norms of each part."""
        return -(-self.k * self.each // _NORM_STEP)

    @property
    def padded(self) -> int:
        """The number of rows of A or columns of B, rounded up to whole tiles."""
        return _up(self.lines, _LINES_TILE)

    @property
    def workspace_bytes(self) -> int:
        """The bytes of the planes, of the sample, and of the norms and scales of the rows of A or columns of B."""
        return self.lines_offset + _up(_LINE * self.padded, _ALIGNMENT)

    @property
    def finding_blocks(self) -> int:
        """The number of thread blocks that compute the norms of the rows of A or columns of B."""
        return -(-self.lines * self.each // _LINES) * self.parts

    @property
    def rounding_blocks(self) -> int:
        """The number of thread blocks that round the elements."""
        return -(-self.lines * self.each // _LINES) * -(-self.k // _ROUND_STEP)

    def packed(self) -> bytes:
        """The structure ``Operand`` of the kernel's source."""
        at = self.sample_offset, self.norms_offset, self.lines_offset
        sizes = self.lines, self.k, self.pitch, self.sampled, self.parts, self.padded
        blocks = self.finding_blocks, self.rounding_blocks
        return _OPERAND.pack(self.matrix.row, self.matrix.column, *at, *sizes, *blocks)


@dataclass(frozen=True)
class ResidueProduct:
    """C = A·B in float64 or complex128.

    With ``gram`` B is the transpose of A in the same memory, so its residues are computed once. With ``triangle`` only
    tiles of the lower triangle of C are computed."""

    a: ResidueOperand
    b: ResidueOperand
    c: Matrix
    gram: bool = False
    triangle: bool = False

    @property
    def operands(self) -> tuple[ResidueOperand, ...]:
        """The operands whose residues are computed."""
        return (self.a,) if self.gram else (self.a, self.b)

    def residues_bytes(self, width: int) -> int:
        """Bytes of the residues of C, in tiles of 128×``width``."""
        return self.a.planes * _up(self.a.lines, FLAGGED[0]) * _up(self.b.lines, width)

    @property
    def parts(self) -> int:
        """The number of parts of C, each of which may be flagged."""
        rows, columns = FLAGGED
        return -(-self.a.lines // rows) * -(-self.b.lines // columns)

    @property
    def workspace_bytes(self) -> int:
        """The bytes of the planes of both operands, of the facts that are found about the operands, of the residues of
        C, and of the flags."""
        prepared = sum(x.workspace_bytes for x in self.operands)
        return prepared + self.residues_bytes(_LINES_TILE) + 4 * self.parts


def residues_of_rows(m: int, n: int, k: int, moduli: int | None = None, dtype: str = "float64") -> ResidueProduct:
    """The product by residues of A[m×k] and B[k×n], which are row-major without gaps. By default the classical bound
    holds."""
    a, b, c = (row_major_matrix(*shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    used = CLASSICAL[dtype] if moduli is None else moduli
    return ResidueProduct(ResidueOperand(a, used), ResidueOperand(b.transposed, used), c)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# ---- the launches ----------------------------------------------------------------------------------------------------

_ENGINE = PACKAGE / "gpu" / "kernels"
#: Threads of a block that prepares or reconstructs; bytes of C's residues that such a block reads of each modulus.
_THREADS, _BLOCK_BYTES = 256, 4096
#: ``Call`` in the sources: of what prepares, beside the operands; of what multiplies; of what reconstructs; of what
#: multiplies flagged parts, and its parameters.
_PREPARE, _MULTIPLY, _RECONSTRUCT = struct.Struct("<2id"), struct.Struct("<4i2f"), struct.Struct("<q4i")
_FLAGGED = struct.Struct("<9q6i")
_TILES = {"BM": FLAGGED[0], "BN": FLAGGED[1], "BK": 16, "WM": 32, "MMA_K": 4, "GROUP": 8}
_FLAGGED_PARAMS = {
    "float64": _TILES | {"WN": 64, "STAGES": 3, "BLOCKS": 2},
    "complex128": _TILES | {"WN": 32, "STAGES": 2, "BLOCKS": 1},
}
#: Those before and after Hopper, where a block may have 99 KB of shared memory at most: half the tiles.
_FLAGGED_SMALLER = _FLAGGED_PARAMS | {"complex128": _FLAGGED_PARAMS["complex128"] | {"BM": FLAGGED[0] // 2}}


def residue_steps(sms: int, kernel: CudaKernel, params: Mapping[str, int], product: ResidueProduct) -> list[GpuStep]:
    """The steps of the product on a GPU with ``sms`` multiprocessors. All sizes are at least 1, and k is at most
    ``MOST_K``."""
    (at_a, at_b, at_c), a, b, values = OPERANDS, product.a, product.b, kernel.checked(params)
    of_a, of_b = BufferPlace(WORKSPACE), BufferPlace(WORKSPACE, 0 if product.gram else a.workspace_bytes)
    residues = of_b.after(b.workspace_bytes)
    flags = residues.after(product.residues_bytes(values["BN"]))
    lines = of_a.after(a.lines_offset), of_b.after(b.lines_offset)
    find, write = _prepare(product)
    bound, multiply = (_multiply(sms, kernel, product, values, bound=bound) for bound in (True, False))
    return [
        GpuStep(find, (at_a, of_a, at_b, of_b, flags)),
        GpuStep(write, (at_a, of_a, at_b, of_b)),
        GpuStep(bound, (of_a.after(a.sample_offset), of_b.after(b.sample_offset), residues, *lines, flags)),
        GpuStep(multiply, (of_a, of_b, residues, *lines, flags)),
        GpuStep(_reconstruct(product, values["BN"]), (residues, at_c, *lines, flags)),
        GpuStep(_flagged(kernel, product), (at_a, at_b, at_c, flags)),
    ]


def _prepare(product: ResidueProduct) -> tuple[KernelLaunch, KernelLaunch]:
    """The launches that find norms, and that write the residues."""
    a, b = product.a, product.b
    macros: dict[str, object] = {**_numbers(a)}
    for i, operand in enumerate((a, b)):
        macros |= {f"ALONG_{i}": int(operand.along), f"VECTOR_{i}": int(operand.is_whole)}
    code = KernelCode(_ENGINE / "pack" / "write_residues.cu", tuple(macros.items()))
    call = a.packed() + b.packed() + _PREPARE.pack(a.sampled_one_in, product.parts, a.norm**2)
    finding, rounding = (
        sum(blocks) for blocks in zip(*((x.finding_blocks, x.rounding_blocks) for x in product.operands), strict=True)
    )
    return (
        KernelLaunch(code, "find_norms", (finding, _THREADS, 0), call),
        KernelLaunch(code, "write_residues", (rounding, _THREADS, 0), call),
    )


def _multiply(
    sms: int, kernel: CudaKernel, product: ResidueProduct, values: Mapping[str, int], *, bound: bool
) -> KernelLaunch:
    """The launch that multiplies residues, or that finds the lower ``bound`` of |A||B|."""
    a, b = product.a, product.b
    planes, k = (1, a.sampled) if bound else (a.planes, a.k)
    launch = kernel.launch_with(values, a.lines, b.lines, k)
    operands = ((name, x) for name, x in zip(("a", "b_down"), (a, b), strict=True) if name in kernel.boxes)
    maps = tuple(_boxed(x, planes, kernel.box(name, 1, values)) for name, x in operands)
    factor = check_factor(a.k, a.moduli, a.matrix.dtype)
    call = _MULTIPLY.pack(a.lines, b.lines, k, planes, factor, a.k * a.each / 2)
    blocks = (kernel.triangle_blocks(values, a.lines, k) if product.triangle else launch.blocks) * planes
    blocks = launched(blocks, sms, values) if kernel.persistent else blocks
    macros = (*_numbers(a).items(), ("BOUND", int(bound)), *_of_triangle(product))
    code = KernelCode(kernel, macros, chosen_params(values))
    return KernelLaunch(code, kernel.entry, (blocks, launch.threads, launch.shared_bytes), call, maps)


def _numbers(operand: ResidueOperand) -> dict[str, int]:
    """The macros that say which numbers are multiplied; there is no such macro for float64."""
    return {"MODULI": operand.moduli} | ({"COMPLEX": 1} if operand.each > 1 else {})


def _of_triangle(product: ResidueProduct) -> tuple[tuple[str, int], ...]:
    """The macro with which the kernels skip the elements above the diagonal of C."""
    return (("TRIANGLE", 1),) if product.triangle else ()


def _boxed(operand: ResidueOperand, planes: int, box: tuple[int, int]) -> BoxedOperand:
    """The planes of residues, or the plane of the sample, as the copy engine sees them."""
    k, pitch = (operand.k, operand.pitch) if planes > 1 else (operand.sampled, operand.sampled)
    return BoxedOperand("int8", operand.lines, k, planes, pitch, operand.lines * pitch, box)


def _reconstruct(product: ResidueProduct, width: int) -> KernelLaunch:
    (m, n), c = (product.a.lines, product.b.lines), product.c
    each = product.a.each
    pairs = c.aligned and c.row * each % 2 == 0 and n * each % 2 == 0
    macros = (*_numbers(product.a).items(), ("WIDTH", width), ("STORE_PAIRS", int(pairs)), *_of_triangle(product))
    macros += (("GRAM", 1),) if product.gram else ()
    down, across = -(-m // FLAGGED[0]), -(-n // width)
    blocks = down * across * FLAGGED[0] * width * each // _BLOCK_BYTES
    call = _RECONSTRUCT.pack(c.row, m, n, down, across)
    code = KernelCode(_ENGINE / "pack" / "reconstruct.cu", macros)
    return KernelLaunch(code, "reconstruct", (blocks, _THREADS, 0), call)


def _flagged(kernel: CudaKernel, product: ResidueProduct) -> KernelLaunch:
    """The launch that computes the flagged parts of C."""
    a, b, dtype = product.a, product.b, product.c.dtype
    laid = of_a, of_b, of_c = as_they_lie(a, b, product.c)
    p = (_FLAGGED_PARAMS if kernel.boxes else _FLAGGED_SMALLER)[dtype]
    macros: dict[str, object] = {
        **({"COMPLEX": 1} if a.each > 1 else {}),
        "TYPE": dtype.upper(),
        "OUT": dtype.upper(),
        "A_DOWN": int(of_a.down),
        "B_ACROSS": int(not of_b.down),
        "A_VECTOR": of_a.vector_bytes,
        "B_VECTOR": of_b.vector_bytes,
        "C_VECTOR": of_c.vector_bytes,
        **p,
    }
    shared = p["STAGES"] * p["BK"] * (p["BM"] + p["BN"] + 4 * a.each) * 8 * a.each
    strides = (number for x in laid for number in (x.row, x.column, 0))
    call = _FLAGGED.pack(*strides, a.lines, b.lines, a.k, 1, 1, MOST)
    blocks = -(-a.lines // p["BM"]) * -(-b.lines // p["BN"])
    threads = p["BM"] // p["WM"] * (p["BN"] // p["WN"]) * 32
    code = KernelCode(_ENGINE / "pack" / "multiply_flagged_f64.cu", tuple(macros.items()))
    return KernelLaunch(code, "multiply_flagged_f64", (blocks, threads, shared), call)
