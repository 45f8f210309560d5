"""Explains CUDA kernels that multiply matrices, for a GPU that this machine need not have.

An explanation compares the counts of a run with formulas, and has the kernel's occupancy and bounds of its time. A
bound is the least time in which one resource of the GPU can do its work for the product. For a pipelined kernel a time
is predicted from what each block does, as the microscope counted it.

``run_explanations`` makes all explanations of one call of ``tilewright explain``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...gpu.runtime.nvrtc import Compiled, compiler
from ...host.machine import machine
from ...kernels.catalog import find
from ...kernels.cuda_kernel import CudaKernel, Launch
from ...records.explanation import Access, Bound, Defect, Explanation, Formula, TimePart
from ...records.unit_counters import TENSOR_CYCLES
from ...simulator.assembly.source_files import file_label
from ...simulator.counters.sectors import SECTOR
from ...simulator.findings import LAUNCH, STEP_LIMIT, Finding
from ...simulator.gpus import GpuModel, PipelineRates, find_gpu
from ...simulator.machine.arguments import whole_number
from ...simulator.machine.options import MAX_BYTES, MAX_STEPS, RunOptions
from ...simulator.machine.tensor_map import TensorMap
from ...simulator.microscope import KernelSource, Observation, observe
from ...simulator.occupancy import Occupancy, occupancy
from ..inputs.environment import environment
from ..inputs.formats import format_of
from ..inputs.options import Shape, check_names, param_sets, parse_params, parse_sizes
from .advice import advice_of
from .checked_launch import CheckedLaunch, check_launch, in_boxes, judged, operands
from .measure import check_gpu, measured


def explain(
    kernel: CudaKernel,
    m: int,
    n: int,
    k: int,
    *,
    gpu: str = "H200",
    params: Mapping[str, int] | None = None,
    whole: bool | None = None,
    seed: int = 1,
    max_steps: int = MAX_STEPS,
    progress: Callable[[int, int], None] | None = None,
) -> Explanation:
    """Explain ``kernel`` for C[m×n] = A[m×k]·B[k×n] on ``gpu``. The microscope runs the kernel on random operands and
    counts what it does.

    ``params`` are the parameters that differ from their defaults. With ``whole``, every block is run. If ``whole`` is
    None, every block is run up to m·n·k = 512³; of a larger launch a sample of the blocks is run. A run is stopped
    after ``max_steps`` steps. Raises UsageError for an unknown GPU, for parameters or sizes that are not allowed, and
    for a kernel with another signature; and what the compiler and the microscope raise.
    """
    prepared = check_launch(kernel, m, n, k, gpu=gpu, params=params, whole=whole)
    return explain_launch(prepared, seed=seed, max_steps=max_steps, progress=progress)


def explain_launch(
    p: CheckedLaunch, *, seed: int = 1, max_steps: int = MAX_STEPS, progress: Callable[[int, int], None] | None = None
) -> Explanation:
    """Explain a launch that ``check_launch`` has checked and compiled, as ``explain`` does."""
    kernel, size = p.kernel, (p.m, p.n, p.k)
    a, b, c = operands(kernel, *size, seed)
    args = in_boxes(kernel, p.plain.arguments((a, b, c)))
    observed = observed_of(p, args, max_steps, progress)
    result = judged(p, a, b, observed, seed=seed, max_steps=max_steps)
    tensor_cycles = observed.counters.get(TENSOR_CYCLES, 0)
    work = LeastWork(2 * p.m * p.n * p.k, sum(array.nbytes for array in (a, b, c)))
    unit = arithmetic_unit(p.card, kernel.dtypes[0], kernel.precision, matrix="mma." in p.compiled.ptx)
    run, accesses, approximate = _run(p, observed), observed.accesses, observed.approximate
    resident = occupancy_of(p.compiled, p.program.entry.name, p.launch, p.card)
    bounds = time_bounds(p.card, unit.gflops, work, p.launch.blocks, observed.accesses, tensor_cycles)
    timed = observed.run.complete and result.verified["ok"] is not False and resident.blocks

    def rerun(text: str, macros: Mapping[str, str]) -> Observation:
        """Run the same launch with another source."""
        options = p.compiler_options | {"defines": p.compiler_options.get("defines", {}) | macros}
        other = check_launch(
            dataclasses.replace(kernel, source=text),
            *size,
            gpu=p.card.name,
            params=p.params,
            whole=not p.sampled,
            **options,
        )
        return observed_of(other, args, max_steps)

    advice = advice_of(
        *(observed, p.card, bounds if timed else [], resident),
        rerun=None if kernel.in_engine else rerun,
        macros=p.compiler_options.get("defines", {}),
    )
    if observed.exact and not run["exact"]:  # the sample may have missed blocks
        accesses, approximate = [dataclasses.replace(a, exact=False) for a in accesses], frozenset(observed.counters)
    return Explanation(
        kernel=kernel.name,
        file=kernel.path.name,
        source=kernel.source,
        m=p.m,
        n=p.n,
        k=p.k,
        dtype=kernel.dtypes[0],
        params=p.params,
        about=kernel.about,
        gpu=card_facts(p.card, unit.gflops),
        launch=dataclasses.asdict(p.launch) | {"blocks": p.launch.blocks, "threads": p.launch.threads},
        resources=dataclasses.asdict(p.compiled.resources[p.program.entry.name]),
        occupancy=occupancy_facts(p.card, resident),
        accesses=accesses,
        counters=observed.counters,
        formulas=formulas_of(kernel, *size, p.params, observed.accesses),
        bounds=bounds,
        defects=_defects(kernel, result.findings),
        verified=result.verified,
        run=run,
        included=observed.included,
        printed=observed.printed,
        approximate=sorted(approximate),
        pipeline=observed.pipeline,
        predicted=_predicted(p, observed, args),
        advice=advice,
        notes=list(
            dict.fromkeys(
                [
                    *(*stopped_notes(observed), *result.notes, *p.notes, *kernel.notes),
                    *(*observed.notes, *unknown(p.card, unit)),
                ]
            )
        ),
        environment=environment(operands=f"uniform [-1, 1), seed {seed}")
        | {"compiler": compiler(), "arch": p.arch, **p.compiler_options},
    )


def observed_of(
    p: CheckedLaunch, args: Sequence[Any], max_steps: int, progress: Callable[[int, int], None] | None = None
) -> Observation:
    """What the microscope observes when it runs a launch with these arguments."""
    most = (machine().memory_total or 2 * MAX_BYTES) // 2
    options = RunOptions(p.launch.shared_bytes, [p.plain.result], None, max_steps, most, progress, outputs_empty=True)
    source = KernelSource(p.kernel.source, str(p.kernel.path), p.compiled)
    return observe(source, p.program, p.launch.grid, p.launch.block, args, options, sampled=p.sampled)


def _predicted(p: CheckedLaunch, observed: Observation, args: Sequence[Any]) -> list[TimePart]:
    """The parts of the predicted time of a pipelined kernel; empty for a kernel that is not pipelined, and for a run
    that was stopped."""
    needs = p.compiled.resources[p.program.entry.name]
    shared = needs.shared_bytes + p.launch.shared_bytes
    work = work_of(observed, args, threads=p.launch.threads, registers=needs.registers, shared_bytes=shared)
    return predicted_time(work, p.card) if work.pipelined and observed.run.complete else []


def occupancy_of(compiled: Compiled, entry: str, launch: Launch, card: GpuModel) -> Occupancy:
    """The occupancy of a launch: the number of blocks of a compiled kernel that a multiprocessor of the GPU holds."""
    needs = compiled.resources[entry]
    return occupancy(card, launch.threads, needs.registers, needs.shared_bytes + launch.shared_bytes)


def card_facts(card: GpuModel, peak: float | None) -> dict[str, Any]:
    """The facts about a GPU that a record contains. ``peak`` is the GPU's rate of arithmetic in GFLOPS."""
    major, minor = card.compute_capability
    return {
        "name": card.name,
        "compute_capability": f"{major}.{minor}",
        "sms": card.sms,
        "clock_mhz": card.clock_mhz,
        "peak_gflops": peak,
        "bandwidth_gbs": card.bandwidth_gbs,
        "source": card.source,
    }


