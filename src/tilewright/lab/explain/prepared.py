"""A kernel, a size and a card, checked and compiled: what ``explain`` refuses, it refuses here, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import UsageError
from ...host.machine import machine
from ...kernels.cuda_kernel import CudaKernel, Launch
from ...runtime.gpu.nvrtc import Compiled, architectures, compile_kernel, compiler
from ...simulator.assembly.instructions import Function
from ...simulator.assembly.parser import parse_ptx
from ...simulator.assembly.program import Program, link
from ...simulator.gpus import GpuModel, find_gpu, named_in_full
from ...simulator.machine.arguments import MOST_BLOCKS
from ..inputs.formats import format_of

#: Products up to this m·n·k have every block run; larger ones a sample. 512³ takes some seconds.
WHOLE = 512**3
#: What a kernel takes, and the bytes of each.
SIGNATURE = "(const T* a, const T* b, T* c, int m, int n, int k)"
SIZES = [8, 8, 8, 4, 4, 4]


@dataclass(frozen=True)
class Prepared:
    """A kernel compiled for a card, and a launch of it that can be: all that is refused is refused before this exists."""

    kernel: CudaKernel
    m: int
    n: int
    k: int
    params: dict[str, int]
    card: GpuModel
    arch: str
    compiled: Compiled
    program: Program
    launch: Launch
    sampled: bool
    notes: list[str]


def prepare(
    kernel: CudaKernel,
    m: int,
    n: int,
    k: int,
    *,
    gpu: str = "H200",
    params: Mapping[str, int] | None = None,
    whole: bool | None = None,
) -> Prepared:
    """What ``explain`` does before it runs anything, and raises all that it does."""
    chosen = kernel.checked(params or {})
    card = find_gpu(gpu)
    launch = kernel.launch(m, n, k, **chosen)
    sampled = m * n * k > WHOLE if whole is None else not whole
    _check_size(kernel, m, n, k, launch, sampled)
    arch, notes = arch_for(kernel, card)
    if named_in_full(gpu, card):
        notes = [f"the {card.name} known here is that of: {card.source}", *notes]
    compiled = compile_kernel(kernel, arch=arch, **chosen)
    program = link(parse_ptx(compiled.ptx), compiled.entry(kernel.entry))
    _check_signature(kernel, program.entry)
    return Prepared(kernel, m, n, k, chosen, card, arch, compiled, program, launch, sampled, notes)


def _check_size(kernel: CudaKernel, m: int, n: int, k: int, launch: Launch, sampled: bool) -> None:
    where = f"{kernel.name} at {m}x{n}x{k}"
    if not launch.blocks:
        raise UsageError(f"{where}: C has no elements, so nothing is launched")
    if not sampled and launch.blocks > MOST_BLOCKS:
        raise UsageError(f"{where}: {launch.blocks:,} blocks are too many to run all: at most {MOST_BLOCKS:,}")
    need = (m * k + k * n + m * n) * format_of(kernel.dtypes[0], kernel.precision).itemsize
    have = machine().memory_total
    if have and 2 * need > have:
        raise UsageError(
            f"{where}: its operands and a copy of them take {2 * need >> 30:,} GiB, this machine has {have >> 30:,}"
        )


def _check_signature(kernel: CudaKernel, function: Function) -> None:
    """Raises UsageError where the kernel takes something else than a product's operands and sizes."""
    given = function.params
    if [p.size for p in given] != SIZES or any(p.type.startswith("f") for p in given):
        types = ", ".join(f".{p.type}" for p in given) or "nothing"
        raise UsageError(
            f"{kernel.path}: {kernel.entry} must take {SIGNATURE}, takes {types} (in PTX); "
            "a kernel that takes anything else runs in Python's tilewright.microscope"
        )


def arch_for(kernel: CudaKernel, card: GpuModel) -> tuple[str, list[str]]:
    """What to compile for: the card's own architecture, or for one too old for this compiler the oldest it knows."""
    known = architectures()
    if kernel.capability[-1] in "af" and card.arch == f"sm_{kernel.capability[:-1].replace('.', '')}":
        return f"{card.arch}{kernel.capability[-1]}", []
    if card.arch in known:
        return card.arch, []
    oldest = known[0]
    return oldest, [f"registers are those of {oldest}: {compiler()} does not compile for the {card.name} ({card.arch})"]
