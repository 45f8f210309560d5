"""Products of float32 by tensor cores of float16: each operand is split into two matrices, which a kernel multiplies.

``gpu/kernels/pack/split_matrices.cu`` splits, ``gpu/kernels/split_hopper.cu`` multiplies (``rounded_hopper.cu`` where there
are high parts alone), and where the parts of a line do not represent it well enough,
``gpu/kernels/pack/multiply_flagged.cu`` multiplies in its place. The GPU finds out where; the host does not wait.
``split_operand`` says how the parts lie.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from ...host.sources import PACKAGE
from ...kernels.cuda_kernel import CudaKernel, launched
from .compilations import KernelCode, chosen_params
from .layout import row_major_matrix
from .product import MOST
from .split_operand import FLAGGED, LINES, WIDE_STEP, WIDEST, SplitOperand, SplitProduct, allowed_excess, as_they_lie
from .steps import OPERANDS, WORKSPACE, BufferPlace, C, GpuStep, KernelLaunch

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
    """Pieces of k whose sums are computed apart: how many there are, the steps of each, and the step that adds the sums (of
    float32, one C after the other) into C."""

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
    """The product on a GPU with so many multiprocessors. Sizes are at least 1. The parts of the operands are in the
    workspace; with ``pieces`` of k their sums may follow."""
    parts = BufferPlace(WORKSPACE), BufferPlace(WORKSPACE, product.a.workspace_bytes)
    operands = zip((product.a, product.b), OPERANDS, parts, strict=False)
    return [split_step(*operands), *parts_steps(sms, kernel, params, product, parts, pieces)]


def split_step(*operands: tuple[SplitOperand, BufferPlace, BufferPlace]) -> GpuStep:
    """The launch that splits one operand or two, each with its place and that of its parts, which take its
    ``workspace_bytes``."""
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
    """The product of operands whose ``parts`` are known. The operands themselves are needed too, where their parts do not
    represent them well enough."""
    values = kernel.checked(params)
    limit = allowed_excess(product.a.k, values["CHUNK"]) if product.a.planes > 1 else 0
    launch, flagged = _multiply(sms, kernel, product, values, limit, pieces), _flagged(product, limit)
    found = tuple(at.after(x.planes_bytes) for at, x in zip(parts, (product.a, product.b), strict=True))
    last = GpuStep(flagged, (*OPERANDS, *found))
    if pieces is None:
        return [GpuStep(launch, (*parts, BufferPlace(C), *found)), last]
    return [GpuStep(launch, (*parts, pieces.add.places[0], *found)), pieces.add, last]


def _held(operand: SplitOperand) -> int:
    """Numbers of four that a thread holds."""
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
    }
    launch = kernel.launch_with(values, m, n, k)
    names = "a" if a.along else "a_down", "b_down" if b.along else "b"
    operands = tuple(x.boxed(kernel.box(name, 2, values)) for name, x in zip(names, (a, b), strict=True))
    sizes = m, n, k, product.batch, int(a.matrix.next != 0), int(b.matrix.next != 0)
    call = _CALL.pack(c.row, c.next, *sizes, a.groups, b.groups, limit, count, steps, 0)
    size = launched(launch.blocks * product.batch * count, sms, values), launch.threads, launch.shared_bytes
    code = KernelCode(kernel, tuple(macros.items()), chosen_params(values))
    return KernelLaunch(code, kernel.entry, size, call, operands)


def _flagged(product: SplitProduct, limit: int) -> KernelLaunch:
    """The launch that multiplies where the excess is larger than ``limit``."""
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
