"""A kernel, a size and a card, checked and compiled: all that ``explain`` refuses is refused here, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...gpu.runtime.nvrtc import Compiled, architectures, compiler
from ...gpu.runtime.plain_launch import PlainLaunch, plain_launch
from ...host.machine import machine
from ...kernels.cuda_kernel import CudaKernel, Launch
from ...simulator.assembly.instructions import Function
from ...simulator.assembly.parser import parse_ptx
from ...simulator.assembly.program import Program, link
from ...simulator.gpus import GpuModel, find_gpu, named_in_full
from ...simulator.machine.arguments import MOST_BLOCKS
from ..inputs.formats import format_of

#: Up to this m·n·k every block runs; of larger products a sample of the blocks. 512³ takes some seconds.
WHOLE = 512**3
#: The parameters that a kernel must have; an operand in ``boxes`` is a tensor map instead.
SIGNATURE = "(const T* a, const T* b, T* c, int m, int n, int k)"
_MAP = "const __grid_constant__ TensorMap"


@dataclass(frozen=True)
class CheckedLaunch:
    """A kernel compiled for a card, and a launch of it, both checked.

    ``compiler_options``: ``include`` and ``defines``, if they were given.
    """

    kernel: CudaKernel
    m: int
    n: int
    k: int
    params: dict[str, int]
    card: GpuModel
    arch: str
    plain: PlainLaunch
    program: Program
    sampled: bool
    notes: list[str]
    compiler_options: dict[str, Any] = field(default_factory=dict)

    @property
    def compiled(self) -> Compiled:
        """The compiled kernel."""
        return self.plain.compiled

    @property
    def launch(self) -> Launch:
        """The size of the launch."""
        return self.plain.launch


def check_launch(
    kernel: CudaKernel,
    m: int,
    n: int,
    k: int,
    *,
    gpu: str = "H200",
    params: Mapping[str, int] | None = None,
    whole: bool | None = None,
    include: Sequence[str | Path] = (),
    defines: Mapping[str, object] | None = None,
) -> CheckedLaunch:
    """Check and compile all that ``explain`` needs before it runs a kernel. Raises what ``explain`` raises."""
    chosen = kernel.checked(params or {})
    card = find_gpu(gpu)
    sampled = m * n * k > WHOLE if whole is None else not whole
    _check_size(kernel, m, n, k, kernel.launch_on(card.sms, m, n, k, **chosen), sampled)
    arch, notes = arch_for(kernel, card)
    if named_in_full(gpu, card):
        notes = [f"the data of the {card.name} are from: {card.source}", *notes]
    options: dict[str, Any] = {"arch": arch, "sms": card.sms, "defines": defines, "include": include}
    plain = plain_launch(kernel, (m, n, k), kernel.dtypes[0], chosen, **options)
    program = link(parse_ptx(plain.compiled.ptx), plain.entry)
    if not kernel.in_engine:
        _check_signature(kernel, program.entry)
    given = {"include": [str(folder) for folder in include], "defines": dict(defines or {})}
    given_options = {name: value for name, value in given.items() if value}
    return CheckedLaunch(kernel, m, n, k, chosen, card, arch, plain, program, sampled, notes, given_options)


def _check_size(kernel: CudaKernel, m: int, n: int, k: int, launch: Launch, sampled: bool) -> None:
    where = f"{kernel.name} at {m}x{n}x{k}"
    if not launch.blocks:
        raise UsageError(f"{where}: C has no elements, so nothing is launched")
    if not sampled and launch.blocks > MOST_BLOCKS:
        raise UsageError(f"{where}: {launch.blocks:,} blocks are too many to run all: at most {MOST_BLOCKS:,}")
    size = format_of(kernel.dtypes[0], kernel.precision).itemsize
    needed = (m * k + k * n + m * n) * size
    memory = machine().memory_total
    if memory and 2 * needed > memory:
        raise UsageError(
            f"{where}: its operands and a copy of them take {2 * needed >> 30:,} GiB, this machine has {memory >> 30:,}"
        )


def _check_signature(kernel: CudaKernel, function: Function) -> None:
    """Raises UsageError unless the kernel's parameters are a product's operands and sizes."""
    params = function.params
    sizes = [*(128 if name in kernel.boxes else 8 for name in "abc"), 4, 4, 4]
    if [p.size for p in params] != sizes or any(p.type.startswith("f") for p in params):
        types = ", ".join(f".{p.type}" for p in params) or "nothing"
        signature = SIGNATURE
        for name in kernel.boxes:
            signature = re.sub(rf"(const )?T\* {name}\b", f"{_MAP} {name}", signature)
        raise UsageError(
            f"{kernel.path}: {kernel.entry} must take {signature}, takes {types} (in PTX); "
            "a kernel that takes anything else runs in Python's tilewright.microscope"
        )


def arch_for(kernel: CudaKernel, card: GpuModel) -> tuple[str, list[str]]:
    """The architecture to compile for, and notes: the card's own, or the compiler's oldest if the card is older than
    that."""
    known = architectures()
    if kernel.capability[-1] in "af" and card.arch == f"sm_{kernel.capability[:-1].replace('.', '')}":
        return f"{card.arch}{kernel.capability[-1]}", []
    if card.arch in known:
        return card.arch, []
    oldest = known[0]
    return oldest, [f"registers are those of {oldest}: {compiler()} does not compile for the {card.name} ({card.arch})"]
