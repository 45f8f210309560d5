"""Products of float32 by tensor cores of float16: each operand is split into two matrices, which a kernel multiplies.

``engine/cuda/pack/split_matrices.cu`` splits, ``engine/cuda/split_hopper.cu`` multiplies (``rounded_hopper.cu`` where there
are high parts alone), and where the parts of a line do not represent it well enough,
``engine/cuda/pack/multiply_flagged.cu`` multiplies in its place. The GPU finds out where; the host does not wait.
``split_operand`` says how the parts lie.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple

from ...host.sources import PACKAGE
from ...kernels.cuda_kernel import CudaKernel, launched
from .archive import engine_file, engine_kernel
from .boxes import BoxedLauncher
from .compilations import Compilations
from .device import Device
from .memory import GRANULE
from .nvrtc import Compiled
from .product import MOST
from .split_operand import FLAGGED, LINES, WIDE_STEP, WIDEST, SplitOperand, SplitProduct, allowed_excess
from .strided_product import Strides, vector_bytes

_PACK = PACKAGE / "engine" / "cuda" / "pack"
#: The files beside the kernel on which the bits of a product depend.
SOURCES = tuple(
    PACKAGE / "engine" / "cuda" / name
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

#: ``multiply(a, b, c, workspace, stream)``: addresses, and the handle of a stream.
SplitLaunches = Callable[[int, int, int, int, int], None]
#: ``multiply(a, b, c, parts_of_a, parts_of_b, stream)``: the same where the operands were split before; where there are
#: pieces of k, the address of their sums follows.
PartsLaunches = Callable[..., None]

_compilations = Compilations()


class PartsOfK(NamedTuple):
    """Pieces of k whose sums are computed apart: how many there are, the steps of each, and what adds the sums (of float32,
    one C after the other) into C, for their address, that of C, and a stream."""

    many: int
    steps: int
    add: Callable[[int, int, int], None]


def prepare_split_product(
    device: Device, kernel: CudaKernel, product: SplitProduct, params: Mapping[str, int], pieces: PartsOfK | None = None
) -> SplitLaunches:
    """The product on ``device``: compiled and loaded now. Sizes are at least 1. The GPU must be the thread's current one,
    here and at each call. With ``pieces`` of k their sums follow the parts of the operands in the workspace."""
    a, b = product.a, product.b
    split, multiply = _split(device, a, b), prepare_product_of_parts(device, kernel, product, params, pieces)

    def run(at_a: int, at_b: int, c: int, workspace: int, stream: int) -> None:
        parts_a, parts_b = workspace, workspace + a.workspace_bytes
        split(stream, (), (at_a, parts_a, parts_a + a.planes_bytes, at_b, parts_b, parts_b + b.planes_bytes))
        multiply(at_a, at_b, c, parts_a, parts_b, stream, workspace + product.workspace_bytes)

    return run


def prepare_split(device: Device, operand: SplitOperand) -> Callable[[int, int, int], None]:
    """``split(x, parts, stream)``: writes the parts of one operand, which take its ``workspace_bytes``. Compiled and loaded
    now; the GPU must be the thread's current one, here and at each call."""
    launch = _split(device, operand)

    def run(x: int, parts: int, stream: int) -> None:
        each = x, parts, parts + operand.planes_bytes
        launch(stream, (), (*each, *each))

    return run


def prepare_product_of_parts(
    device: Device, kernel: CudaKernel, product: SplitProduct, params: Mapping[str, int], pieces: PartsOfK | None = None
) -> PartsLaunches:
    """The product of operands that were split before; compiled and loaded now. The operands themselves are needed too, where
    their parts do not represent them well enough. The GPU must be the thread's current one, here and at each call. With
    ``pieces`` of k, a call has one more argument: where their sums are."""
    a, b, values = product.a, product.b, kernel.checked(params)
    limit = allowed_excess(a.k, values["CHUNK"]) if a.planes > 1 else 0
    multiply = _multiply(device, kernel, product, values, limit, pieces)
    flagged = _flagged(device, product, limit)

    def run(at_a: int, at_b: int, c: int, parts_a: int, parts_b: int, stream: int, sums: int = 0) -> None:
        of_a, of_b = parts_a + a.planes_bytes, parts_b + b.planes_bytes
        multiply(stream, (parts_a, parts_b), (c if pieces is None else sums, of_a, of_b))
        if pieces is not None:
            pieces.add(sums, c, stream)
        flagged(stream, (), (at_a, at_b, c, of_a, of_b))

    return run


def compile_parts_ahead(device: Device, kernel: CudaKernel, product: SplitProduct, params: Mapping[str, int]) -> None:
    """Begin to compile what ``prepare_split`` and ``prepare_product_of_parts`` need, each kernel on a thread of its own,
    unless this has begun before. They wait for it, and raise its error."""
    _split_code(device.arch, product.a)
    _split_code(device.arch, product.b)
    _multiply_code(device.arch, kernel, product, kernel.checked(params))
    _flagged_code(device.arch, product)


def _split(device: Device, *operands: SplitOperand) -> BoxedLauncher:
    """The launch that splits one operand or two."""
    parts = operands[0].blocks
    compiled = _split_code(device.arch, *operands).result()
    blocks = sum(x.groups * x.matrices for x in operands) * parts
    size = blocks, _THREADS, _held(operands[0]) * _THREADS * 16
    return device.boxed_launcher(
        compiled, "split_matrices", size, (), b"".join(x.packed(parts) for x in _two(operands))
    )


