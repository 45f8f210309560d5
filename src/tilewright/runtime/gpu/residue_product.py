"""Products of float64 by tensor cores of int8: the operands become residues of whole numbers, which a kernel multiplies.

``engine/cuda/pack/write_residues.cu`` finds residues, ``engine/cuda/residues_hopper.cu`` multiplies them for each modulus,
``engine/cuda/pack/reconstruct.cu`` makes float64 of what is left, and where this would not keep the bound of the error,
``engine/cuda/pack/multiply_flagged_f64.cu`` multiplies in its place. The GPU finds out where; the host does not wait.
``residue_operand`` says how the residues lie.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from concurrent.futures import Future

from ...host.sources import PACKAGE
from ...kernels.cuda_kernel import CudaKernel, launched
from .archive import engine_file, engine_kernel
from .boxes import BoxedLauncher, BoxedOperand
from .compilations import Compilations
from .device import Device
from .nvrtc import Compiled
from .product import MOST
from .residue_operand import FLAGGED, ResidueOperand, ResidueProduct, least_bound, whole_bits
from .split_product import SplitLaunches
from .strided_product import Strides, vector_bytes

_ENGINE = PACKAGE / "engine" / "cuda"
#: The files beside the kernel on which the bits of a product depend.
SOURCES = tuple(
    _ENGINE / name
    for name in [
        "pack/write_residues.cu",
        "pack/reconstruct.cu",
        "pack/multiply_flagged_f64.cu",
        "residues_hopper.cu",
        "residues.cuh",
        "dmma.cuh",
        "wgmma.cuh",
        "hopper.cuh",
        "banded_tiles.cuh",
        "ring.cuh",
    ]
)
#: Threads of a block that prepares or reconstructs; bytes of C's residues that such a block reads of each modulus.
_THREADS, _BLOCK_BYTES = 256, 4096
#: ``Call`` in the sources: of what prepares, beside the operands; of what multiplies; of what reconstructs; of what
#: multiplies flagged parts, and its parameters.
_PREPARE, _MULTIPLY, _RECONSTRUCT = struct.Struct("<2i"), struct.Struct("<4ifi"), struct.Struct("<q4i")
_FLAGGED = struct.Struct("<9q6i")
_FLAGGED_PARAMS = {
    "BM": FLAGGED[0], "BN": FLAGGED[1], "BK": 16, "WM": 32, "WN": 64, "MMA_K": 4, "STAGES": 3, "BLOCKS": 2, "GROUP": 8,
}  # fmt: skip

_compilations = Compilations()


def prepare_residue_product(
    device: Device, kernel: CudaKernel, product: ResidueProduct, params: Mapping[str, int]
) -> SplitLaunches:
    """The product on ``device``: compiled and loaded now. Sizes are at least 1, k at most ``MOST_K``. The GPU must be the
    thread's current one, here and at each call."""
    a, b, values = product.a, product.b, kernel.checked(params)
    prepare = _Prepare(device, product)
    bound, multiply = (_multiply(device, kernel, product, values, bound=bound) for bound in (True, False))
    reconstruct, flagged = _reconstruct(device, product, values["BN"]), _flagged(device, product)
    residues_bytes = product.residues_bytes(values["BN"])

    def run(at_a: int, at_b: int, c: int, workspace: int, stream: int) -> None:
        of_a, of_b = workspace, workspace + a.workspace_bytes
        residues = of_b + b.workspace_bytes
        flags = residues + residues_bytes
        lines = of_a + a.lines_at, of_b + b.lines_at
        prepare.find(stream, (), (at_a, of_a, at_b, of_b, flags))
        prepare.write(stream, (), (at_a, of_a, at_b, of_b))
        bound(stream, (of_a + a.sample_at, of_b + b.sample_at), (residues, *lines, flags))
        multiply(stream, (of_a, of_b), (residues, *lines, flags))
        reconstruct(stream, (), (residues, c, *lines, flags))
        flagged(stream, (), (at_a, at_b, c, flags))

    return run


class _Prepare:
    """The launches that find the largest magnitudes, and that write the residues."""

    find: BoxedLauncher
    write: BoxedLauncher

    def __init__(self, device: Device, product: ResidueProduct) -> None:
        a, b = product.a, product.b
        compiled = _prepare_code(device.arch, product).result()
        call = a.packed() + b.packed() + _PREPARE.pack(a.every, product.parts)
        finding, rounding = a.finding + b.finding, a.rounding + b.rounding
        self.find = device.boxed_launcher(compiled, "find_magnitudes", (finding, _THREADS, 0), (), call)
        self.write = device.boxed_launcher(compiled, "write_residues", (rounding, _THREADS, 0), (), call)