def occupancy_facts(card: GpuModel, resident: Occupancy) -> dict[str, Any]:
    """The facts about the occupancy of a launch that a record contains, with its dependence on registers and shared
    memory."""
    limits = card.limits
    by_registers = [
        (count, occupancy(card, resident.threads, count, resident.shared).warps)
        for count in range(16, limits.registers_per_thread + 1)
    ]
    by_shared = [
        (size, occupancy(card, resident.threads, resident.registers, size).warps)
        for size in range(0, limits.shared_per_block_optin + 1, 1024)
    ]
    return {
        **{name: getattr(resident, name) for name in ("blocks", "warps", "max_warps", "fraction", "limits")},
        **{name: getattr(resident, name) for name in ("threads", "registers", "shared")},
        "limiting": list(resident.limiting),
        "by_registers": by_registers,
        "by_shared": by_shared,
    }


def _defects(kernel: CudaKernel, findings: Sequence[Finding]) -> list[Defect]:
    """The findings of the microscope, in which arguments have the names of the source's parameters."""
    function = kernel.entry.partition("<")[0].rpartition("::")[2]
    signature = re.search(rf"\b{function}\s*\(([^)]*)\)", kernel.source)
    names = re.findall(r"(\w+)\s*(?:,|$)", signature[1]) if signature else []
    if len(names) != 6:
        names = list("abcmnk")

    def named(match: re.Match[str]) -> str:
        return names[int(match[1])]

    return [
        Defect(
            *(f.kind, f.line, f.block, f.thread, re.sub(r"\bargument ([0-5])\b", named, f.text)),
            file=file_label(f.file, str(kernel.path)),
            grade=f.grade,
        )
        for f in findings
        if f.kind not in (STEP_LIMIT, LAUNCH)  # the occupancy says of a launch that it is impossible
    ]


