"""Runs CUDA kernels on the CPU, and reports the results of a kernel, its memory transactions by source line, and its
defects.

A run includes all blocks of a grid, or a sample: blocks at corners and edges, and some inner blocks. A sample contains
two choices of inner blocks, and the counts of the two choices are compared. An ``Observation`` holds the results,
counters and findings of one launch, and can be printed.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RequirementError, UnavailableError, UsageError
from ..gpu.runtime.assembler import assemble
from ..gpu.runtime.cubin import Resources, demangled, found_entry, is_identifier
from ..gpu.runtime.nvrtc import DEFAULT_ARCH, Compiled, compile_source
from ..records.explanation import APPROXIMATELY, Access, Defect
from ..records.legible import legible
from ..records.pipeline import (
    ASK,
    BARRIERS,
    EVENTS,
    ROWS,
    SPANS,
    TICKS,
    TILES,
    BarrierEvent,
    BarrierHistory,
    Pipeline,
    PipelineRow,
    PipelineSpan,
    SwizzledTile,
)
from ..records.report import pipeline_html
from ..records.report.listing import listing_html
from ..records.source_rows import SourceRow, source_rows
from . import listing
from .assembly.dataflow import operand_names
from .assembly.disassembly import disassemble, parse_sass
from .assembly.instructions import Instruction, Module, loads_anew
from .assembly.parser import parse_ptx
from .assembly.program import Program, link
from .assembly.ptxas import MachineAccesses, PtxAccess, match_accesses, ptx_accesses
from .assembly.source_files import file_label, included_texts
from .compiled_launch import cluster_notes, compiler_findings, launch_findings, registers_at_launch
from .counters.advice import Change, changes, line_turns, neighbours
from .counters.sectors import WARP, Ints
from .counters.tally import Counters, Survey, by_line
from .findings import Finding, counted
from .given_kernels import given_kernel
from .listing import timeline_lines
from .machine.arguments import dimensions
from .machine.event_log import EventLog, LoggedEvent, LoggedTile
from .machine.options import MAX_BYTES, MAX_STEPS, Progress, RunOptions
from .machine.threads import cluster_dimensions
from .machine.values import Dim
from .ops.descriptor import SWIZZLES
from .requirements import broken_requirements, broken_text, required
from .run.simulate import Run, run_program


def microscope(
    source: Any,
    kernel: str | None = None,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] | None = None,
    args: Sequence[Any] = (),
    *,
    arch: str = DEFAULT_ARCH,
    include: Sequence[str | Path] = (),
    defines: Mapping[str, object] | None = None,
    cluster: int | Sequence[int] | None = None,
    shared_bytes: int | None = None,
    constants: Mapping[str, Any] | None = None,
    outputs: Sequence[int] = (),
    sampled: bool = False,
    max_steps: int = MAX_STEPS,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Observation:
    """Run a CUDA kernel on the CPU, without a GPU, and observe what it does.

    Parameters
    ----------
    source : str or path or kernel
        CUDA C++ or PTX, as text or as the path of a ``.cu`` or ``.ptx`` file. ``source`` may also be a kernel of
        another library: a kernel that Triton or Numba compiled, CuPy's ``RawKernel``, or any object that holds its PTX
        (``given_kernels`` lists such objects). A ``.cu`` file may have host code, ``main`` and ``<<<…>>>``. nvcc
        compiles such a file if nvcc is installed; otherwise the host code is left out.
    kernel : str, optional
        The name of the kernel's function in C++, such as ``"ns::scale"``, or ``"scale<8>"`` for an instance of a
        template. ``kernel`` is required only if the source has several kernels.
    grid : int or sequence of int, default: 1
        The number of blocks along x, y, z.
    block : int or sequence of int, optional
        The number of threads per block along x, y, z. The default of ``block`` is the number of threads for which the
        kernel was compiled; if it was compiled for none, 32.
    args : sequence, default: ()
        The kernel's arguments in order. An argument is a NumPy array (which is copied), a number, a tensor map, or a
        list. A list is passed as a structure or an array whose members are the items of the list; an array in a list
        becomes a pointer, and an item may be a list. For a parameter that is a pointer, a list or tensor map is put
        into global memory, and its address is passed. For a kernel of another library, pass the arguments that a call
        in that library has, without those that the library adds.
    arch : str
        The architecture for which CUDA C++ is compiled, such as "sm_90a".
    include : sequence of paths, default: ()
        Folders in which the compiler looks for headers.
    defines : mapping of str to value, optional
        Macros that the compiler defines.
    cluster : int or sequence of int, optional
        The number of blocks of a cluster along x, y, z, for a kernel that was compiled without a cluster size.
    shared_bytes : int, optional
        Bytes of dynamic shared memory. The default of ``shared_bytes`` is the number that the kernel's library states;
        if it states none, 0.
    constants : mapping of str to array or number, optional
        The values of ``__constant__`` and ``__device__`` variables.
    outputs : sequence of int, default: ()
        The positions in ``args`` of arrays that the kernel must write in full.
    sampled : bool, default: False
        Whether to run only a sample of the blocks (the corners, some blocks at edges and some inside), and to scale the
        counts to the whole grid. ``Observation.exact`` is False if these counts may not hold for the whole grid.
    max_steps : int
        The number of steps after which the run is stopped, with a finding.
    max_bytes : int
        The most bytes of memory that a run may need. A run that needs more memory is refused.
    progress : function, optional
        Is called as ``progress(done, all)`` with the number of blocks that have run and the number of all blocks to
        run.

    Returns
    -------
    Observation
        The arrays after the run, the counters of each source line, and the findings, which are the kernel's defects.
        PTX is assembled to a binary first, so the counts are those of the binary.

    Raises
    ------
    CompileError
        The compiler refuses the source; the message quotes the compiler's output.
    UsageError
        The simulator cannot run the PTX, an instruction, the arguments or the launch; or the object that was passed as
        ``source`` has no PTX.
    OperandError
        An argument has a type that cannot be used.
    UnavailableError
        The compiler is not installed. PTX needs no compiler.

    See Also
    --------
    tilewright.simulator.microscope.Observation : The class of the result.
    TensorMap : An argument that describes an array for the copy engine.
    tilewright.pytest_plugin.cuda_kernel : Runs a kernel in a test.

    Examples
    --------
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
    given = given_kernel(source)
    if given.is_ptx and (include or defines):
        raise UsageError("include and defines mean nothing for PTX: they are for the compiler of CUDA C++")
    kernel = kernel or given.kernel
    compiled, reason = given.compiled, ""
    if compiled is None and given.is_ptx:
        try:
            compiled, reason = assemble(given.text, given.name)
        except UnavailableError as error:
            reason = str(error)
    elif compiled is None:
        names = () if kernel is None or is_identifier(kernel) else (kernel,)
        compiled = compile_source(given.text, name=given.name, arch=arch, defines=defines, include=include, names=names)
    if not given.is_ptx and compiled is not None and not compiled.entries:
        raise UsageError(_no_kernel(given.name, given.text))
    module = parse_ptx(given.text if given.is_ptx or compiled is None else compiled.ptx)
    program = link(module, _entry(kernel, compiled, module, given.name, given.text))
    passed = given.passed(args, program.entry, grid)
    options = RunOptions(
        given.shared_bytes if shared_bytes is None else shared_bytes,
        passed.positions(outputs),
        None,
        max_steps,
        max_bytes,
        progress,
        cluster=cluster,
        constants={} if constants is None else constants,
    )
    threads = program.entry.limits.get("reqntid", WARP) if block is None else block
    seen = observe(
        KernelSource(given.text, given.name, compiled, reason),
        program,
        grid,
        threads,
        passed.values,
        options,
        sampled=sampled,
    )
    return replace(
        seen,
        arrays=tuple(passed.of_caller(seen.arrays)),
        findings=[replace(finding, text=passed.renumbered(finding.text)) for finding in seen.findings],
    )


