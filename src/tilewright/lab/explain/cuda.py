"""Explains a CUDA kernel at a size on a GPU, without that GPU: formulas compared with counts, occupancy, bounds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...host.machine import machine
from ...kernels.cuda_kernel import CudaKernel, Launch
from ...records.explanation import Defect, Explanation, TimePart
from ...runtime.gpu.nvrtc import Compiled, compiler
from ...simulator.assembly.source_files import file_label
from ...simulator.findings import LAUNCH, STEP_LIMIT, Finding
from ...simulator.gpus import GpuModel
from ...simulator.machine.options import MAX_BYTES, MAX_STEPS, RunOptions
from ...simulator.microscope import KernelSource, observe
from ...simulator.observation import Observation
from ...simulator.occupancy import Occupancy, occupancy
from ..inputs.environment import environment
from .bounds import ArithmeticUnit, LeastWork, arithmetic_unit, time_bounds, unknown
from .checked_launch import CheckedLaunch, check_launch
from .formulas import formulas_of
from .pipeline_time import predicted_time
from .pipeline_work import TENSOR_CYCLES, work_of
from .result import in_boxes, judged, operands


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
    """Explain ``kernel`` for C[m×n] = A[m×k]·B[k×n] on ``gpu``, counted by the microscope on random operands.

    ``params`` are those that differ from the defaults. ``whole`` runs every block; None does so up to m·n·k = 512³, and runs
    a sample of larger launches. A run is stopped after ``max_steps`` steps. Raises UsageError for an unknown GPU, and for
    parameters, sizes or a signature that are not allowed; and what the compiler and the microscope raise.
    """
    prepared = check_launch(kernel, m, n, k, gpu=gpu, params=params, whole=whole)
    return explain_launch(prepared, seed=seed, max_steps=max_steps, progress=progress)


def explain_launch(
    p: CheckedLaunch, *, seed: int = 1, max_steps: int = MAX_STEPS, progress: Callable[[int, int], None] | None = None
) -> Explanation:
    """``explain`` for a kernel that ``check_launch`` has checked and compiled."""
    kernel, size = p.kernel, (p.m, p.n, p.k)
    a, b, c = operands(kernel, *size, seed)
    most = (machine().memory_total or 2 * MAX_BYTES) // 2
    options = RunOptions(p.launch.shared_bytes, [p.plain.result], None, max_steps, most, progress, outputs_empty=True)
    source = KernelSource(kernel.source, str(kernel.path), p.compiled)
    args = in_boxes(kernel, p.plain.arguments((a, b, c)))
    observed = observe(source, p.program, p.launch.grid, p.launch.block, args, options, sampled=p.sampled)
    result = judged(p, a, b, observed, seed=seed, max_steps=max_steps)
    tensor_cycles = observed.counters.get(TENSOR_CYCLES, 0)
    work = LeastWork(2 * p.m * p.n * p.k, sum(array.nbytes for array in (a, b, c)))
    unit = arithmetic_unit(p.card, kernel.dtypes[0], kernel.precision, matrix="mma." in p.compiled.ptx)
    run, accesses, approximate = _run(p, observed), observed.accesses, observed.approximate
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
        gpu=_card(p.card, unit),
        launch=dataclasses.asdict(p.launch) | {"blocks": p.launch.blocks, "threads": p.launch.threads},
        resources=dataclasses.asdict(p.compiled.resources[p.program.entry.name]),
        occupancy=_occupancy(p.card, occupancy_of(p.compiled, p.program.entry.name, p.launch, p.card)),
        accesses=accesses,
        counters=observed.counters,
        formulas=formulas_of(kernel, *size, p.params, observed.accesses),
        bounds=time_bounds(p.card, unit.gflops, work, p.launch.blocks, observed.accesses, tensor_cycles),
        defects=_defects(kernel, result.findings),
        verified=result.verified,
        run=run,
        included=observed.included,
        printed=observed.printed,
        approximate=sorted(approximate),
        pipeline=observed.pipeline,
        predicted=_predicted(p, observed, args),
        notes=list(
            dict.fromkeys(
                [
                    *(*_stopped(observed), *result.notes, *p.notes, *kernel.notes),
                    *(*observed.notes, *unknown(p.card, unit)),
                ]
            )
        ),
        environment=environment(operands=f"uniform [-1, 1), seed {seed}")
        | {"compiler": compiler(), "arch": p.arch, **p.compiler_options},
    )


def _predicted(p: CheckedLaunch, observed: Observation, args: Sequence[Any]) -> list[TimePart]:
    """The parts of the predicted time of a pipelined kernel; empty for another, and for a run that was stopped."""
    needs = p.compiled.resources[p.program.entry.name]
    shared = needs.shared_bytes + p.launch.shared_bytes
    work = work_of(observed, args, threads=p.launch.threads, registers=needs.registers, shared_bytes=shared)
    return predicted_time(work, p.card) if work.pipelined and observed.run.complete else []


def occupancy_of(compiled: Compiled, entry: str, launch: Launch, card: GpuModel) -> Occupancy:
    """How many blocks of a compiled kernel a multiprocessor of the card holds."""
    needs = compiled.resources[entry]
    return occupancy(card, launch.threads, needs.registers, needs.shared_bytes + launch.shared_bytes)


def _card(card: GpuModel, unit: ArithmeticUnit) -> dict[str, Any]:
    major, minor = card.compute_capability
    return {
        "name": card.name,
        "compute_capability": f"{major}.{minor}",
        "sms": card.sms,
        "clock_mhz": card.clock_mhz,
        "peak_gflops": unit.gflops,
        "bandwidth_gbs": card.bandwidth_gbs,
        "source": card.source,
    }


def _occupancy(card: GpuModel, resident: Occupancy) -> dict[str, Any]:
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
    """Findings of the microscope; arguments have the names of the source's parameters."""
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
        )
        for f in findings
        if f.kind not in (STEP_LIMIT, LAUNCH)  # the occupancy says of a launch that it is impossible
    ]


def _stopped(observed: Observation) -> list[str]:
    """Where the run was when it reached its limit of steps; empty if it did not."""
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
    """Why a sample may have missed the blocks that hang over an edge of C: blocks are numbered along x alone, so that the
    sample does not know which these are. Empty if it cannot have missed any."""
    if p.launch.grid[0] != p.launch.blocks or not p.kernel.tile:
        return ""
    width, height = (side(m=p.m, n=p.n, k=p.k, **p.params) for side in p.kernel.tile)
    if p.n <= width or p.m <= height or (p.n % width == 0 and p.m % height == 0):
        return ""
    return f"they are numbered along x alone, and which hang over an edge of C is not known: tiles of {width}×{height}"
