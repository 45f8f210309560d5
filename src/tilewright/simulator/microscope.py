"""Runs any CUDA kernel on the CPU and says what it did: results, transactions by source line, and what is wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, UsageError
from ..runtime.gpu.nvrtc import DEFAULT_ARCH, Compiled, compile_source, demangled
from .assembly.disassembly import disassemble, parse_sass
from .assembly.instructions import Module
from .assembly.parser import parse_ptx
from .assembly.program import Program, link
from .assembly.ptxas import MachineAccesses, match_accesses, ptx_accesses
from .counters.sample import Sample, doubt, sample
from .counters.survey import Survey
from .counters.tally import Counters
from .machine.arguments import dimensions
from .machine.options import MAX_BYTES, MAX_STEPS, Progress, RunOptions
from .observation import Observation
from .run.simulate import Run, run_program


def microscope(
    source: str | Path,
    kernel: str | None = None,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] = 32,
    args: Sequence[Any] = (),
    *,
    arch: str = DEFAULT_ARCH,
    defines: Mapping[str, object] | None = None,
    shared_bytes: int = 0,
    outputs: Sequence[int] = (),
    sampled: bool = False,
    max_steps: int = MAX_STEPS,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Observation:
    """Run a CUDA kernel on the CPU, without a GPU, and see what it does.

    ``source`` is CUDA C++ or PTX, as text or as the path of a ``.cu`` or ``.ptx`` file; ``kernel`` its function, needed only
    where there are several. ``grid`` and ``block`` are blocks, and threads a block, along x, y, z. ``args`` are the kernel's
    parameters in order: NumPy arrays, which are copied, and numbers. ``shared_bytes`` is dynamic shared memory. ``outputs``
    are positions of arrays that the kernel is to write in full. ``arch`` and ``defines`` (macros) are for the compiler.

    ``sampled`` runs corners, edges and some of the inside and scales the counts to the grid; ``Observation.exact``
    says whether blocks of one kind did alike. ``progress`` is called with blocks done and blocks to do. A run stops with a
    finding after ``max_steps`` steps, and is refused where it needs more than ``max_bytes``.

    Raises CompileError with the compiler's words; UsageError for PTX, an instruction, arguments or a launch that cannot be
    run; OperandError for an argument of no use; UnavailableError without the compiler (PTX needs none).

    >>> import numpy as np, tilewright as tw
    >>> source = '''
    ... extern "C" __global__ void twice(float* x, int n) {
    ...     int i = blockIdx.x * blockDim.x + threadIdx.x;
    ...     x[i] = 2 * x[i];
    ... }'''
    >>> seen = tw.microscope(source, "twice", 2, 32, [np.ones(40, np.float32), 40])
    >>> print(seen.findings[0].kind, "at line", seen.findings[0].line)
    out of bounds at line 4
    """
    text, name = _read(source)
    compiled = None if _is_ptx(text) else compile_source(text, name=name, arch=arch, defines=defines)
    module = parse_ptx(compiled.ptx if compiled else text)
    program = link(module, _entry(kernel, compiled, module, name))
    options = RunOptions(shared_bytes, outputs, None, max_steps, max_bytes, progress)
    return observe(KernelSource(text, name, compiled), program, grid, block, args, options, sampled=sampled)


@dataclass(frozen=True)
class KernelSource:
    """The text of a kernel, the file it came from, and what the compiler made of it; None where it is PTX itself."""

    text: str
    name: str
    compiled: Compiled | None


def observe(
    source: KernelSource,
    program: Program,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    options: RunOptions,
    *,
    sampled: bool = False,
) -> Observation:
    """``microscope`` for what is compiled and linked already. Of ``options``, ``blocks`` and ``observer`` are set here."""
    start = time.perf_counter()
    entry, compiled = program.entry.name, source.compiled
    machine, notes = _machine(compiled, program)
    blocks = sample(dimensions("grid", grid)) if sampled else None
    survey = _Surveyor(machine, source.name, blocks, dimensions("block", block))
    chosen = None if blocks is None else blocks.blocks.tolist()
    run = run_program(program, grid, block, args, replace(options, observer=survey, blocks=chosen))
    exact, words = survey.verdict(run, program)
    return Observation(
        kernel=demangled(entry),
        file=source.name,
        source=source.text,
        arrays=run.arrays,
        counters=survey.first.counters.total(),
        accesses=survey.first.accesses(),
        findings=[replace(finding, kernel=demangled(entry)) for finding in run.findings],
        run=run,
        exact=exact and not machine.notes,
        words=words,
        seconds=time.perf_counter() - start,
        resources=compiled.resources.get(entry) if compiled else None,
        notes=notes,
    )


class _Surveyor:
    """Counts a whole run; or a sample twice, by either choice of blocks, so that the two can be compared."""

    def __init__(self, machine: MachineAccesses, name: str, blocks: Sample | None, block: tuple[int, int, int]) -> None:
        threads = block[0] * block[1] * block[2]
        standing = [blocks.standing_for(choice, threads) if blocks else None for choice in (0, 1)]
        self.first = Survey(Counters(machine, standing_for=standing[0]), name)
        self.second = Counters(machine, standing_for=standing[1]) if blocks else None

    def on_access(self, *access: Any) -> None:
        self.first.on_access(*access)
        if self.second is not None:
            self.second.on_access(*access)

    def verdict(self, run: Run, program: Program) -> tuple[bool, str]:
        """Whether the counts are those of the whole grid, and in words how they came about."""
        if not run.complete:
            return False, f"the run was stopped: the counts are those of its first {run.steps:,} steps"
        if self.second is None or not run.sampled:
            return True, f"all {run.blocks_total:,} blocks were run" if run.blocks_total > 1 else "the block was run"
        one, other = self.first.counters.total(), self.second.total()
        apart = max((abs(one.get(c, 0) - other.get(c, 0)) / max(one.get(c, 0), other.get(c, 0)) for c in one | other),
                    default=0.0)  # fmt: skip
        ran = f"{run.blocks_run:,} of {run.blocks_total:,} blocks were run: corners, edges and some inside"
        if why := doubt(program):
            return False, f"{ran}; {why}"
        if not apart:
            return True, f"{ran}, which did alike; the counts are exact if the others do too"
        return False, f"{ran}; they differ, so that counts may be off by {apart:.1%}"


def _machine(compiled: Compiled | None, program: Program) -> tuple[MachineAccesses, list[str]]:
    """What ptxas made of the accesses, and what could not be learnt of that."""
    unknown = "counts are those of the PTX; the binary may fuse neighbouring shared accesses"
    if compiled is None:
        return MachineAccesses(), [f"{unknown} (PTX comes without one)"]
    try:
        code = parse_sass(disassemble(compiled.cubin))
    except UnavailableError as error:
        return MachineAccesses(), [f"{unknown} ({error})"]
    machine = match_accesses(ptx_accesses(program), code.get(program.entry.name, []))
    return machine, [f"counted as in the PTX, for the binary differs: {note}" for note in machine.notes]


def _read(source: str | Path) -> tuple[str, str]:
    """Text and name of a source; a text of one line that ends in .cu or .ptx is a path."""
    is_path = isinstance(source, Path) or re.fullmatch(r"[^\n]*\.(?:cuh?|ptx)", source) is not None
    if not is_path:
        return str(source), "kernel.cu"
    try:
        return Path(source).read_text(encoding="utf-8-sig"), str(source)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source}: cannot be read as text: {error}") from None


def _is_ptx(text: str) -> bool:
    return re.search(r"^\s*\.version\s+\d", text, re.MULTILINE) is not None


def _entry(kernel: str | None, compiled: Compiled | None, module: Module, name: str) -> str:
    entries = [f.name for f in module.functions.values() if f.entry and f.defined]
    if kernel is not None:
        return compiled.entry(kernel) if compiled else kernel
    if len(entries) != 1:
        known = ", ".join(dict.fromkeys(map(demangled, entries)))
        raise UsageError(f"kernel: must be named, {name} has {known or 'none'}")
    return entries[0]
