"""Runs any CUDA kernel on the CPU and reports its results, its memory transactions by source line, and its defects."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, UsageError
from ..gpu.runtime.mangled import demangled, found_entry, is_identifier
from ..gpu.runtime.nvrtc import DEFAULT_ARCH, Compiled, compile_source
from ..records.explanation import ABOUT, Access
from .assembly.disassembly import disassemble, parse_sass
from .assembly.instructions import Module
from .assembly.parser import parse_ptx
from .assembly.program import Program, link
from .assembly.ptxas import MachineAccesses, match_accesses, ptx_accesses
from .assembly.source_files import file_label, included_texts
from .compiled_launch import cluster_notes, compiler_findings, launch_findings, registers_at_launch
from .counters.block_sample import BlockSample, doubt, sample_blocks
from .counters.survey import Survey
from .counters.tally import Counters
from .machine.arguments import dimensions
from .machine.clusters import cluster_dimensions
from .machine.event_log import EventLog
from .machine.options import MAX_BYTES, MAX_STEPS, Progress, RunOptions
from .observation import Observation
from .pipeline import has_mbarriers, pipeline_of
from .run.simulate import Run, run_program


def microscope(
    source: str | Path,
    kernel: str | None = None,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] = 32,
    args: Sequence[Any] = (),
    *,
    arch: str = DEFAULT_ARCH,
    include: Sequence[str | Path] = (),
    defines: Mapping[str, object] | None = None,
    cluster: int | Sequence[int] | None = None,
    shared_bytes: int = 0,
    constants: Mapping[str, Any] | None = None,
    outputs: Sequence[int] = (),
    sampled: bool = False,
    max_steps: int = MAX_STEPS,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Observation:
    """Run a CUDA kernel on the CPU, without a GPU, and see what it does.

    ``source`` is CUDA C++ or PTX, as text or as the path of a ``.cu`` or ``.ptx`` file; ``kernel`` is the name of its
    function as C++ has it, ``"ns::scale"``, or ``"scale<8>"`` for an instance of a template; it is needed only if there are
    several. ``grid`` is the number of blocks, and ``block`` the number of threads per block, along x, y, z. ``args`` are
    the kernel's parameters in order: NumPy arrays, which are copied, lists of arrays for arrays of pointers, and numbers.
    ``constants`` are the values of ``__constant__`` and ``__device__`` variables, arrays or numbers, by name. ``cluster`` is
    the number of blocks of a cluster along x, y, z, for a kernel that was compiled without one. ``shared_bytes`` is dynamic
    shared memory. ``outputs`` are the positions in ``args`` of arrays that the kernel must write in full. ``arch``,
    ``include`` (folders of headers) and ``defines`` (macros) are passed to the compiler.

    ``sampled`` runs only blocks at corners, at edges and some inner ones, and scales the counts to the grid;
    ``Observation.exact`` says whether blocks of one kind gave the same counts. ``progress`` is called with the number of
    blocks done and of all blocks to run. A run stops with a finding after ``max_steps`` steps, and is refused if it needs
    more than ``max_bytes``.

    Raises CompileError with the compiler's messages; UsageError for PTX, an instruction, arguments or a launch that cannot
    be run; OperandError for an argument of an unusable type; UnavailableError without the compiler (PTX needs none).

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
    compiled = None
    if not _is_ptx(text):
        names = () if kernel is None or is_identifier(kernel) else (kernel,)
        compiled = compile_source(text, name=name, arch=arch, defines=defines, include=include, names=names)
    elif include or defines:
        raise UsageError("include and defines mean nothing for PTX: they are for the compiler of CUDA C++")
    module = parse_ptx(compiled.ptx if compiled else text)
    program = link(module, _entry(kernel, compiled, module, name, text))
    options = RunOptions(
        shared_bytes,
        outputs,
        None,
        max_steps,
        max_bytes,
        progress,
        cluster=cluster,
        constants={} if constants is None else constants,
    )
    return observe(KernelSource(text, name, compiled), program, grid, block, args, options, sampled=sampled)


@dataclass(frozen=True)
class KernelSource:
    """The text of a kernel, the name of its file, and the result of compiling it; ``compiled`` is None for PTX."""

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
    """``microscope`` for a kernel that is compiled and linked; ignores ``blocks``, ``observer``, ``log`` of ``options``."""
    start = time.perf_counter()
    entry, compiled = program.entry.name, source.compiled
    kernel = compiled.readable(entry) if compiled else demangled(entry)
    machine, notes = _machine_accesses(compiled, program)
    whole = dimensions("grid", grid)
    cluster = cluster_dimensions(program.entry, whole, options.cluster)
    blocks = sample_blocks(whole, cluster) if sampled else None
    survey = _Surveyor(machine, source.name, blocks, dimensions("block", block))
    chosen = None if blocks is None else blocks.blocks.tolist()
    registers = registers_at_launch(compiled, entry)
    log = EventLog() if has_mbarriers(program.code) else None
    chosen_options = replace(options, observer=survey, blocks=chosen, registers=registers, log=log)
    run = run_program(program, grid, block, args, chosen_options)
    findings = [
        *run.findings,
        *compiler_findings(compiled, program),
        *launch_findings(compiled, program, whole, dimensions("block", block), cluster, options.shared_bytes),
    ]
    exact, words = survey.verdict(run, program)
    counters, accesses, approximate = survey.counted(exact)
    labels = [file_label(finding.file, source.name) for finding in findings]
    return Observation(
        kernel=kernel,
        file=source.name,
        source=source.text,
        arrays=run.arrays,
        counters=counters,
        accesses=accesses,
        findings=[replace(finding, kernel=kernel) for finding in findings],
        run=run,
        exact=exact and not machine.notes,
        words=words,
        seconds=time.perf_counter() - start,
        resources=compiled.resources.get(entry) if compiled else None,
        notes=[*notes, *cluster_notes(cluster)],
        approximate=approximate,
        printed=run.printed,
        pipeline=pipeline_of(log) if log else None,
        included=included_texts([*labels, *(access.file for access in accesses)], source.name),
    )