@dataclass(frozen=True)
class KernelSource:
    """The text of a kernel, the name of its file, and the result of compiling it. ``compiled`` is None for PTX that
    cannot be assembled; in this case ``reason`` says why. For PTX that was assembled, ``reason`` may say why the binary
    may not fuse accesses to shared memory as the binary of a GPU's driver does."""

    text: str
    name: str
    compiled: Compiled | None
    reason: str = ""


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
    """Do what ``microscope`` does, for a kernel that is compiled and linked. The fields ``blocks``, ``observer`` and
    ``log`` of ``options`` are ignored."""
    start = time.perf_counter()
    entry, compiled = program.entry.name, source.compiled
    kernel = compiled.readable(entry) if compiled else demangled(entry)
    in_ptx = ptx_accesses(program)
    machine, notes = _machine_accesses(source, program, in_ptx)
    whole = dimensions("grid", grid)
    cluster = cluster_dimensions(program.entry, whole, options.cluster)
    blocks = sample_blocks(whole, cluster) if sampled else None
    survey = _Surveyor(machine or MachineAccesses(), source.name, blocks, dimensions("block", block))
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
    exact = exact and machine is not None
    counters, parts, approximate = survey.counted(exact)
    accesses = by_line(parts)
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
        exact=exact and machine is not None and not machine.notes,
        words=words,
        seconds=time.perf_counter() - start,
        resources=compiled.resources.get(entry) if compiled else None,
        notes=[*notes, *survey.notes(), *cluster_notes(cluster)],
        approximate=approximate,
        printed=run.printed,
        pipeline=pipeline_of(log) if log else None,
        grid=whole,
        block=dimensions("block", block),
        shared_bytes=options.shared_bytes,
        included=included_texts([*labels, *(access.file for access in accesses)], source.name),
        advice=changes(parts, neighbours(in_ptx, source.name)),
        turns=sum(map(line_turns, parts)),
    )


