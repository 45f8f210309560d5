"""Runs any CUDA kernel on the CPU and reports its results, its memory transactions by source line, and its defects.

All blocks of a grid are run, or a sample of them: corners, edges and inner blocks, chosen in two ways whose counts are
compared. An ``Observation`` holds what was seen of one launch, and prints it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UnavailableError, UsageError
from ..gpu.runtime.cubin import Resources, demangled, found_entry, is_identifier
from ..gpu.runtime.nvrtc import DEFAULT_ARCH, Compiled, compile_source
from ..records.explanation import APPROXIMATELY, Access
from ..records.legible import legible
from ..records.pipeline import Pipeline
from ..records.report import pipeline_html
from ..records.report.listing import listing_html
from ..records.source_rows import SourceRow, source_rows
from . import listing
from .assembly.dataflow import operand_names
from .assembly.disassembly import disassemble, parse_sass
from .assembly.instructions import Module, loads_anew
from .assembly.parser import parse_ptx
from .assembly.program import Program, link
from .assembly.ptxas import MachineAccesses, match_accesses, ptx_accesses
from .assembly.source_files import file_label, included_texts
from .compiled_launch import cluster_notes, compiler_findings, launch_findings, registers_at_launch
from .counters.sectors import WARP, Ints
from .counters.tally import Counters, Survey
from .findings import Finding
from .listing import timeline_lines
from .machine.arguments import dimensions
from .machine.event_log import EventLog
from .machine.options import MAX_BYTES, MAX_STEPS, Progress, RunOptions
from .machine.threads import cluster_dimensions
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
        weights = [blocks.warp_weights(choice, threads) if blocks else None for choice in (0, 1)]
        self.first = Survey(Counters(machine, warp_weights=weights[0]), name)
        self.second = Counters(machine, warp_weights=weights[1]) if blocks else None

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
        if why := why_sample_may_mislead(program):
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
        notes.append(f"{APPROXIMATELY} counted as in the PTX, because the binary differs: {reasons}")
    if machine.moves and any(ins.parts[0] in ("mma", "wmma", "wgmma") for ins in program.code):
        where = ", ".join(map(str, machine.moves))
        notes.append(
            f"{APPROXIMATELY} instructions and cycles of tensor cores: without HFMA2.MMA (line {where}), "
            "which sets registers"
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


# ---- blocks that represent a grid ------------------------------------------------------------------------------------

#: Along an axis of this many blocks or fewer, every block is run.
FEW = 4


@dataclass(frozen=True)
class BlockSample:
    """Blocks of a grid by linear index, ascending, and how many blocks each represents in each of two choices.

    A grid is divided along each axis into its first block, its last (which may extend beyond the edge of a matrix) and
    inner blocks. The two choices take different inner blocks: if both predict the same counts, blocks of one kind behave
    alike, unless :func:`why_sample_may_mislead` gives a reason why others may not.
    """

    blocks: Ints
    weights: tuple[Ints, Ints]
    total: int

    def warp_weights(self, choice: int, threads: int) -> _Weights:
        """For ``Counters``: a function of warp numbers that returns how many warps each represents, in blocks of ``threads``
        threads."""
        return _Weights(self.blocks, self.weights[choice], -(-threads // WARP))


@dataclass(frozen=True)
class _Weights:
    blocks: Ints
    weights: Ints
    warps_per_block: int

    def __call__(self, warp_ids: Ints) -> Ints:
        return self.weights[np.searchsorted(self.blocks, warp_ids // self.warps_per_block)]


def sample_blocks(grid: tuple[int, int, int], cluster: tuple[int, int, int] = (1, 1, 1)) -> BlockSample:
    """The sample of a grid, in whole clusters of blocks: clusters at corners and edges, and some inner ones.

    >>> some = sample_blocks((100, 50, 1))
    >>> len(some.blocks), *(int(w.sum()) for w in some.weights), some.total
    (37, 5000, 5000, 5000)
    >>> len(sample_blocks((4, 3, 1)).blocks)  # a small grid: all blocks
    12
    >>> len(sample_blocks((100, 50, 1), (2, 1, 1)).blocks)
    74
    """
    weights: dict[int, list[int]] = {}
    for choice in (0, 1):
        clusters = (
            _axis_sample(size // of, choice) for size, of in zip(reversed(grid), reversed(cluster), strict=True)
        )
        for (z, y, x), (dz, dy, dx) in product(product(*clusters), product(*map(range, reversed(cluster)))):
            row = (z[0] * cluster[2] + dz) * grid[1] + y[0] * cluster[1] + dy
            index = row * grid[0] + x[0] * cluster[0] + dx
            weights.setdefault(index, [0, 0])[choice] = z[1] * y[1] * x[1]
    blocks = sorted(weights)
    first, second = (np.array([weights[b][choice] for b in blocks], np.int64) for choice in (0, 1))
    return BlockSample(np.array(blocks, np.int64), (first, second), math.prod(grid))


def why_sample_may_mislead(program: Program) -> str:
    """Why the counts of the whole grid may differ from what a sample predicts, although its two choices of blocks
    predict the same; empty if there is no reason.

    Work that blocks distribute among themselves by global atomics, or wait for, depends on which blocks run.
    """
    for ins in program.code:
        # Only instructions that read global memory again matter; an atomic whose result is not used cannot steer a block.
        if not loads_anew(ins) or "shared" in ins.parts or ins.parts[0] == "mbarrier":
            continue
        result = ins.operands[0]
        others = [other for other in program.code if other is not ins]
        operands = (operand for other in others for operand in (*other.operands, *(other.guard or ())[:1]))
        if ins.parts[0] == "ld" or (result != "_" and any(result in operand_names(operand) for operand in operands)):
            return f"the work of a block depends on other blocks, and not all are run ({ins.place()}: {ins.text})"
    return ""


def _axis_sample(size: int, choice: int) -> list[tuple[int, int]]:
    """Positions along an axis, with how many each represents.

    Of the inner blocks, odd ones represent the odd and even ones the even. The first choice takes early ones: 1, and an
    even one that is not a multiple of 4. The second takes late ones: the last, and a power of two. So the choices differ
    if rows begin inside a sector, or if only the first few blocks have work.

    For 100 blocks the first choice takes the inner blocks 1 (for the odd ones) and 34 (for the even ones), the second 97
    (odd), 64 (even) and 98, the last.
    """
    if size <= FEW:
        return [(i, 1) for i in range(size)]
    last_inner, odds, evens = size - 2, (size - 1) // 2, (size - 2) // 2
    if choice == 0:
        picks = {1: odds, size // 12 * 4 + 2: evens}
    else:
        power = 1 << last_inner.bit_length() - 1
        picks = {last_inner - (last_inner % 2 == 0): odds, power: evens}
        if last_inner not in picks:
            picks |= {last_inner: 1, power: evens - 1}
    return [(0, 1), *picks.items(), (size - 1, 1)]


# ---- what was seen ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observation:
    """What the microscope saw of one launch; prints as the source with its counters in the margin.

    ``arrays`` has one entry per argument: the arrays as the kernel left them, None for numbers. ``counters`` are totals
    under the hardware's names, ``accesses`` the same by source line. ``words`` says which blocks were counted.
    ``exact`` is false if the run was stopped, if accesses of the binary could not be matched, or if the counts of a
    sample may not hold for the whole grid; ``notes`` say how they may differ from the binary's. ``resources`` is None
    for PTX. ``included`` has the texts of included files with accesses or findings,
    ``printed`` what the kernel's threads printed. ``approximate`` are the counters that are not exact.
    ``pipeline`` is what one block did at its mbarriers, None if it has none.
    """

    kernel: str
    file: str
    source: str
    arrays: tuple[Any, ...]
    counters: dict[str, int]
    accesses: list[Access]
    findings: list[Finding]
    run: Run
    exact: bool
    words: str
    seconds: float
    resources: Resources | None = None
    notes: list[str] = field(default_factory=list)
    included: dict[str, str] = field(default_factory=dict)
    printed: str = ""
    approximate: frozenset[str] = frozenset()
    pipeline: Pipeline | None = None

    @property
    def ok(self) -> bool:
        """Whether the kernel ended and nothing was found."""
        return self.run.complete and not self.findings

    def __str__(self) -> str:
        wrong = [listing.wrapped(text, listing.WIDTH) for text in self._without_line]
        below = [*wrong, "", *self._below, *(["", *self._timeline, ""] if self._timeline else [])]
        return listing.listing_text(self._title, self._rows, below, self.notes)

    def __repr__(self) -> str:
        return f"<Observation of {self._title}>"

    def _repr_html_(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        below = [*self._without_line, *self._below, *notes]
        return listing_html(self._title, self._rows, below) + self._pictures()

    @property
    def _title(self) -> str:
        """The kernel, the number of findings, and which blocks were counted, in one line."""
        count = len(self.findings)
        findings = "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"
        return f"{self.kernel}: {findings}; {self.words}"

    @property
    def _rows(self) -> list[SourceRow]:
        wrong = [(file_label(f.file, self.file), f.line, f.text_in_place) for f in self.findings]
        return source_rows(self.source, self.accesses, wrong, self.included)

    @property
    def _timeline(self) -> list[str]:
        """The timeline of the pipeline as text; empty if there is none."""
        return timeline_lines(self.pipeline) if self.pipeline else []

    def _pictures(self) -> str:
        """The pictures of the pipeline; without the libraries that draw them its timeline as text."""
        if self.pipeline is None:
            return ""
        try:
            return pipeline_html(self.pipeline, f"pipeline-{id(self):x}")
        except UnavailableError:
            return f"<pre>{escape(chr(10).join(self._timeline))}</pre>"

    @property
    def _below(self) -> list[str]:
        """What was printed, and the counters."""
        printed = legible(self.printed).removesuffix("\n").split("\n")
        return [
            *(["printed:", *printed, ""] if self.printed else []),
            *listing.counter_lines(self.counters, self.approximate),
        ]

    @property
    def _without_line(self) -> list[str]:
        """The findings that have no source line."""
        return [f.text_in_place for f in self.findings if not f.line]