class _Surveyor:
    """Counts a whole run, or a sample twice: once for each choice of blocks, so that the two totals can be compared."""

    def __init__(
        self, machine: MachineAccesses, name: str, blocks: BlockSample | None, block: tuple[int, int, int]
    ) -> None:
        threads = block[0] * block[1] * block[2]
        standing = [blocks.standing_for(choice, threads) if blocks else None for choice in (0, 1)]
        self.first = Survey(Counters(machine, standing_for=standing[0]), name)
        self.second = Counters(machine, standing_for=standing[1]) if blocks else None

    def on_access(self, *access: Any) -> None:
        for costs in self.first.counters.costs(*access):
            self.first.add(costs)
            if self.second is not None:
                self.second.add(costs)

    def on_work(self, *work: Any) -> None:
        self.first.on_work(*work)
        if self.second is not None:
            self.second.on_work(*work)

    def counted(self, exact: bool) -> tuple[dict[str, int], list[Access], frozenset[str]]:
        """The totals, the accesses, and the totals that are not exact: all if ``exact`` is false, as are all accesses."""
        totals, accesses = self.first.counters.total(), self.first.accesses()
        if exact:
            return totals, accesses, self.first.counters.approximate()
        return totals, [replace(access, exact=False) for access in accesses], frozenset(totals)

    def verdict(self, run: Run, program: Program) -> tuple[bool, str]:
        """Whether the counts are those of the whole grid, and a text that says which blocks were counted."""
        if not run.complete:
            return False, f"the run was stopped: the counts are those of its first {run.steps:,} steps"
        if self.second is None or not run.sampled:
            return True, f"all {run.blocks_total:,} blocks were run" if run.blocks_total > 1 else "the block was run"
        first, second = self.first.counters.total(), self.second.total()
        pairs = [(first.get(name, 0), second.get(name, 0)) for name in first | second]
        difference = max((abs(a - b) / max(a, b) for a, b in pairs), default=0.0)
        ran = f"{run.blocks_run:,} of {run.blocks_total:,} blocks were run: corners, edges and some inner ones"
        if why := doubt(program):
            return False, f"{ran}; {why}"
        if not difference:
            return True, f"{ran}; blocks of one kind gave the same counts, which are exact if all others do so too"
        return False, f"{ran}; blocks of one kind differ, so counts may be off by {difference:.1%}"


def _machine_accesses(compiled: Compiled | None, program: Program) -> tuple[MachineAccesses, list[str]]:
    """How the binary executes the accesses of the PTX, and notes on what could not be determined."""
    unknown = "counts are those of the PTX; the binary may fuse neighbouring shared accesses"
    if compiled is None:
        return MachineAccesses(), [f"{unknown} (PTX was given, which has none)"]
    try:
        code = parse_sass(disassemble(compiled.cubin))
    except UnavailableError as error:
        return MachineAccesses(), [f"{unknown} ({error})"]
    machine = match_accesses(ptx_accesses(program), code.get(program.entry.name, []))
    notes, reasons = list[str](), "; ".join(machine.notes)
    if reasons:
        notes.append(f"{ABOUT} counted as in the PTX, because the binary differs: {reasons}")
    if machine.moves and any(ins.parts[0] in ("mma", "wmma", "wgmma") for ins in program.code):
        where = ", ".join(map(str, machine.moves))
        notes.append(
            f"{ABOUT} instructions and cycles of tensor cores: without HFMA2.MMA (line {where}), which sets registers"
        )
    return machine, notes


def _read(source: str | Path) -> tuple[str, str]:
    """Text and name of a source; a text of one line that ends in .cu or .ptx is a path."""
    is_path = isinstance(source, Path) or re.fullmatch(r"[^\n]*\.(?:cuh?|ptx)", source) is not None
    if not is_path:
        return str(source), "kernel.ptx" if _is_ptx(str(source)) else "kernel.cu"
    try:
        return Path(source).read_text(encoding="utf-8-sig"), str(source)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source}: cannot be read as text: {error}") from None


def _is_ptx(text: str) -> bool:
    return re.search(r"^\s*\.version\s+\d", text, re.MULTILINE) is not None


def _entry(kernel: str | None, compiled: Compiled | None, module: Module, name: str, text: str) -> str:
    entries = [f.name for f in module.functions.values() if f.entry and f.defined]
    if kernel is not None and (entries or compiled):
        known = {demangled(entry).partition("<")[0].rpartition("::")[2] for entry in entries}
        if kernel not in known and re.search(_TEMPLATE.format(re.escape(kernel)), text):
            raise UsageError(f"{name}: {kernel} is a template: name an instance of it, such as {kernel}<8>")
        return compiled.entry(kernel) if compiled else found_entry(name, entries, kernel)
    if len(entries) != 1:
        names = ", ".join(dict.fromkeys(map(demangled, entries)))
        raise UsageError(f"kernel: must be named, {name} has {names}" if names else f"{name} has no kernel")
    return entries[0]


#: A template of a kernel, by its name.
_TEMPLATE = r"\btemplate\s*<[^;{{}}]*__global__[^;{{}}]*\b{}\s*\("