def _split_code(arch: str, *operands: SplitOperand) -> Future[Compiled]:
    macros: dict[str, object] = {
        "PARTS": operands[0].blocks,
        "HELD": _held(operands[0]),
        "PLANES": operands[0].planes,
    }
    for i, operand in enumerate(_two(operands)):
        macros |= {f"ALONG_{i}": int(operand.along), f"VECTOR_{i}": int(operand.is_whole)}
    return _compilation("split_matrices", arch, **macros)


def _two(operands: tuple[SplitOperand, ...]) -> tuple[SplitOperand, SplitOperand]:
    """The kernel takes two: of a single one no block splits the second."""
    return operands[0], operands[-1]


def _held(operand: SplitOperand) -> int:
    """Numbers of four that a thread holds."""
    most = _MOST_HELD if operand.k < _LONG else _HELD_OF_LONG
    return min(most, -(-operand.k // (operand.blocks * 128)) * 128 * LINES // (4 * _THREADS))


def _multiply(
    device: Device,
    kernel: CudaKernel,
    product: SplitProduct,
    values: Mapping[str, int],
    limit: int,
    pieces: PartsOfK | None,
) -> BoxedLauncher:
    a, b = product.a, product.b
    count, steps = (1, -(-a.k // 64)) if pieces is None else pieces[:2]
    if pieces is not None:
        elements = a.lines * b.lines
        product = replace(product, row_c=b.lines, next_c=elements, alignment=math.gcd(GRANULE, 4 * elements))
    compiled = _multiply_code(device.arch, kernel, product, values).result()
    launch = kernel.launch(a.lines, b.lines, a.k, **values)
    names = "a" if a.along else "a_down", "b_down" if b.along else "b"
    operands = [x.boxed(kernel.box(name, 2, values)) for name, x in zip(names, (a, b), strict=True)]
    sizes = a.lines, b.lines, a.k, product.batch, int(a.next != 0), int(b.next != 0)
    call = _CALL.pack(product.row_c, product.next_c, *sizes, a.groups, b.groups, limit, count, steps, 0)
    size = (
        launched(launch.blocks * product.batch * count, device.sms, values),
        launch.threads,
        launch.shared_bytes,
    )
    return device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, operands, call)


def _multiply_code(arch: str, kernel: CudaKernel, product: SplitProduct, values: Mapping[str, int]) -> Future[Compiled]:
    a, b = product.a, product.b
    pairs = not product.alignment % 8 and not (product.row_c % 2 or product.next_c % 2 or b.lines % 2)
    given = {
        "A_DOWN": int(not a.along),
        "B_ACROSS": int(not b.along),
        "STORE_PAIRS": int(pairs),
        "ADD": int(product.add),
    }
    key = kernel, arch, *sorted(values.items()), *given.items()
    return _compilations.begin(key, functools.partial(engine_kernel, kernel, values, arch, given))


def _flagged(device: Device, product: SplitProduct, limit: int) -> BoxedLauncher:
    """The launch that multiplies where the excess is larger than ``limit``."""
    a, b, p = product.a, product.b, _FLAGGED_PARAMS
    compiled = _flagged_code(device.arch, product).result()
    rows, columns, steps = p["BM"], p["BN"], p["BK"]
    by_multiply_adds = p["STAGES"] * steps * (rows + 4 + columns + 4)
    sides = (max(side * (steps + 4), steps * (side + 8)) for side in (rows, columns))
    shared = 4 * max(by_multiply_adds, p["DEPTH"] * sum(sides))
    nexts = (a.words if a.next else 0), (b.words if b.next else 0)
    strides = (number for laid in _strides(product) for number in laid[:3])
    sizes = a.lines, b.lines, a.k, product.batch, 1, MOST
    call = _FLAGGED.pack(*strides, *sizes, *nexts, a.groups, b.groups, limit, WIDEST)
    threads = p["BM"] // p["WM"] * (p["BN"] // p["WN"]) * 32
    return device.boxed_launcher(compiled, "multiply_flagged", (product.tiles, threads, shared), (), call)


def _flagged_code(arch: str, product: SplitProduct) -> Future[Compiled]:
    of_a, of_b, of_c = _strides(product)
    m, n, k = product.a.lines, product.b.lines, product.a.k
    macros: dict[str, object] = {
        "A_DOWN": int(of_a.down),
        "B_ACROSS": int(not of_b.down),
        "A_VECTOR": vector_bytes(of_a, "float32", (m, k)),
        "B_VECTOR": vector_bytes(of_b, "float32", (k, n)),
        "C_VECTOR": vector_bytes(of_c, "float32", (m, n)),
        "ADD": int(product.add),
    }
    return _compilation("multiply_flagged", arch, **macros, **_FLAGGED_PARAMS)


def _strides(product: SplitProduct) -> tuple[Strides, Strides, Strides]:
    """A, B and C as they lie in memory."""
    a, b = product.a, product.b
    return (
        Strides(a.line, a.step, a.next, a.line == 1 and a.step != 1, a.alignment),
        Strides(b.step, b.line, b.next, b.step == 1 and b.line != 1, b.alignment),
        Strides(product.row_c, 1, product.next_c, alignment=product.alignment),
    )


def _compilation(name: str, arch: str, **macros: object) -> Future[Compiled]:
    work = functools.partial(engine_file, _PACK / f"{name}.cu", arch, macros)
    return _compilations.begin((name, arch, *macros.items()), work)
