"""Finds the best parameters of a CUDA kernel for products of one size on this GPU, by trying combinations that the
kernel's header allows.

The method is successive halving in two steps. In the first step each combination of parameters is compiled, verified
and sampled once, until the fraction FIRST_SHARE of the time budget is spent. The combination of default parameters is
first, and the other combinations follow in random order. In the second step the best few combinations are measured in
alternation, round after round, so that changes of the GPU's clock and temperature affect all of them equally. The best
combination is cached on disk.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import math
import multiprocessing
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import CompileError, UnavailableError, UsageError
from ...gpu.planning.choice import tuned_file
from ...gpu.runtime.engine_product import plain_launch
from ...host.machine import machine
from ...kernels.cuda_kernel import CudaKernel
from ...records.bench import BenchRecord
from ..bench.cells import Cell
from ..bench.cuda import CudaBench
from ..bench.device import MeasuredCell
from ..inputs.options import Shape

#: The number of combinations that reach the second step, and the samples that each gets there.
FINALISTS, ROUNDS = 8, 7
#: The fraction of the budget that the first step may use.
FIRST_SHARE = 0.8
#: Up to this many combinations are listed and shuffled. If there are more, combinations are drawn at random.
MOST_LISTED = 100_000

#: A function that is called with every record as soon as it is known.
Listener = Callable[[BenchRecord], None]
_Tried = tuple[Cell, MeasuredCell]


@dataclass(frozen=True)
class TuningResult:
    """The result of a search: the finalists, best first; the number of combinations that were tried; and the records of
    combinations that could not be timed."""

    finalists: list[BenchRecord]
    tried: int
    failed: list[BenchRecord]


# ---- candidates ------------------------------------------------------------------------------------------------------


def combinations(kernel: CudaKernel, shape: Shape, seed: int = 1) -> Iterator[dict[str, int]]:
    """Yield every combination of parameters that a kernel's header allows, each once. The defaults come first. For a
    kernel of the engine, the combinations among which ``matmul`` chooses come next; all others come in random order."""
    seen: set[tuple[int, ...]] = set()
    choices = [p.values for p in kernel.parameters]
    named = [{}, *(preset.params for preset in kernel.presets if kernel.in_engine)]
    first = [tuple((kernel.params | given).values()) for given in named]
    for values in itertools.chain(first, _drawn(choices, random.Random(seed))):
        params = dict(zip(kernel.params, values, strict=True))
        if values not in seen and _launches(kernel, shape, params):
            yield params
        seen.add(values)


def _drawn(choices: Sequence[Sequence[int]], rng: random.Random) -> Iterator[tuple[int, ...]]:
    """All combinations, shuffled; if there are too many to list, random ones, some of them twice."""
    total = math.prod(map(len, choices))
    if total > MOST_LISTED:
        yield from (tuple(map(rng.choice, choices)) for _ in range(total))
    else:
        listed = list(itertools.product(*choices))
        rng.shuffle(listed)
        yield from listed


def _launches(kernel: CudaKernel, shape: Shape, params: dict[str, int]) -> bool:
    """Whether the header's values, constraints and limits allow this launch."""
    try:
        return kernel.launch(*shape, **params).blocks > 0
    except UsageError:
        return False


# ---- the two steps ---------------------------------------------------------------------------------------------------


def tune_parameters(
    bench: CudaBench,
    kernel: CudaKernel,
    shape: Shape,
    dtype: str,
    *,
    budget_s: float = 60.0,
    seed: int = 1,
    tell: Listener = lambda record: None,
) -> TuningResult:
    """Try combinations of ``kernel``'s parameters for about ``budget_s`` seconds; the defaults are always tried.

    The limit on the time of a product and the operands' seed are in the bench's settings. Raises UsageError for a
    kernel without parameters, and for a dtype that the kernel does not multiply.
    """
    if dtype not in kernel.dtypes:
        raise UsageError(f"{kernel.name} has no {dtype}: it takes {', '.join(kernel.dtypes)}")
    if not kernel.parameters:
        raise UsageError(f"{kernel.name} has no parameters to tune")
    start, good, failed = time.monotonic(), [], []
    gpu = {name: bench.environment[name] for name in ("arch", "sms")}
    compiling = functools.partial(_compile, kernel, shape, dtype, **gpu)
    with compiled_ahead(compiling, combinations(kernel, shape, seed)) as ready:
        for params in ready:
            cell = Cell(kernel, shape, dtype, 1, params, "cuda", kernel.precision)
            measured = bench.ask(cell, with_reference=False, repeat=1)
            tell(record := bench.record(cell, measured))
            if record.verdict == "ok":
                good.append((cell, measured))
            else:
                failed.append(record)
            if time.monotonic() - start > FIRST_SHARE * budget_s:
                break
    good.sort(key=lambda tried: tried[1].outcome.samples_s[0])
    finalists = _measured_finalists(bench, good[:FINALISTS], start + budget_s)
    for record in finalists:
        tell(record)
    return TuningResult(finalists, len(good) + len(failed), failed)