def _prepare_code(arch: str, product: ResidueProduct) -> Future[Compiled]:
    macros: dict[str, object] = {"MODULI": product.a.moduli, "BITS": whole_bits(product.a.k, product.a.moduli)}
    for i, operand in enumerate((product.a, product.b)):
        macros |= {f"ALONG_{i}": int(operand.along), f"VECTOR_{i}": int(operand.is_whole)}
    return _compilation("write_residues", arch, **macros)


def _multiply(
    device: Device, kernel: CudaKernel, product: ResidueProduct, values: Mapping[str, int], *, bound: bool
) -> BoxedLauncher:
    """The launch that multiplies residues, or that finds the lower ``bound`` of |A||B|."""
    a, b = product.a, product.b
    given = {"MODULI": a.moduli, "BOUND": int(bound)}
    key = kernel, device.arch, *sorted(values.items()), *given.items()
    compiled = _compilations.begin(key, functools.partial(engine_kernel, kernel, values, device.arch, given)).result()
    planes, k = (1, a.sampled) if bound else (a.moduli, a.k)
    launch = kernel.launch(a.lines, b.lines, k, **values)
    operands = [_boxed(x, planes, kernel.box(name, 1, values)) for name, x in zip(("a", "b_down"), (a, b), strict=True)]
    call = _MULTIPLY.pack(a.lines, b.lines, k, planes, least_bound(a.k, a.moduli), 0)
    size = launched(launch.blocks * planes, device.sms, values), launch.threads, launch.shared_bytes
    return device.boxed_launcher(compiled, compiled.entry(kernel.entry), size, operands, call)


def _boxed(operand: ResidueOperand, planes: int, box: tuple[int, int]) -> BoxedOperand:
    """The planes of residues as the copy engine sees them, or the one of the sample."""
    k, pitch = (operand.k, operand.pitch) if planes > 1 else (operand.sampled, operand.sampled)
    return BoxedOperand("int8", operand.lines, k, planes, pitch, operand.lines * pitch, box)


def _reconstruct(device: Device, product: ResidueProduct, width: int) -> BoxedLauncher:
    m, n = product.a.lines, product.b.lines
    pairs = product.alignment % 16 == 0 and product.row_c % 2 == 0 and n % 2 == 0
    compiled = _compilation(
        "reconstruct", device.arch, MODULI=product.a.moduli, WIDTH=width, STORE_PAIRS=int(pairs)
    ).result()
    down, across = -(-m // FLAGGED[0]), -(-n // width)
    blocks = down * across * FLAGGED[0] * width // _BLOCK_BYTES
    call = _RECONSTRUCT.pack(product.row_c, m, n, down, across)
    return device.boxed_launcher(compiled, "reconstruct", (blocks, _THREADS, 0), (), call)


def _flagged(device: Device, product: ResidueProduct) -> BoxedLauncher:
    """The launch that multiplies where a part of C is flagged."""
    a, b, p = product.a, product.b, _FLAGGED_PARAMS
    m, n, k = a.lines, b.lines, a.k
    laid = (
        Strides(a.line, a.step, 0, a.line == 1 and a.step != 1, a.alignment),
        Strides(b.step, b.line, 0, b.step == 1 and b.line != 1, b.alignment),
        Strides(product.row_c, 1, 0, alignment=product.alignment),
    )
    macros: dict[str, object] = {
        "TYPE": "FLOAT64",
        "OUT": "FLOAT64",
        "A_DOWN": int(laid[0].down),
        "B_ACROSS": int(not laid[1].down),
        "A_VECTOR": vector_bytes(laid[0], "float64", (m, k)),
        "B_VECTOR": vector_bytes(laid[1], "float64", (k, n)),
        "C_VECTOR": vector_bytes(laid[2], "float64", (m, n)),
    }
    compiled = _compilation("multiply_flagged_f64", device.arch, **macros, **p).result()
    shared = p["STAGES"] * p["BK"] * (p["BM"] + p["BN"] + 4) * 8
    strides = (number for each in laid for number in each[:3])
    call = _FLAGGED.pack(*strides, m, n, k, 1, 1, MOST)
    threads = p["BM"] // p["WM"] * (p["BN"] // p["WN"]) * 32
    return device.boxed_launcher(compiled, "multiply_flagged_f64", (product.parts, threads, shared), (), call)


def _compilation(name: str, arch: str, **macros: object) -> Future[Compiled]:
    work = functools.partial(engine_file, _ENGINE / "pack" / f"{name}.cu", arch, macros)
    return _compilations.begin((name, arch, *macros.items()), work)