def stopped_notes(observed: Observation) -> list[str]:
    """The places at which a run was stopped at its limit of steps; empty if it was not stopped."""
    return [f"line {f.line}: {f.text}" if f.line else f.text for f in observed.findings if f.kind == STEP_LIMIT]


def _run(p: CheckedLaunch, observed: Observation) -> dict[str, Any]:
    run = observed.run
    unseen = _edges_unseen(p) if run.sampled else ""
    return {
        "blocks_run": run.blocks_run,
        "blocks_total": run.blocks_total,
        "steps": run.steps,
        "complete": run.complete,
        "exact": observed.exact and not unseen,
        "words": "; ".join([observed.words, unseen] if unseen else [observed.words]),
        "seconds": observed.seconds,
    }


def _edges_unseen(p: CheckedLaunch) -> str:
    """The reason why a sample of blocks may have missed the blocks that extend beyond an edge of C: if blocks are
    numbered only along x, their numbers do not tell which blocks these are. Empty if the sample cannot have missed
    any."""
    if p.launch.grid[0] != p.launch.blocks or not p.kernel.tile:
        return ""
    width, height = (side(m=p.m, n=p.n, k=p.k, **p.params) for side in p.kernel.tile)
    if p.n <= width or p.m <= height or (p.n % width == 0 and p.m % height == 0):
        return ""
    return f"they are numbered along x alone, and which hang over an edge of C is not known: tiles of {width}×{height}"


# ---- formulas --------------------------------------------------------------------------------------------------------
# Counts by the formulas of a kernel's header and of the sources, compared with what the microscope counted.


_SPACES = {"load": ("ld", "cp.async"), "store": ("st",)}