def _measured_finalists(bench: CudaBench, finalists: list[_Tried], end: float) -> list[BenchRecord]:
    """The records of the finalists, sampled in turns in at least one round, best median first. The sample by which they were
    chosen does not count."""
    chosen = [(cell, bench.ask(cell, with_reference=False, repeat=1)) for cell, _ in finalists]
    for _ in range(ROUNDS - 1):
        if time.monotonic() > end:
            break
        chosen = [(cell, _sampled_again(bench, cell, measured)) for cell, measured in chosen]
    records = [bench.record(cell, measured) for cell, measured in chosen]
    return sorted(records, key=lambda r: math.inf if r.median_s is None else r.median_s)


def _sampled_again(bench: CudaBench, cell: Cell, before: MeasuredCell) -> MeasuredCell:
    """One more sample of a cell. If the cell fails now, it has no time at all."""
    if before.outcome.verdict != "ok":
        return before
    measured = bench.ask(cell, with_reference=False, repeat=1)
    if measured.outcome.verdict == "ok":
        measured.outcome.samples_s[:0] = before.outcome.samples_s
    return measured


@contextlib.contextmanager
def compiled_ahead(
    compiling: Callable[[dict[str, int]], None], wanted: Iterable[dict[str, int]]
) -> Iterator[Iterator[dict[str, int]]]:
    """Yield the combinations of ``wanted``, each as soon as it is compiled. Other processes compile the next
    combinations while one is measured.

    Compiled code is cached on disk, and the process that uses the GPU loads it from there.
    """
    workers = min(16, machine().usable_cores - 1)
    if workers < 2:
        yield iter(wanted)
        return
    pool = concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        yield _in_order(pool, compiling, iter(wanted), 2 * workers)
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    pool: concurrent.futures.Executor,
    compiling: Callable[[dict[str, int]], None],
    wanted: Iterator[dict[str, int]],
    ahead: int,
) -> Iterator[dict[str, int]]:
    waiting: deque[tuple[dict[str, int], concurrent.futures.Future[None]]] = deque()
    with contextlib.suppress(concurrent.futures.BrokenExecutor):  # a compiler crashed; the bench then compiles itself
        while True:
            for params in itertools.islice(wanted, ahead - len(waiting)):
                waiting.append((params, pool.submit(compiling, params)))
            if not waiting:
                return
            waiting[0][1].result()
            yield waiting.popleft()[0]
    yield from (params for params, _ in waiting)
    yield from wanted


def _compile(kernel: CudaKernel, shape: Shape, dtype: str, params: dict[str, int], *, arch: str, sms: int) -> None:
    with contextlib.suppress(CompileError, UsageError, UnavailableError):  # the bench reports the same error
        plain_launch(kernel, shape, dtype, params, arch=arch, sms=sms)


# ---- cached on disk ----------------------------------------------------------------------------------------------------


def cache_best(record: BenchRecord) -> Path | None:
    """Cache the parameters of a record as the best for its kernel, GPU and dtype at sizes like the record's; return
    None if nothing can be written."""
    shape = (record.m, record.n, record.k)
    file = tuned_file(record.environment["kernel_source"], record.environment["gpu"], record.dtype, shape)
    return file.write_json({"kernel": record.kernel, "shape": shape, "params": record.params, "gflops": record.gflops})
