"""The function that runs a kernel's PTX: it takes the kernel's arguments, and returns its results and the findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import UsageError
from ..assembly.instructions import Module
from ..assembly.parser import parse_ptx
from ..assembly.program import Program, link
from ..findings import Finding
from ..machine.arguments import dimensions
from ..machine.event_log import BlockRounds
from ..machine.lanes import Lanes
from ..machine.launch import SimulatedLaunch
from ..machine.options import WHOLE_RUN, Progress, RunOptions
from ..machine.values import Array
from .engine import Engine, StoppedError

#: Seconds between two calls of ``progress``.
PERIOD = 0.1


@dataclass(frozen=True)
class Run:
    """The result of a simulated kernel. ``arrays`` has one entry per argument; the entry is None for an argument that
    is no array.

    If the kernel did not write an array, the entry in ``arrays`` is the caller's own array. ``complete`` is false if
    the kernel did not end. ``printed`` is the text that the threads printed, in order of block and thread. ``rounds``
    summarises the rounds in which the asynchronous copies of a block arrived. ``warp_instructions`` is the number of
    PTX instructions, counted once for each warp that executes them. ``multiplying_groups`` is the number of warp groups
    of a block that execute wgmma.
    """

    kernel: str
    arrays: tuple[Array | list[Array] | None, ...]
    findings: list[Finding]
    steps: int
    blocks_run: int
    blocks_total: int
    complete: bool = field(default=True)
    printed: str = ""
    warp_instructions: int = 0
    multiplying_groups: int = 0
    rounds: BlockRounds = field(default_factory=BlockRounds)

    @property
    def sampled(self) -> bool:
        """Whether only some of the blocks were run."""
        return self.blocks_run < self.blocks_total


def simulate(
    ptx: str | Module,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    options: RunOptions = WHOLE_RUN,
) -> Run:
    """Run kernel ``entry`` of a PTX module on the CPU.

    ``args`` are the kernel's parameters in order. NumPy arrays are not changed: the kernel writes to a copy, which is
    returned in ``Run.arrays``. A list is passed as a structure (see ``microscope``). If the same array is passed twice,
    the kernel gets the same address twice. Different arrays must not overlap if the kernel writes one of them. Numbers
    are converted to the parameter's PTX type. For an untyped parameter, such as ``.b32``, an int is taken as the bits
    of the parameter; for a float, pass a NumPy number such as ``np.float32(2)``. Structures are passed as bytes; None
    is a null pointer.

    The run continues after a finding, so that the result can be examined. If a run takes more steps than ``options``
    allow, or if the kernel can never end, the run stops with a finding, and ``Run.complete`` is false.

    Raises UsageError for PTX that cannot be parsed, an unknown instruction (with its source line), arguments that do
    not fit the kernel's parameters, and a launch that exceeds the limits. Raises OperandError for an argument of an
    unusable type.

    >>> source = '''
    ... .version 8.0
    ... .target sm_80
    ... .visible .entry twice(.param .u64 x) {
    ...     .reg .b64 %rd<3>; .reg .b32 %r<2>; .reg .f32 %f<2>;
    ...     ld.param.u64 %rd1, [x];
    ...     mov.u32 %r1, %tid.x;
    ...     mad.wide.u32 %rd2, %r1, 4, %rd1;
    ...     ld.global.f32 %f1, [%rd2];
    ...     add.f32 %f1, %f1, %f1;
    ...     st.global.f32 [%rd2], %f1;
    ...     ret;
    ... }'''
    >>> run = simulate(source, "twice", grid=1, block=4, args=[np.arange(4, dtype=np.float32)])
    >>> run.arrays[0].tolist(), run.findings
    ([0.0, 2.0, 4.0, 6.0], [])
    """
    module = parse_ptx(ptx) if isinstance(ptx, str) else ptx
    if not isinstance(module, Module) or not isinstance(entry, str):
        raise UsageError(
            f"give PTX and the name of a kernel in it; given {type(ptx).__name__} and {type(entry).__name__}"
        )
    return run_program(link(module, entry), grid, block, args, options)


def run_program(
    program: Program,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    options: RunOptions = WHOLE_RUN,
) -> Run:
    """Do what ``simulate`` does, for a kernel that is already linked."""
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise UsageError(f"args must be a list of the kernel's arguments, given a {type(args).__name__}")
    launch = SimulatedLaunch(program, dimensions("grid", grid), dimensions("block", block), args, options)
    try:
        with np.errstate(all="ignore"):
            steps, complete = _run(launch)
    except MemoryError:
        raise UsageError("the run needs more memory than there is: give smaller operands or fewer blocks") from None
    blocks_run = launch.blocks.count
    if complete and blocks_run == launch.blocks.total:
        launch.report_unwritten()
    arrays = tuple(launch.result(i, a) for i, a in enumerate(args))
    counts = (steps, blocks_run, launch.blocks.total)
    return Run(
        program.entry.name,
        arrays,
        launch.findings.list(),
        *counts,
        complete,
        launch.printed.text(),
        launch.warp_instructions,
        len(launch.multiplying),
        launch.rounds.of_blocks(),
    )


def _run(launch: SimulatedLaunch) -> tuple[int, bool]:
    """Run all blocks, in batches; returns the steps taken and whether the kernel ended."""
    copies, total, progress = launch.blocks_per_batch(), launch.blocks.count, launch.options.progress
    engine: Engine | None = None
    steps, complete = 0, True
    for start in range(0, total, copies):
        batch = launch.blocks.part(start, copies)
        if engine is None or engine.lanes.copies != batch.size:
            engine = None  # only the last batch has another size: free the memory of the others first
            lanes = Lanes(launch, batch.size)
            engine = Engine(launch.program, lanes)
        engine.lanes.start(start, batch)
        engine.steps = steps
        if progress is not None:
            engine.tick = _ticker(engine, start, total, progress)
        try:
            engine.run()
        except StoppedError:
            return engine.steps, False
        steps, complete = engine.steps, complete and not engine.stuck
    if progress is not None:
        progress(total, total)
    return steps, complete


def _ticker(engine: Engine, start: int, total: int, progress: Progress) -> Callable[[], None]:
    """A function that calls ``progress`` at once, then every PERIOD seconds, with the number of blocks that have ended."""
    lanes, due = engine.lanes, 0.0

    def tick() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + PERIOD
            ended = engine.barriers.exited.reshape(lanes.copies, lanes.threads).all(axis=1)
            progress(start + int(ended.sum()), total)

    return tick