def formulas_of(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    """The formulas of a kernel for a product of m×n×k, each with its value and the count of a run."""
    return [*_of_header(kernel, m, n, k, params, accesses), *_s3_1(kernel, m, n, k, params, accesses)]


def counted_value(accesses: Sequence[Access], name: str) -> int:
    """The microscope's count for a formula, which is named after what it counts, such as ``global_load_sectors``.

    >>> counted_value([Access(7, "global", "ld", 4, requests=2, bytes=256, sectors=8)], "global_load_sectors")
    8
    """
    space, kind, what = name.split("_")
    return sum(getattr(a, what) for a in accesses if a.space == space and a.kind in _SPACES[kind])


def _of_header(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    formulas = []
    for name, formula in kernel.formulas.items():
        space, kind, what = name.split("_")
        value = formula(m=m, n=n, k=k, **params)
        formulas.append(
            Formula(kernel.row, f"{space} {kind}s, {what}", formula.text, value, counted_value(accesses, name))
        )
    return formulas


def _s3_1(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    """S3.1: operations for each element loaded from or stored to global memory, by the tile and as counted."""
    moved = sum(a.sectors for a in accesses if a.space == "global") * SECTOR
    elements = moved / format_of(kernel.dtypes[0]).itemsize
    if not kernel.tile or not elements:
        return []
    w, h = (side(m=m, n=n, k=k, **params) for side in kernel.tile)
    what = f"operations for an element moved, tile {w}×{h}"
    value = operations_per_access(w, h, k) if k else None
    return [Formula("S3.1", what, "2whk / (wh + wk + kh)", value, 2 * m * n * k / elements)]


def operations_per_access(w: float, h: float, k: float | None = None) -> float:
    """The operations for each element that a block of C of w × h accesses: 2whk/(wh + wk + kh). If k is None, the limit
    for a large k is returned: 2/(1/w + 1/h), as in S3.1 (``docs/sources.md``).

    >>> operations_per_access(16, 64), round(operations_per_access(16, 64, 1024), 2)
    (25.6, 25.28)
    """
    limit = 2 / (1 / w + 1 / h)
    return limit if k is None else 2 * w * h * k / (w * h + w * k + k * h)


# ---- pipeline time ---------------------------------------------------------------------------------------------------
# The time that a pipelined kernel is predicted to take, from its stages: launch, fill, steady state, epilogue.
#
# Blocks run in generations: as many at once as the multiprocessors hold, until all have run. A block starts and waits
# until its first copies arrive (fill), takes turns with the others on the units of its multiprocessor and on the memories
# (steady state), and writes its last tile (epilogue). Where a multiprocessor holds several blocks, each fills and drains
# while others compute, so fill and epilogue are then a part of what the steady state must hide, but for the first and the
# last.
#
# In the steady state every unit has its work, and alone would take as long as its bound. The kernel also waits: each round
# of copies takes the latency of memory. Units with similar times slow each other down, because none is always busy: the
# steady state takes the fourth root of the sum of the fourth powers of all times. For two equal times this is 19 % more
# than one.


#: The exponent p in (Σ tᵖ)^(1/p), which combines the times t of the units. With p = 1 the times add up; with p = ∞ only the
#: longest counts. Of the integers, 4 is nearest to the measured times of the asynchronous kernels in the tests. All other
#: figures of the model are rates of the GPU.
EXPONENT = 4
#: A unit is named, in addition to the slowest one, if its time is at least this fraction of the slowest unit's time.
_NAMED = 0.6


def predicted_time(work: PipelineWork, card: GpuModel) -> list[TimePart]:
    """The parts of the predicted time of a launch. The model assumes that the kernel ran just before, so that operands that
    fit in the L2 cache are there.

    Returns an empty list if the rates of the GPU were not measured, or if a block does not fit on a multiprocessor.
    """
    most = occupancy(card, work.threads, work.registers, work.shared_bytes).blocks
    if card.rates is None or not most or not work.blocks:
        return []
    return _Launch(work, card, card.rates, most).parts()


@dataclass(frozen=True)
class _Launch:
    """The work of a launch on a GPU each of whose multiprocessors holds at most ``most`` blocks of the kernel at
    once."""

    work: PipelineWork
    card: GpuModel
    rates: PipelineRates
    most: int

    # ---- how the blocks are spread

    @property
    def resident(self) -> int:
        """The number of blocks that are resident at once on the busiest multiprocessor."""
        return min(self.most, self._on_each)

    @property
    def generations(self) -> int:
        return math.ceil(self.work.blocks / (self.card.sms * self.most))

    @property
    def _on_each(self) -> int:
        return math.ceil(self.work.blocks / self.card.sms)

    @property
    def exposed(self) -> int:
        """The number of pipeline fills and epilogues that no other block hides. If several blocks are on a
        multiprocessor, the other blocks work during the fill and the epilogue of one."""
        return self.generations if self.resident == 1 else 1

    # ---- seconds

    @property
    def cycle(self) -> float:
        """The seconds of a clock cycle; the clock is lower while tensor cores work."""
        mhz = self.rates.tensor_clock_mhz if self.work.tensor_cycles else self.card.clock_mhz
        return 1e-6 / (mhz or math.inf)

    @property
    def far(self) -> bool:
        """Whether the operands do not fit in the L2 cache."""
        return self.work.operand_bytes > self.rates.l2_bytes

    @property
    def latency(self) -> float:
        return self.rates.l2_latency + (self.rates.memory_latency if self.far else 0)

    @property
    def fill(self) -> float:
        return self.rates.block_start + self.latency

    @property
    def drain(self) -> float:
        """The seconds until the last tiles of all resident blocks are written."""
        at_once = min(self.work.blocks, self.card.sms * self.resident)
        return at_once * self.work.written / (self.rates.l2_write_gbs * 1e9)

    @property
    def own_instructions(self) -> float:
        """The seconds in which a warp issues its instructions if each needs the result of the one before."""
        warps = -(-self.work.threads // 32)
        return self.work.instructions / warps * self.rates.instruction_cycles * self.cycle

    def units(self) -> dict[str, float]:
        """The seconds that each unit alone needs for its work, and those that the blocks wait ("latency")."""
        work, rates, quarters = self.work, self.rates, self.card.limits.sub_partitions
        blocks = self._on_each * work.busiest
        read = work.blocks * (work.copied + work.loaded)
        repeated = max(0.0, read - work.read_bytes)  # bytes that another block has read before
        l2 = (read - repeated) / rates.l2_first_gbs + repeated / rates.l2_gbs
        if self.resident > 1:
            l2 += work.blocks * work.written / rates.l2_write_gbs
        times = {
            "tensor cores": blocks * work.tensor_cycles / quarters * self.cycle,
            "L1 and shared memory": blocks * work.turns * self.cycle,
            "issue": blocks * work.instructions / quarters * self.cycle,
            "L2 cache": l2 * 1e-9,
            "starts of blocks": self._on_each * rates.block_interval,
            "latency": self.waits(),
        }
        if work.groups:  # one group's own products, and the hand-over of stages between them
            own = work.tensor_cycles / quarters / work.groups * self.cycle + work.phases * rates.hand_over
            times["tensor cores"] = max(times["tensor cores"], self.generations * own * work.busiest)
        if work.rounds > 1:
            times["dependent instructions"] = self.generations * self.own_instructions
        if self.far:  # each byte is counted once; how many are read again after L2 evicted them is not known
            times["device memory"] = work.operand_bytes / (rates.memory_gbs * 1e9)
        return times

    def waits(self) -> float:
        """The seconds that blocks wait for memory, without the exposed fills and epilogues. The seconds are summed over
        the generations: the sets of blocks that run one after another."""
        rounds = max(0.0, self.work.rounds * self.work.busiest - 1)
        waits = self.generations * rounds * (self.latency + self.rates.hand_over)
        if self.work.rounds <= 1:  # load, compute and store: one after the other
            waits += self.generations * self.own_instructions
        return waits + (self.generations - self.exposed) * (self.fill + self.rates.l2_latency)

    # ---- parts

    def parts(self) -> list[TimePart]:
        """The parts, in their order."""
        times = self.units()
        steady = sum(seconds**EXPONENT for seconds in times.values()) ** (1 / EXPONENT)
        drain = self.rates.l2_latency if self.resident > 1 else self.rates.l2_latency + self.drain
        each = f"{self.exposed} generations of blocks, each " if self.exposed > 1 else ""
        return [
            TimePart("launch", self.rates.launch, "from one launch to the next"),
            TimePart("fill", self.exposed * self.fill, each + self._fill_words()),
            TimePart("steady state", steady, _steady_words(times)),
            TimePart("epilogue", self.exposed * drain, f"{each}until the last tiles of all blocks at once are written"),
        ]

    def _fill_words(self) -> str:
        place = "device memory" if self.far else "the L2 cache"
        start, wait = 1e6 * self.rates.block_start, 1e6 * self.latency
        return f"{start:.2f} µs until a block asks for data, {wait:.2f} µs until they come from {place}"


def _steady_words(times: dict[str, float]) -> str:
    """The unit that limits the time, and the units that take nearly as long."""
    (first, longest), *others = sorted(times.items(), key=lambda item: -item[1])
    near = [f"{name} {1e6 * seconds:,.1f}" for name, seconds in others if seconds >= _NAMED * longest]
    return f"bound by {first}: alone {1e6 * longest:,.1f} µs" + (f"; {', '.join(near)} µs" if near else "")


# ---- bounds of time --------------------------------------------------------------------------------------------------

#: The sectors of global memory that L1 moves in one cycle (a turn): 128 bytes.
SECTORS_A_TURN = 4
#: The compute capability of the GPU on which the rules of sectors and banks were measured.
MEASURED = (9, 0)


@dataclass(frozen=True)
class LeastWork:
    """The least work of any kernel for a product: the operations, and the bytes of the operands, each moved once."""

    operations: int
    bytes: int


@dataclass(frozen=True)
class ArithmeticUnit:
    """The unit with which a kernel computes: its name, and its rate in GFLOPS, or None if the rate is not known."""

    name: str
    gflops: float | None


def arithmetic_unit(card: GpuModel, dtype: str, precision: str, *, matrix: bool) -> ArithmeticUnit:
    """The unit that computes with operands of ``dtype``. ``matrix`` says that the kernel has matrix instructions, whose
    format is that of ``precision``.

    >>> from tilewright.simulator.gpus import find_gpu
    >>> arithmetic_unit(find_gpu("A100"), "float32", "tf32", matrix=True)
    ArithmeticUnit(name='matrix instructions on tf32', gflops=156000.0)
    >>> arithmetic_unit(find_gpu("T4"), "bfloat16", "standard", matrix=True).gflops is None
    True
    """
    if not matrix:
        return ArithmeticUnit(dtype, {"float32": card.fp32_gflops, "float64": card.fp64_gflops}.get(dtype))
    if dtype == "float64":
        return ArithmeticUnit("matrix instructions on float64", card.fp64_tensor_gflops)
    short = {"float16": "f16", "bfloat16": "bf16"}.get(dtype, precision)
    name = f"matrix instructions on {dtype if short == 'standard' else short}"
    return ArithmeticUnit(name, card.tensor_gflops.get(short))


def time_bounds(
    card: GpuModel, peak: float | None, work: LeastWork, blocks: int, accesses: Sequence[Access], tensor_cycles: int = 0
) -> list[Bound]:
    """The least time that each resource needs: arithmetic, the memories, and the memory pipes of the multiprocessors.

    - Device memory must move each operand once.
    - The memory pipe of a multiprocessor (L1 and shared memory) moves four sectors of global memory, or one wavefront of
      shared memory, in each cycle. If there are fewer blocks than multiprocessors, some multiprocessors are idle.
    - A kernel with ``wgmma`` also has a bound by the tensor cores: the cycles for which its instructions keep them busy.
    - If the copy engine moves data past L1, and the rate of the L2 cache was measured, there is a bound by the L2
      cache. The bound by the L2 cache counts the bytes that arrive: the bytes of a multicast count once for each block
      that receives them.

    The model has no latency, so a launch takes longer than any of its bounds.
    """
    limits = []
    busy = min(blocks, card.sms)
    if peak:
        limits.append(Bound("arithmetic", work.operations, "operations", peak * 1e9 * busy / card.sms))
    if tensor_cycles and card.clock_mhz:
        each = card.limits.sub_partitions * card.clock_mhz * 1e6
        limits.append(Bound("tensor cores", tensor_cycles, "cycles", busy * each))
    if card.bandwidth_gbs:
        limits.append(Bound("device memory", work.bytes, "bytes", card.bandwidth_gbs * 1e9))
    past_l1 = SECTOR * sum(a.sectors for a in accesses if a.space == "global" and a.kind.startswith("tma "))
    if past_l1 and card.rates:
        limits.append(Bound("L2 cache", past_l1, "bytes", card.rates.l2_gbs * 1e9))
    if card.clock_mhz:
        turns = sum(map(turns_of, accesses))
        limits.append(Bound("L1 and shared memory", turns, "turns", busy * card.clock_mhz * 1e6))
    return limits


def turns_of(access: Access) -> int:
    """The cycles (turns) that an access takes in a multiprocessor's memory pipe. An access to shared memory takes one
    turn for each wavefront. An access to global memory takes one turn for each four sectors, and at least one for each
    request.

    Writes of the copy engine to shared memory count as no turns. A kernel with both copies and ``wgmma`` was measured
    to take 12 % less time than the sum of the wavefronts of both (``benchmarks/pipeline-rates-h200.jsonl``).
    """
    if access.space == "shared":
        return access.wavefronts
    return 0 if access.kind.startswith("tma ") else max(access.requests, -(-access.sectors // SECTORS_A_TURN))


def unknown(card: GpuModel, unit: ArithmeticUnit) -> list[str]:
    """Notes on what is not known about a GPU: the rates without which a bound is missing, and the rules that are assumed
    because they were not measured on this GPU."""
    missing = [
        ("arithmetic", f"rate for {unit.name}", unit.gflops),
        ("device memory", "bandwidth", card.bandwidth_gbs),
        ("L1 and shared memory", "clock", card.clock_mhz),
    ]
    notes = [
        f"no bound by {name}: the {card.name}'s {what} is not known here" for name, what, rate in missing if not rate
    ]
    if card.compute_capability != MEASURED:
        notes.append(
            f"the rules of sectors and banks were measured on an H200; that the {card.name} follows them, and that its L1 "
            "takes a turn a cycle, is assumed"
        )
    return notes


# ---- what each block does --------------------------------------------------------------------------------------------

#: The kinds of accesses that read global memory: those of the copy engine, and those of threads.
_COPY, _LOADS = "tma load", ("ld", "cp.async")
#: The unit of stores to the L2 cache, in bytes: to store half a unit takes as long as to store a whole one.
L2_STORE_BYTES = 64


@dataclass(frozen=True)
class PipelineWork:
    """The work of a launch: its number of blocks, and the average work of a block. Records use the same names."""

    blocks: int
    #: The threads of a block, the registers of a thread, and the bytes of a block's shared memory.
    threads: int
    registers: int
    shared_bytes: int
    #: The warp groups of a block that execute ``wgmma``.
    groups: int
    #: The number of rounds of copies, the phases of mbarriers for which they arrive, and the bytes that are under way at
    #: once.
    rounds: float
    phases: float
    under_way: float
    #: The bytes that the copy engine loads.
    copied: float
    #: The bytes that the loads of threads request.
    loaded: float
    #: The bytes of stores and reductions, each rounded up to a multiple of L2_STORE_BYTES.
    written: float
    #: The cycles of the memory pipe (``turns_of``).
    turns: float
    #: The cycles for which tensor cores are busy, summed over the four tensor cores of a multiprocessor.
    tensor_cycles: float
    #: The warp instructions.
    instructions: float
    #: The work of the block that has the most, over the average.
    busiest: float
    #: The bytes of the arrays that the launch only reads, and those of all arrays.
    read_bytes: int
    operand_bytes: int

    @property
    def pipelined(self) -> bool:
        """Whether the kernel is pipelined: copies arrive at its mbarriers."""
        return self.rounds > 0


def work_of(
    observed: Observation, args: Sequence[Any], *, threads: int, registers: int, shared_bytes: int
) -> PipelineWork:
    """The work of an observed launch with these arguments. ``threads`` and ``shared_bytes`` are those of a block,
    ``registers`` those of a thread."""
    run, blocks = observed.run, observed.run.blocks_total
    in_global = [access for access in observed.accesses if access.space == "global"]
    copied = SECTOR * sum(a.sectors for a in in_global if a.kind == _COPY) / blocks
    rounds = run.rounds
    arrays = _arrays(args, observed.arrays)
    return PipelineWork(
        blocks=blocks,
        threads=threads,
        registers=registers,
        shared_bytes=shared_bytes,
        groups=run.multiplying_groups,
        rounds=rounds.rounds,
        phases=rounds.phases,
        under_way=rounds.under_way,
        copied=copied,
        # Loads that use parts of one sector share it in L1, so count the smaller of sectors and requested bytes.
        loaded=sum(min(SECTOR * a.sectors, a.bytes) for a in in_global if a.kind in _LOADS) / blocks,
        written=sum(map(_written, in_global)) / blocks,
        turns=sum(map(turns_of, observed.accesses)) / blocks,
        tensor_cycles=observed.counters.get(TENSOR_CYCLES, 0) / blocks,
        instructions=run.warp_instructions / run.blocks_run,
        busiest=max(1.0, rounds.most / copied) if copied else 1.0,
        read_bytes=sum(array.nbytes for array, was_written in arrays if not was_written),
        operand_bytes=sum(array.nbytes for array, _ in arrays),
    )


def _written(access: Access) -> int:
    """The bytes of the L2 pieces that stores write. For stores of threads, the pieces of the one recorded request stand
    for the pieces of all requests."""
    if access.kind in (_COPY, *_LOADS):
        return 0
    pieces = {at // L2_STORE_BYTES for at in access.lanes if at is not None}
    return max(SECTOR * access.sectors, L2_STORE_BYTES * len(pieces) * access.requests)


def _arrays(args: Sequence[Any], after: Sequence[Any]) -> list[tuple[np.ndarray[Any, Any], bool]]:
    """Each array among the arguments once, and whether the launch wrote to it; ``after``: the arguments after the launch."""
    found: dict[int, tuple[np.ndarray[Any, Any], bool]] = {}
    for arg, arg_after in zip(args, after, strict=True):
        is_list = isinstance(arg, list | tuple)
        for each, each_after in zip(arg, arg_after, strict=True) if is_list else [(arg, arg_after)]:
            array = each.array if isinstance(each, TensorMap) else each
            if isinstance(array, np.ndarray):
                found[id(array)] = array, each_after is not array
    return list(found.values())


# ---- one call of the command -----------------------------------------------------------------------------------------

#: The default size if one kernel is explained. All of its blocks run in a second.
SIZE = 64
#: The default sizes if kernels are compared: the first at which every multiprocessor has a block. A sample of the blocks is
#: run, which takes some seconds.
COMPARED = (1024, 2048)
#: A function that is called with the number of blocks that have run, and the number of all blocks of a launch.
Blocks = Callable[[int, int], None]


def _ignore(done: int, total: int) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class ExplainRequest:
    """The options of ``tilewright explain`` as the user typed them."""

    kernels: list[str]
    size: str | None = None
    gpu: str = "H200"
    params: list[str] = field(default_factory=list)
    whole: bool = False
    measure: bool = False
    seed: int = 1
    max_steps: int = MAX_STEPS
    include: list[Path] = field(default_factory=list)
    defines: dict[str, str] = field(default_factory=dict)


def run_explanations(
    request: ExplainRequest,
    *,
    finished: Callable[[Explanation], None] = lambda explanation: None,
    progress: Callable[[str], AbstractContextManager[Blocks]] = lambda kernel: nullcontext(_ignore),
) -> list[Explanation]:
    """Explain each kernel at each size with each allowed set of parameters.

    ``finished`` is called with each explanation when it is made. ``progress`` is called with the kernel's name before
    each launch. ``progress`` returns a context manager, whose value is called with the number of blocks that have run.
    If one of the launches is refused, UsageError, or what ``explain`` raises, is raised before any kernel runs.
    """
    shapes = None if request.size is None else parse_sizes(request.size)
    if request.seed < 0:
        raise UsageError(f"seed must not be negative, got {request.seed}")
    whole_number("max-steps", request.max_steps, 1)
    card = find_gpu(request.gpu)
    if request.measure:
        check_gpu(request.gpu)
    kernels = find(request.kernels, device="cuda")
    params = parse_params(request.params)
    check_names(params, kernels)
    sets = [(kernel, chosen) for kernel in kernels for chosen in param_sets(kernel, params)]
    options: dict[str, Any] = {"include": request.include, "defines": request.defines}
    prepared = [
        check_launch(kernel, *shape, gpu=request.gpu, params=chosen, whole=request.whole or None, **options)
        for kernel, chosen in sets
        for shape in shapes or _default_sizes(sets, card)
    ]
    files = file_names([each.kernel.path for each in prepared])
    explanations = []
    for each in prepared:
        with progress(each.kernel.name) as blocks:
            explanation = explain_launch(each, seed=request.seed, max_steps=request.max_steps, progress=blocks)
        explanation = dataclasses.replace(explanation, file=files[each.kernel.path])
        if request.measure:
            explanation = dataclasses.replace(explanation, measured=measured(each.kernel, explanation, request.seed))
        explanations.append(explanation)
        finished(explanation)
    return explanations


def file_names(paths: Iterable[Path]) -> dict[Path, str]:
    """A short name for each file: the file's own name. If two files have the same name, as many of their folders
    precede it as are needed to tell the files apart.

    >>> file_names([Path("mine/old/k.cu"), Path("mine/new/k.cu"), Path("mine/other.cu")]).values()
    dict_values(['old/k.cu', 'new/k.cu', 'other.cu'])
    """
    different = dict.fromkeys(paths)
    names = {}
    for path in different:
        others = [other for other in different if other != path]
        lengths = range(1, len(path.parts) + 1)
        length = next((n for n in lengths if all(o.parts[-n:] != path.parts[-n:] for o in others)), len(path.parts))
        names[path] = "/".join(path.parts[-length:])
    return names


def _default_sizes(sets: Sequence[tuple[CudaKernel, Mapping[str, int]]], card: GpuModel) -> list[Shape]:
    """The default size: SIZE for a single kernel; for several, which are compared, the first of COMPARED at which each
    launch has a block for every multiprocessor, or the last. With fewer blocks multiprocessors are idle, and small tiles,
    which make more blocks, would seem faster than they are.
    """
    if len(sets) == 1:
        return [(SIZE,) * 3]
    for n in COMPARED:
        if all(kernel.launch(n, n, n, **kernel.checked(chosen)).blocks >= card.sms for kernel, chosen in sets):
            break
    return [(n,) * 3]