class _Surveyor:
    """Counts the accesses of a whole run; or counts a sample twice, once for each choice of blocks, so that the two
    totals can be compared."""

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
        """Return the totals, the accesses of each instruction, and the names of the totals that are not exact. If
        ``exact`` is false, no total and no access counts as exact."""
        totals, parts = self.first.counters.total(), self.first.instructions()
        if exact:
            return totals, parts, self.first.counters.approximate()
        return totals, [replace(part, exact=False) for part in parts], frozenset(totals)

    def notes(self) -> list[str]:
        """Return notes about work that is not counted because its counters are not known."""
        products = self.first.counters.products_uncounted()
        if not products:
            return []
        text = (
            f"{APPROXIMATELY} {products:,} products by tcgen05.mma: what they read of shared memory, and how long they "
        )
        return [f"{text}keep the tensor cores busy, is not documented; no count and no bound includes it"]

    def verdict(self, run: Run, program: Program) -> tuple[bool, str]:
        """Return whether the counts are those of the whole grid, and a text that says which blocks were counted."""
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


def _machine_accesses(
    source: KernelSource, program: Program, accesses: Sequence[PtxAccess]
) -> tuple[MachineAccesses | None, list[str]]:
    """How the binary executes the accesses of the PTX, and notes on what could not be determined; None where there is no
    binary, or it cannot be read."""
    unknown = f"{APPROXIMATELY} all counts are those of the PTX; the binary may fuse, guard or remove accesses"
    if source.compiled is None:
        return None, [f"{unknown} (it cannot be assembled: {source.reason})"]
    try:
        code = parse_sass(disassemble(source.compiled.cubin))
    except UnavailableError as error:
        return None, [f"{unknown} ({error})"]
    machine = match_accesses(accesses, code.get(program.entry.name, []))
    if source.reason:
        fusible = dict.fromkeys(a.group for a in accesses if a.space == "shared" and a.kind in ("ld", "st"))
        machine.doubts += [(group, source.reason) for group in fusible]
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


def _no_kernel(name: str, text: str) -> str:
    """What to say of a source whose binary has no kernel."""
    template = re.search(_TEMPLATE.format(r"(\w+)"), text)
    if template:
        return f"{name}: {template[1]} is a template: name an instance of it, such as {template[1]}<8>"
    return f"{name} has no kernel"


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

#: Along an axis with at most this many blocks, every block is run.
FEW = 4


