"""A program bound to the lanes that run it: segments that run without a break, each a list of steps to call."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from ...errors import UsageError
from ..assembly.effects import fences, is_collective, is_mbarrier_wait, is_warp_barrier, loads_anew, stores
from ..assembly.instructions import Instruction
from ..assembly.program import CONTROL, BasicBlock, Program
from ..machine.lanes import Lanes
from ..machine.values import Array
from ..ops import bind
from ..ops._table import Step
from ..ops.mbarrier import Wait
from .barriers import Form
from .cluster_barriers import is_cluster_barrier


@dataclass
class Segment:
    """Instructions that run one after the other, bound to the lanes, and at most one control instruction at the end."""

    steps: list[Step]
    code: list[Instruction]  # the instruction of each step
    end: Instruction | None  # the control instruction
    collective: Instruction | None  # the first instruction, if a warp executes it together
    polls: bool  # whether it reads what other threads may have just written
    stores: bool
    last: Instruction
    wait: Wait | None = None  # the first instruction, if it waits for an mbarrier
    guard: Array | None = None
    targets: list[int] = field(default_factory=list)
    index: Array | None = None
    form: Form | None = None
    of_cluster: bool = False  # whether it ends with a barrier of a cluster
    instructions: int = 0


def bind_segments(program: Program, lanes: Lanes) -> list[Segment]:
    """The segments of a program in order; the index after the last stands for the end of the kernel.

    Raises UsageError for an instruction that is unknown or invalid.
    """
    pieces = [piece for block in program.blocks for piece in _pieces(program, block)]
    segment_at = {first: i for i, (first, _) in enumerate(pieces)} | {len(program.code): len(pieces)}
    has_fences = any(fences(ins) for ins in program.code)
    return [_bind(program, lanes, program.code[first : last + 1], segment_at, has_fences) for first, last in pieces]


def _pieces(program: Program, block: BasicBlock) -> list[tuple[int, int]]:
    """The parts of a basic block, cut before a wait for an mbarrier, before an instruction that a warp executes together,
    and also after a warp barrier."""
    starts = {block.first}
    for at in range(block.first, block.last + 1):
        if is_mbarrier_wait(program.code[at]):
            starts |= {at}
        if is_collective(program.code[at]):
            starts |= {at, at + 1} if is_warp_barrier(program.code[at]) else {at}
    edges = [*sorted(s for s in starts if s <= block.last), block.last + 1]
    return [(first, stop - 1) for first, stop in pairwise(edges)]


def _bind(
    program: Program, lanes: Lanes, code: list[Instruction], segment_at: dict[int, int], has_fences: bool
) -> Segment:
    end = code[-1] if code[-1].parts[0] in CONTROL and not is_warp_barrier(code[-1]) else None
    straight = [i for i in (code if end is None else code[:-1]) if not is_warp_barrier(i)]
    segment = Segment(
        *([], [], end, code[0] if is_collective(code[0]) else None),
        polls=any(loads_anew(i) for i in code),
        stores=any(stores(i) for i in code),
        last=code[-1],
        wait=Wait(code[0], lanes) if is_mbarrier_wait(code[0]) else None,
        instructions=len(code),
    )
    for ins in straight:
        for step in _steps(ins, lanes, has_fences):
            segment.steps.append(step)
            segment.code.append(ins)
    if end is not None:
        _bind_control(segment, end, program, lanes, segment_at)
    return segment


def _steps(ins: Instruction, lanes: Lanes, has_fences: bool) -> list[Step]:
    """The step of an instruction and, in a program with fences, the steps that record what it publishes or learns."""
    step, parts, clocks = bind(ins, lanes), set(ins.parts), lanes.clocks
    # Operations on an mbarrier, and fences of proxies, publish and learn by themselves.
    if not has_fences or ins.parts[0] == "mbarrier" or {"proxy", "mbarrier_init"} & parts:
        return [step]
    wide, near = bool({"gl", "gpu", "sys"} & parts), "cluster" in parts
    fence: list[Step] = [partial(clocks.fence, wide=wide, near=near)] if fences(ins) else []
    if ins.parts[0] in ("fence", "membar"):
        return fence
    signal: list[Step] = [clocks.signal] if (stores(ins) or ins.parts[0] == "atom") and "local" not in parts else []
    look: list[Step] = [clocks.look] if loads_anew(ins) else []
    return [*fence, step, *signal, *look]


def _bind_control(
    segment: Segment, end: Instruction, program: Program, lanes: Lanes, segment_at: dict[int, int]
) -> None:
    name = end.parts[0]
    if end.guard:
        segment.guard = lanes.source(end.guard[0], "pred", end)
    segment.of_cluster = is_cluster_barrier(end)
    if segment.of_cluster:
        return
    if name in ("bar", "barrier"):
        segment.form = Form.of(end, lanes)
        return
    labels = [end.operands[0]] if name == "bra" else program.tables.get(end.operands[1]) if name == "brx" else []
    if labels is None:
        raise UsageError(f"{end.place()}: no table of branch targets {end.operands[1]}")
    for label in labels:
        if label not in program.labels:
            raise UsageError(f"{end.place()}: no label {label}")
        segment.targets.append(segment_at[program.labels[label]])
    if name == "brx":
        segment.index = lanes.source(end.operands[0], "u32", end)
