"""Finds mistakes of a launch from the compiler's messages and the kernel's resources, without running the kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..gpu.runtime.nvrtc import Compiled
from .assembly.instructions import Instruction, synchronises_grid
from .assembly.program import Program
from .findings import LAUNCH, REGISTERS, SERIALISED, Finding
from .gpus import GPUS, LIMITS, capability_of
from .machine.reports import Findings
from .machine.threads import PORTABLE_CLUSTER
from .machine.values import Dim
from .occupancy import occupancy, refusal

#: A message of ptxas: its number, its text, and, where it says so, the function and the line of the PTX.
_MESSAGE = re.compile(
    r"\((C75\d\d)\) Potential Performance Loss: (.*?)(?: in the function '([\w$]+)')?(?: in line (\d+))?\.?$", re.M
)


def registers_at_launch(compiled: Compiled | None, entry: str) -> int:
    """Return the number of registers per thread with which a kernel is launched, as compiled. Return 0 if the number is
    not known, or if the compiler left ``setmaxnreg`` out of the binary."""
    known = compiled.resources.get(entry) if compiled else None
    if known is None or compiled is None:
        return 0
    ignored = any("setmaxnreg" in text and "ignored" in text for _, text, _, _ in _MESSAGE.findall(compiled.log))
    return 0 if ignored else known.registers


def compiler_findings(compiled: Compiled | None, program: Program) -> Iterator[Finding]:
    """Return the compiler's warnings about asynchronous instructions as findings. The compiler warns that it serialised
    ``wgmma``, or that it ignored ``setmaxnreg``."""
    for number, text, function, line in _MESSAGE.findall(compiled.log if compiled else ""):
        kind, name = (REGISTERS, "setmaxnreg") if "setmaxnreg" in text else (SERIALISED, "wgmma")
        code = [ins for ins in program.code if ins.parts[0] == name]
        if code and function in ("", program.entry.name):
            ins = next((i for i in code if i.ptx_line >= int(line or 0)), code[-1])
            yield _finding(kind, program.entry.name, f"the compiler says ({number}): {text}", ins)


def launch_findings(
    compiled: Compiled | None, program: Program, grid: Dim, block: Dim, cluster: Dim, dynamic_shared: int
) -> Iterator[Finding]:
    """Return findings about a launch that no GPU of the architecture accepts. ``dynamic_shared`` is added to the shared
    memory with which the kernel was compiled."""
    entry = program.entry.name
    resources = compiled.resources.get(entry) if compiled else None
    capability = capability_of(compiled.arch) if compiled else None
    limits = LIMITS.get(capability) if capability else None
    if compiled is None or capability is None or limits is None or resources is None:
        return
    shared = resources.shared_bytes + dynamic_shared
    why = refusal(limits, math.prod(block), resources.registers, shared)
    if not why and math.prod(cluster) > 1 and capability < (9, 0):
        why = f"clusters of {math.prod(cluster)} blocks, which GPUs have from compute capability 9.0 on"
    if not why and synchronises_grid(program.code):
        why = _too_many(compiled.arch, grid, block, resources.registers, shared)
    if why:
        yield _finding(LAUNCH, entry, f"no GPU of {compiled.arch} takes this launch: {why}", None)


def _too_many(arch: str, grid: Dim, block: Dim, registers: int, shared: int) -> str:
    """Why a grid whose blocks wait for one another cannot run at once on any card of an architecture; empty if it can."""
    cards = [gpu for gpu in GPUS if gpu.compute_capability == capability_of(arch)]
    most = max((g.sms * occupancy(g, math.prod(block), registers, shared).blocks for g in cards), default=1 << 31)
    blocks = math.prod(grid)
    at_once = f"the kernel synchronises its grid, and of its {blocks:,} blocks at most {most:,} run at once"
    return at_once if blocks > most else ""


def _finding(kind: str, entry: str, text: str, ins: Instruction | None) -> Finding:
    nowhere = (0, 0, 0)
    findings = Findings(entry)
    findings.add(kind, ins, nowhere, nowhere, None, text)
    return findings.list()[0]


def cluster_notes(cluster: Dim) -> list[str]:
    """Return a note about clusters of a size that not every GPU accepts."""
    size, most = math.prod(cluster), PORTABLE_CLUSTER
    need = "need the attribute cudaFuncAttributeNonPortableClusterSizeAllowed"
    return [f"clusters of {size} blocks {need}; not every GPU takes more than {most}"] if size > most else []
