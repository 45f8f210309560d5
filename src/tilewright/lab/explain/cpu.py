"""Explains a kernel on the CPU: the predicted counts and time, the measured time, and the processor's counters.

The model of S3.1 (in ``docs/sources.md``) predicts the counts from the kernel's tile and blocks (``cpu_counts``) and
from the instructions of its inner loop. The time is predicted by the model that the planner of products uses. Counts
and time are compared with measurements: one run is verified and timed, and another run is counted by the processor's
counters (``cpu_events``), if the system allows access to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...cpu.prediction import Prediction, predict
from ...cpu.runtime.runner import Product, runner
from ...errors import UsageError
from ...host.machine import machine
from ...kernels import Kernel
from ...kernels.catalog import find
from ...product.operands import DTYPES, aligned_empty
from ...product.problem import Problem
from ..bench.operand_sets import OperandSets
from ..bench.timing import SampleLoop
from ..inputs.environment import environment
from ..inputs.options import ODD_SIZE, is_odd, parse_sizes
from . import cpu_counts, cpu_events
from .cpu_counts import InnerLoop, inner_loop
from .cpu_events import EventRow, System

KIND = "explain cpu"
SCHEMA = 1
#: The number of time samples, and the seconds after which no more are taken. The shortest sample is used, because other
#: processes can only lengthen a sample.
SAMPLES, SAMPLED_S = 5, 2.0
#: The number of bytes before C and behind C that a kernel must not change, and their value.
MARGIN, UNTOUCHED = 1 << 16, 0xA5


@dataclass(frozen=True)
class CpuExplanation:
    """An explanation of a kernel on the CPU, as plain data for JSON.

    - ``tile`` and ``block`` have h, w and operations_per_access (S3.1). ``tile`` or ``block`` is None if the kernel
      declares none.
    - ``loop`` counts the instructions in one iteration of the inner loop.
    - ``traffic`` has the bytes that each level of memory loads from the next one, for one product.
    - ``predicted`` has seconds, the times of which they consist (compute_s, cache_s, memory_s and overhead_s), and
      bound, the name of the longest of these times. ``predicted`` is None for a dtype without a measured peak.
    - ``measured`` has seconds, which is the least of samples_s.
    - ``verified`` has ok, reason, error_over_bound, of (what was compared), and at (the size at which the result is wrong,
      if it is not the size that is explained).
    """

    kernel: str
    about: dict[str, Any]
    m: int
    n: int
    k: int
    dtype: str
    threads: int
    operations: int
    tile: dict[str, float] | None
    block: dict[str, float] | None
    loop: dict[str, int] | None
    traffic: list[dict[str, Any]]
    predicted: dict[str, Any] | None
    measured: dict[str, Any]
    verified: dict[str, Any]
    rows: list[EventRow]
    notes: list[str]
    environment: dict[str, Any]
    kind: str = KIND
    schema: int = SCHEMA

    @property
    def ratio(self) -> float | None:
        """The predicted time over the measured time. Above 1, the kernel is faster than predicted."""
        return self.predicted["seconds"] / self.measured["seconds"] if self.predicted else None

    def as_dict(self) -> dict[str, Any]:
        """The explanation as plain data for JSON."""
        return dataclasses.asdict(self)


def explain_cpu(
    kernel: Kernel,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    threads: int = 1,
    seed: int = 1,
    system: System | None = None,
) -> CpuExplanation:
    """Explain ``kernel`` for C = A·B with a random A of shape (m, k) and a random B of shape (k, n).

    ``system`` has the system calls of the counters, which a test replaces. Raises UsageError for a product without elements,
    and what ``runner`` raises.

    >>> from tilewright.kernels.catalog import catalog
    >>> explain_cpu(catalog()["cpu/naive"], 16, 16, 16).verified["ok"]
    True
    """
    if not m * n * k:
        raise UsageError(f"{kernel.name} at {m}x{n}x{k}: there is nothing to multiply")
    run = runner(kernel, dtype, threads=threads)
    problem = Problem(m, n, k, dtype)
    loop = inner_loop(kernel, dtype)
    sets = OperandSets.random((m, n, k), dtype, seed, count=1)  # the model assumes that caches are warm
    samples = _samples(SampleLoop(run, sets, sets.c, threads))
    prediction = predict(problem, kernel.params, dtype, threads) if kernel.error_bound is None else None
    known = cpu_events.predicted_counts(kernel, problem, threads, loop, prediction, machine())
    events = cpu_events.events_of(machine(), dtype, kernel.params.get("vector_bits", 0))
    verified = _verified(kernel, problem, sets)  # before the runs that are counted, which are not verified
    if verified["ok"] and not is_odd(m, n, k):
        verified |= _verified_at_odd_size(kernel, run, dtype, seed)
    rows = cpu_events.event_rows(lambda: run(sets.a[0], sets.b[0], sets.c[0]), min(samples), known, events, system)
    return CpuExplanation(
        kernel=kernel.name,
        about={"idea": kernel.idea, "row": kernel.row, "params": kernel.params},
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        threads=threads,
        operations=cpu_counts.operations(problem),
        tile=_side(cpu_counts.declared_tile(kernel, problem)),
        block=_side(_block(kernel, problem, threads)),
        loop=None if loop is None else dataclasses.asdict(loop),
        traffic=[dataclasses.asdict(t) for t in cpu_counts.traffic(kernel, problem, threads, machine())],
        predicted=None if prediction is None else _roofs(prediction),
        measured={"seconds": min(samples), "samples_s": samples},
        verified=verified,
        rows=rows,
        notes=_notes(kernel, problem, threads, loop),
        environment=environment(operands=f"random, seed {seed}"),
    )


def check_request(
    names: Iterable[str], size: str, dtype: str, threads: int, seed: int
) -> list[tuple[Kernel, int, int, int]]:
    """Return each named kernel with each size. Raises UsageError, before any kernel runs, if one of the arguments is
    wrong."""
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not known: one of {', '.join(DTYPES)}")
    if threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    if seed < 0:
        raise UsageError(f"seed must not be negative, got {seed}")
    pairs = [(kernel, *shape) for kernel in find(names) for shape in parse_sizes(size)]
    for kernel, m, n, k in pairs:
        needed, memory = Problem(m, n, k, dtype).bytes_least, machine().memory_total
        if kernel.is_reference:
            raise UsageError(f"{kernel.name} is a library: only kernels whose source is here can be explained")
        if dtype not in kernel.dtypes:
            raise UsageError(f"{kernel.name} has no {dtype}: it takes {', '.join(kernel.dtypes)}")
        if threads > 1 and kernel.shared == "serial":
            raise UsageError(f"{kernel.name} runs on one thread, got --threads {threads}")
        if not m * n * k:
            raise UsageError(f"{kernel.name} at {m}x{n}x{k}: there is nothing to multiply")
        if memory and 2 * needed > memory:
            raise UsageError(
                f"{kernel.name} at {m}x{n}x{k}: the operands take {needed >> 30:,} GiB, there are {memory >> 30:,}"
            )
    return pairs


def _samples(loop: SampleLoop) -> list[float]:
    samples = [loop.sample()]
    while len(samples) < SAMPLES and sum(samples) < SAMPLED_S:
        samples.append(loop.sample())
    return samples


def _verified(kernel: Kernel, problem: Problem, sets: OperandSets) -> dict[str, Any]:
    """Whether the result of the last timed run is right, and the operands are unchanged."""
    own = {name: kernel.params[name] for name in kernel.tunable}
    bound = kernel.error_bound and kernel.error_bound(problem.m, problem.n, problem.k, **own)
    verdict = sets.oracle(0).check(sets.c[0], **({"normwise": bound} if bound else {}))
    changed = sets.changed()
    if changed:
        verdict = dataclasses.replace(verdict, ok=False, reason=f"the kernel has written to {changed}")
    return verdict.as_dict()


def _verified_at_odd_size(kernel: Kernel, run: Product, dtype: str, seed: int) -> dict[str, Any]:
    """The entries that one run at ODD_SIZE adds to ``verified``. C lies between margins, which the kernel must not
    change."""
    at = "x".join(map(str, ODD_SIZE))
    sets = OperandSets.random(ODD_SIZE, dtype, seed, count=1)
    room = aligned_empty((2 * MARGIN + sets.c[0].nbytes,), "uint8")
    room[:] = UNTOUCHED
    sets.c[0] = room[MARGIN:-MARGIN].view(sets.c[0].dtype).reshape(sets.c[0].shape)
    sets.poison()
    try:
        run(sets.a[0], sets.b[0], sets.c[0])
    except Exception as error:  # a user's kernel may raise anything
        return {"ok": False, "at": at, "reason": f"at {at}: {type(error).__name__}: {error}"}
    found = _verified(kernel, Problem(*ODD_SIZE, dtype), sets)
    if (room[:MARGIN] != UNTOUCHED).any() or (room[-MARGIN:] != UNTOUCHED).any():
        found |= {"ok": False, "reason": "the kernel has written outside C"}
    if found["ok"]:
        return {"of": f"every element that is checked, and all of C at {at}"}
    return found | {"at": at, "reason": f"at {at}: {found['reason']}"}


def _roofs(prediction: Prediction) -> dict[str, Any]:
    return {**dataclasses.asdict(prediction), "seconds": prediction.seconds, "bound": prediction.bound}


def _side(side: cpu_counts.Side | None) -> dict[str, float] | None:
    if side is None:
        return None
    return {"h": side.h, "w": side.w, "operations_per_access": side.operations_per_access}


def _block(kernel: Kernel, problem: Problem, threads: int) -> cpu_counts.Side | None:
    cut = cpu_counts.tiling(kernel, problem, threads)
    return cut.block if cut else cpu_counts.block_of(kernel, problem)


def _notes(kernel: Kernel, problem: Problem, threads: int, loop: InnerLoop | None) -> list[str]:
    notes = []
    cut = cpu_counts.tiling(kernel, problem, threads)
    if kernel.error_bound is not None:
        notes.append("it does fewer multiplications than 2mnk: the model of S3.1 does not apply")
    elif cut is None and cpu_counts.declared_tile(kernel, problem) is None:
        notes.append("it declares no tile: the model knows only operations and the traffic that every kernel needs")
    elif cut is None:
        notes.append("it declares a tile but no blocks: padded edges and repeated reads of operands are not counted")
    if loop is not None and cut is not None and loop.multiplies:
        steps = loop.multiplies / (cut.tile.h * cut.tile.w / cut.lanes)
        by_tile = round(steps * (cut.tile.h + cut.tile.w // cut.lanes))
        if loop.loads > by_tile:
            spilled = f"{loop.loads - by_tile} of {loop.loads} loads in a turn of the inner loop"
            notes.append(f"{spilled} fetch no operand: there are too few registers")
    if threads > 1:
        notes.append("threads that wait for one another execute instructions too, which the model leaves out")
    return notes