@dataclass(frozen=True)
class BlockSample:
    """A sample of a grid: the linear indices of its blocks in ascending order, and for each of two choices, how many
    blocks of the grid each block represents.

    Along each axis a grid is divided into its first block, its last block (which may extend beyond the edge of a
    matrix), and inner blocks. The two choices of blocks have different inner blocks. If both choices predict the same
    counts, inner blocks are assumed to behave alike, unless :func:`why_sample_may_mislead` gives a reason why other
    blocks may behave differently.
    """

    blocks: Ints
    weights: tuple[Ints, Ints]
    total: int

    def warp_weights(self, choice: int, threads: int) -> _Weights:
        """Make the function that ``Counters`` needs: it takes warp numbers and returns how many warps of the grid each
        of them represents, for blocks of ``threads`` threads."""
        return _Weights(self.blocks, self.weights[choice], -(-threads // WARP))


@dataclass(frozen=True)
class _Weights:
    blocks: Ints
    weights: Ints
    warps_per_block: int

    def __call__(self, warp_ids: Ints) -> Ints:
        return self.weights[np.searchsorted(self.blocks, warp_ids // self.warps_per_block)]


def sample_blocks(grid: tuple[int, int, int], cluster: tuple[int, int, int] = (1, 1, 1)) -> BlockSample:
    """Choose a sample of a grid, in whole clusters of blocks: clusters at corners and edges, and some inner ones.

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
    """Return the reason why the counts of the whole grid may differ from the sample's prediction, although its two
    choices of blocks predict the same counts; the text is empty if there is no reason.

    For example, if blocks distribute work among themselves by global atomics, or wait for one another, the work of a
    block depends on which other blocks are run.
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
    """What the microscope observed during one launch. ``print`` shows the source with its counters in the margin.

    Attributes
    ----------
    kernel, file, source : str
        The name of the kernel, the name of its file, and the text of the file.
    arrays : tuple
        One entry per argument: the array after the run, or None for a number.
    counters : dict of str to int
        The counters of the whole launch, under the names of the hardware's counters.
    accesses : list of Access
        The counters of each source line: requests, sectors, wavefronts, bank conflicts.
    findings : list of Finding
        The defects of the kernel. Each finding has a kind, a source line, a block, a thread and a text.
    run : Run
        How the run ended.
    exact : bool
        False if the run was stopped, if accesses of the binary could not be matched, or if the counts of a sample
        may not hold for the whole grid.
    words : str
        Which blocks were counted, as text.
    seconds : float
        The seconds that the run took on this machine.
    resources : Resources or None
        Registers and memory of the binary; None for PTX that cannot be assembled.
    notes : list of str
        Notes on how the counts may differ from those of the binary.
    included : dict of str to str
        The texts of the included files that have accesses or findings.
    printed : str
        What the kernel's threads printed.
    approximate : frozenset of str
        The counters that are not exact.
    pipeline : Pipeline or None
        The events at the mbarriers of one block; None if the kernel uses no mbarriers.
    grid, block : tuple of int
        The grid and the block of the launch.
    shared_bytes : int
        Bytes of dynamic shared memory of the launch.
    advice : list of Change
        Changes that would make source lines cheaper.
    turns : int
        The number of turns that all accesses take in the memory pipes of the multiprocessors; the changes in ``advice``
        save some of these turns.

    See Also
    --------
    microscope : Returns an observation.
    tilewright.pytest_plugin.cuda_kernel : Returns an observation in a test, and checks it.
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
    grid: Dim = (1, 1, 1)
    block: Dim = (1, 1, 1)
    shared_bytes: int = 0
    advice: list[Change] = field(default_factory=list)
    turns: int = 0

    @property
    def ok(self) -> bool:
        """Whether the kernel ran to its end and there are no findings."""
        return self.run.complete and not self.findings

    @property
    def defects(self) -> list[Defect]:
        """The findings in the form of records. A finding in an included file has the label of that file; the label is
        empty for a finding in the kernel's own file."""
        return [
            Defect(f.kind, f.line, f.block, f.thread, f.text, file_label(f.file, self.file), f.grade)
            for f in self.findings
        ]

    def require(self, **requirements: float | str) -> Observation:
        """Raise an error unless the launch satisfies all requirements.

        Parameters
        ----------
        **requirements : number or str
            Each keyword is a measure from the list in the section "Notes". If the value of a keyword is a number, the
            measure must equal the number; if the value is a text such as ``"<= 4.1"``, the comparison must hold. A call
            without keywords requires ``findings=0``.

        Returns
        -------
        Observation
            The observation itself.

        Raises
        ------
        RequirementError
            The launch does not satisfy a requirement. The error is also an AssertionError.
        UsageError
            A keyword is not the name of a measure.

        Notes
        -----
        - ``findings``: the number of findings, without those in a library's code. ``all_findings`` includes findings in
          a library's code. ``sure_findings`` leaves out findings in a library's code, and findings that break a rule of
          PTX but do no harm on today's GPUs.
        - ``bank_conflicts``, ``wavefronts``, ``wavefronts_per_request``, ``wavefronts_over_least``: counts of accesses
          to shared memory.
        - ``sectors``, ``sectors_per_request``, ``sectors_over_least``: counts of accesses to global and local memory.
          ``local_sectors`` counts the sectors of local memory alone, to which registers are spilled.
        - Any counter can be a measure under the hardware's name, as in
          ``require(**{"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 32})``.

        A measure ``…_over_least`` is the number of wavefronts or sectors, divided by the fewest that can access the
        same bytes. Each ratio is computed over all accesses of the launch together. A launch without accesses of the
        measure's kind breaks every requirement on a ratio, and so does a run that was stopped.

        Examples
        --------
        >>> import numpy as np, tilewright as tw
        >>> source = '''
        ... extern "C" __global__ void column(const float* x, float* y) {
        ...     y[threadIdx.x] = x[32 * threadIdx.x];
        ... }'''
        >>> x, y = np.ones(1024, np.float32), np.zeros(32, np.float32)
        >>> seen = tw.microscope(source, "column", 1, 32, [x, y]).require(findings=0, bank_conflicts=0)
        >>> seen.require(sectors_per_request="<= 4.1")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tilewright.errors.RequirementError: column breaks 1 of 1 requirement
        sectors_per_request <= 4.1: it is 18
          kernel.cu:3: 18 sectors per request (global ld, global st); let lanes access neighbours, ...: sectors 32 → 4
        """
        __tracebackhide__ = True  # pytest shows the line of the test that calls this
        asked = [required(name, comparison) for name, comparison in (requirements or {"findings": 0}).items()]
        broken = broken_requirements(asked, self.defects, self.accesses, self.counters, self._advised)
        if broken or not self.run.complete:
            stopped = [] if self.run.complete else [self.words]
            raise RequirementError("\n".join([*broken_text(self.kernel, self.file, len(asked), broken), *stopped]))
        return self

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
        return f"{self.kernel}: {counted([finding.grade for finding in self.findings])}; {self.words}"

    @property
    def _rows(self) -> list[SourceRow]:
        wrong = [(d.file, d.line, f.text_in_place) for d, f in zip(self.defects, self.findings, strict=True)]
        return source_rows(self.source, self.accesses, wrong, self.included, self._advised)

    @property
    def _advised(self) -> list[tuple[str, int, str]]:
        """File, line and text of the advice."""
        return [(change.before.file, change.before.line, str(change)) for change in self.advice]

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


# ---- the pipeline of a block -----------------------------------------------------------------------------------------
# Makes the data of the pipeline's pictures from the log of a run: timeline, phases of barriers, swizzled tiles.
#
# The interpreter's order of warps is one of many that are possible, and its copies arrive as late as they can. So the
# timeline does not show this order, but what it proves: which arrivals and bytes completed the phase that a warp waited for.
# A warp's run is cut into intervals, each from one wait to the next. An interval begins when the one before it has ended and
# the phase is complete; it takes one tick, or ``ASK`` if all that the warp did was to ask for copies.


# ---- its timeline ----------------------------------------------------------------------------------------------------


@dataclass
class _Interval:
    """The work of a warp from one wait to the next; ``barrier`` is -1 if no wait for an mbarrier came before the
    interval."""

    warp: int
    barrier: int = -1
    phase: int = -1
    lanes: int = 0
    event: LoggedEvent | None = None
    copies: list[LoggedEvent] = field(default_factory=list)
    products: int = 0
    arrivals: int = 0
    free: float = 0  # when the interval before it ended
    begin: float = 0
    end: float = 0


@dataclass
class _Copy:
    """Copies into one stage for one phase. ``begin`` is the time at which a warp requested the copies; that warp had
    waited for the phase ``freed`` before."""

    barrier: int
    phase: int
    begin: float
    end: float
    freed: tuple[int, int]


class PipelineTiming:
    """Divides the run of a block into intervals, and assigns a begin and an end in ticks to each interval."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        first = range(log.warps_of_block)  # the warps of the block that is shown
        self.own = {e.barrier for e in log.events if e.what == "init" and any(warp in first for warp in e.warps)}
        self.stages = sorted({e.barrier for e in log.events if e.what == "copy"} & self.own)
        self.with_bytes = {e.barrier for e in log.events if e.what in ("copy", "bytes", "expect")}
        self.intervals: dict[int, list[_Interval]] = {}
        self.of_event: list[list[_Interval]] = [self._join(event) for event in log.events]
        self.done: dict[tuple[int, int], float] = {}  # barrier, phase → when it was complete
        self.copies: dict[int, _Copy] = {}  # by number
        # Barrier, phase → the warp whose arrival completed it, -1 for a copy.
        self.last: dict[tuple[int, int], int] = {}
        self.stuck: list[tuple[int, LoggedEvent]] = []
        self._run()
        self.freed_by = self._pair()

    def _join(self, event: LoggedEvent) -> list[_Interval]:
        """The intervals that an event begins, or to which it belongs."""
        found = []
        for warp, lanes in event.warps.items():
            mine = self.intervals.setdefault(warp, [_Interval(warp)])
            if event.what == "pass":
                last = mine[-1]
                if (last.barrier, last.phase) == (event.barrier, event.phase - 1) and not last.lanes & lanes:
                    last.lanes |= lanes  # other threads of the warp, which wait with it
                    continue
                mine.append(_Interval(warp, event.barrier, event.phase - 1, lanes, event))
            elif event.what == "meet":
                mine.append(_Interval(warp))
            elif event.what == "copy":
                mine[-1].copies.append(event)
            elif event.what == "product":
                mine[-1].products += 1
            elif event.what in ("arrive", "expect"):
                mine[-1].arrivals += 1
            found.append(mine[-1])
        return found

    def _length(self, interval: _Interval) -> float:
        """The ticks that an interval takes."""
        if interval.products:
            return 1
        if interval.copies:
            return ASK
        if interval.barrier < 0:
            return 0
        return 1 if interval.arrivals or interval.barrier in self.with_bytes else ASK

    def _run(self) -> None:
        latest: dict[int, float] = {}  # barrier → the latest arrival of its phase
        phases: dict[int, int] = {}
        last: dict[int, int] = {}  # barrier → whose arrival that is, -1 for a copy
        ends: dict[int, float] = {}  # warp → when its last interval ended
        for intervals in self.intervals.values():
            intervals[0].end = ends[intervals[0].warp] = self._length(intervals[0])
        for event, intervals in zip(self.log.events, self.of_event, strict=True):
            what, barrier = event.what, event.barrier
            if what in ("pass", "meet"):
                ready = max((ends[interval.warp] for interval in intervals), default=0) if what == "meet" else 0
                for interval in intervals:
                    interval.free = ends[interval.warp]
                    interval.begin = max(interval.free, ready, self.done.get((barrier, interval.phase), 0))
                    interval.end = ends[interval.warp] = interval.begin + self._length(interval)
            elif what == "init":
                phases[barrier], latest[barrier] = 0, 0
            elif what == "copy":
                asked = max((interval.end for interval in intervals), default=0)
                freed = max(((interval.barrier, interval.phase) for interval in intervals), default=(-1, -1))
                self.copies[event.copy] = _Copy(barrier, event.phase, asked, asked + 1, freed)
            elif what in ("arrive", "expect", "bytes"):
                copy = self.copies.get(event.copy)
                time = copy.end if copy else max((interval.end for interval in intervals), default=0)
                if time >= latest.get(barrier, 0):
                    latest[barrier] = time
                    last[barrier] = -1 if copy else max((interval.warp for interval in intervals), default=-1)
                if copy:
                    copy.phase = event.phase - (event.phase > phases.get(barrier, 0))
            elif what == "stuck":
                self.stuck += [(warp, event) for warp in event.warps]
            if what in ("arrive", "expect", "bytes") and event.phase > phases.get(barrier, 0):
                self.done[barrier, phases.get(barrier, 0)] = latest[barrier]
                self.last[barrier, phases.get(barrier, 0)] = last[barrier]
                phases[barrier], latest[barrier] = event.phase, 0

    def _pair(self) -> dict[int, int]:
        """Stage → the barrier that its copies wait for, if they wait for another one than their own."""
        found = {}
        for stage in self.stages:
            waited = Counter(c.freed[0] for c in self.copies.values() if c.barrier == stage and c.freed[0] >= 0)
            best = next((barrier for barrier, _ in waited.most_common() if barrier not in self.stages), None)
            if best is not None:
                found[stage] = best
        return found

    # ---- the timeline

    def rows(self) -> tuple[list[PipelineRow], float]:
        """Return the rows of the timeline, and the ticks that the recorded part of the block's run takes."""
        own = {warp: intervals for warp, intervals in self.intervals.items() if warp < self.log.warps_of_block}
        spans = {warp: self._spans(warp, intervals) for warp, intervals in own.items()}
        with_products = any(interval.products for intervals in own.values() for interval in intervals)
        groups: dict[tuple[object, ...], list[int]] = {}
        for warp, of_warp in sorted(spans.items()):
            if of_warp:
                alike = tuple((s.kind, s.begin, s.end, s.stage, s.phase) for s, _ in of_warp)
                groups.setdefault((warp // 4 if with_products else 0, alike), []).append(warp)
        names = {warp: _warps(group) for group in groups.values() for warp in group}
        named = [
            PipelineRow(_warps(group), "warps", [self._released(span, where, names) for span, where in spans[group[0]]])
            for group in groups.values()
        ]
        asking = [row for row in named if any(span.kind == "ask" for span in row.spans)]
        stages = [PipelineRow(f"stage {self._label(s)}", "stage", self._stage(s)) for s in self.stages]
        rows = [*asking, *stages, *(row for row in named if row not in asking)]
        ticks = max((s.begin if s.end is None else s.end for row in rows for s in row.spans), default=0)
        shown = [replace(row, spans=[s for s in row.spans if s.begin < TICKS][:SPANS]) for row in rows]
        return shown, ticks + any(span.end is None for row in rows for span in row.spans)

    def _released(self, span: PipelineSpan, where: tuple[int, int], names: dict[int, str]) -> PipelineSpan:
        """A wait for a phase of a barrier, with the row that ends it: the stage, or the warps whose arrival was the last."""
        last = self.last.get(where)
        if span.kind != "wait" or last is None:
            return span
        by = f"stage {self._label(where[0])}" if last < 0 else names.get(last, self._who([last]))
        return replace(span, by=by, words=f"{span.words}, which {by} complete{'s' * (not by.startswith('warps'))}")

    def _spans(self, warp: int, intervals: Sequence[_Interval]) -> list[tuple[PipelineSpan, tuple[int, int]]]:
        """What a warp does, each with the barrier and phase that it waited for before."""
        found: list[tuple[PipelineSpan, tuple[int, int]]] = []
        for interval in intervals:
            line, stage = _line(interval.event), self._label(interval.barrier)
            what = f"phase {interval.phase} (parity {interval.phase & 1}) of {self._name(interval.barrier)}"
            if interval.begin > interval.free and interval.barrier >= 0:
                span = PipelineSpan(
                    "wait", interval.free, interval.begin, stage, interval.phase, f"waits for {what}", line
                )
                found.append((span, (interval.barrier, interval.phase)))
            if interval.end == interval.begin:
                continue
            name = self._name(interval.barrier)
            after = f"after {what}" if interval.phase >= 0 else f"after {name}, which it may pass at once"
            span = PipelineSpan("work", interval.begin, interval.end, stage, interval.phase, f"works {after}", line)
            if interval.products:
                words = f"multiplies ({interval.products} wgmma) {after}" if interval.barrier >= 0 else "multiplies"
                span = PipelineSpan("multiply", interval.begin, interval.end, stage, interval.phase, words, line)
            elif interval.copies:
                into = interval.copies[0]
                nbytes = sum(copy.amount for copy in interval.copies)
                words = f"asks for {nbytes:,} bytes at {self._name(into.barrier)}, phase {into.phase}"
                label = self._label(into.barrier)
                span = PipelineSpan("ask", interval.begin, interval.end, label, into.phase, words, _line(into))
            found.append((span, (interval.barrier, interval.phase)))
        for stuck, event in self.stuck:
            if stuck == warp:
                what = f"phase {event.phase} (parity {event.amount}) of {self._name(event.barrier)}"
                stage = self._label(event.barrier)
                words = f"waits for ever for {what}"
                span = PipelineSpan("wait", intervals[-1].end, None, stage, event.phase, words, _line(event))
                found.append((span, (event.barrier, event.phase)))
        return found

    def _stage(self, stage: int) -> list[PipelineSpan]:
        """When a stage is being filled, and when it is full: until the barrier says that may be filled again."""
        copies: dict[int, list[_Copy]] = {}
        for copy in self.copies.values():
            if copy.barrier == stage:
                copies.setdefault(copy.phase, []).append(copy)
        label, found = self._label(stage), []
        for phase, several in sorted(copies.items()):
            begin, arrived = min(c.begin for c in several), max(c.end for c in several)
            words = f"phase {phase}: {len(several)} cop{'ies' if len(several) > 1 else 'y'} under way"
            complete = self.done.get((stage, phase))
            found.append(PipelineSpan("copy", begin, arrived, label, phase, words))
            if complete is None:
                continue
            end = self._freed(stage, phase, copies.get(phase + 1, []), complete)
            found.append(
                PipelineSpan("full", complete, end, label, phase, f"phase {phase} is complete: the stage is full")
            )
        return found

    def _freed(self, stage: int, phase: int, following: list[_Copy], complete: float) -> float:
        """When a stage may be filled again: the phase that the next copies waited for is complete, or the last interval ends
        that waited for this one."""
        freed = [self.done.get(c.freed, 0) for c in following if c.freed[0] == self.freed_by.get(stage, -2)]
        every = (interval for intervals in self.intervals.values() for interval in intervals)
        used = [interval.end for interval in every if (interval.barrier, interval.phase) == (stage, phase)]
        return max(complete, *(freed or used or [complete]))

    # ---- barriers

    def histories(self) -> list[BarrierHistory]:
        """Return the first events at the barriers of the pipeline's first stage; if the pipeline has no stages, at the
        first barriers for which warps wait."""
        waited = [e.barrier for e in self.log.events if e.what in ("pass", "stuck") and e.barrier in self.own]
        chosen = list(dict.fromkeys(waited))
        if self.stages:
            first = self.stages[0]
            chosen = [first, self.freed_by[first]] if first in self.freed_by else [first]
        return [self._history(barrier) for barrier in chosen[:BARRIERS]]

    def _history(self, barrier: int) -> BarrierHistory:
        events: list[BarrierEvent] = []
        count = 0
        for e in self.log.events:
            if e.barrier != barrier or e.what == "copy":
                continue
            count = max(count, e.amount) if e.what == "init" else count
            who = "copy engine" if e.what == "bytes" and e.copy else self._who(e.warps)
            what = "wait" if e.what == "stuck" else e.what
            event = BarrierEvent(what, who, e.amount, e.pending, e.bytes, e.phase, _line(e))
            if not events or events[-1] != event:
                events.append(event)
        label = self._label(barrier)
        role = f"stage {label} is full" if barrier in self.stages else ""
        role = f"stage {label} may be filled" if barrier in self.freed_by.values() else role
        return BarrierHistory(self._name(barrier), count, events[:EVENTS], role)

    # ---- words

    def _label(self, barrier: int) -> str:
        """The number of the stage to which a barrier belongs; empty for none."""
        if barrier in self.stages:
            return str(self.stages.index(barrier))
        for stage, other in self.freed_by.items():
            if other == barrier:
                return str(self.stages.index(stage))
        name = self._name(barrier)
        return name.rpartition("[")[2].rstrip("]") if name.endswith("]") else ""

    def _name(self, barrier: int) -> str:
        return self.log.names.get(barrier, "a barrier")

    def _who(self, warps: Iterable[int]) -> str:
        """Warps in words, with their block if it is not the one that is shown."""
        by_block: dict[int, list[int]] = {}
        for warp in sorted(warps):
            by_block.setdefault(warp // self.log.warps_of_block, []).append(warp % self.log.warps_of_block)
        texts = [
            _warps(group) + (f" of block {block} of the cluster" if block else "") for block, group in by_block.items()
        ]
        return " and ".join(texts)


def _warps(numbers: Sequence[int]) -> str:
    """Warps in words.

    >>> _warps([4]), _warps([0, 1, 2, 3]), _warps([0, 2])
    ('warp 4', 'warps 0–3', 'warps 0, 2')
    """
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"warps {numbers[0]}–{numbers[-1]}"
    return f"warps {', '.join(map(str, numbers))}"


def _line(event: LoggedEvent | None) -> int:
    return 0 if event is None or event.ins is None else source_line(event.ins)


def source_line(ins: Instruction) -> int:
    """Return the source line of an instruction; for an instruction of an inlined function, return the line of the
    call."""
    outer = next((call for call in reversed(ins.calls) if not call.in_library), None)
    return outer.line if outer is not None else ins.users.line


# ---- all pictures ----------------------------------------------------------------------------------------------------


def has_mbarriers(code: Iterable[Instruction]) -> bool:
    """Whether a kernel uses mbarriers, so that there is a pipeline to record."""
    return any(ins.parts[0] == "mbarrier" for ins in code)


def pipeline_of(log: EventLog) -> Pipeline | None:
    """Return the data from which a pipeline's pictures are drawn; None if the block used no mbarriers and copied no
    boxes."""
    tiles = [_tile(tile) for tile in log.tiles[:TILES]]
    if not any(event.what in ("pass", "stuck") for event in log.events):
        return Pipeline(log.block, 0, log.whole, [], [], tiles) if tiles else None
    timing = PipelineTiming(log)
    rows, ticks = timing.rows()
    if not any(span.kind != "work" for row in rows for span in row.spans):
        rows, ticks = [], 0  # nothing waited, and nothing was copied or multiplied
    whole = log.whole and ticks <= TICKS and len(rows) <= ROWS
    return Pipeline(log.block, min(ticks, TICKS), whole, rows[:ROWS], timing.histories(), tiles)


def _tile(tile: LoggedTile) -> SwizzledTile:
    """A recorded tile as plain data."""
    box = SwizzledTile(source_line(tile.ins), tile.swizzle, tile.row_bytes, tile.cells.tolist())
    if tile.reader is None:
        return box
    return replace(
        box,
        operand=tile.operand,
        reader_line=source_line(tile.reader),
        reader_swizzle=SWIZZLES[tile.mode],
        reads=tile.reads.tolist(),
        row=tile.row,
        column=tile.column,
    )
