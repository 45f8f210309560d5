"""One call of ``tilewright tune``: words → kernel and size → the best parameters, kept, with progress on the way."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..errors import UsageError, did_you_mean
from ..kernels import find
from ..kernels.cuda_kernel import CudaKernel
from ..records import BenchRecord, Writer
from .cells import Settings, own_dtype
from .cuda_bench import CudaBench
from .environment import environment
from .formats import FORMATS
from .sizes import Shape, parse_seconds, parse_sizes
from .tune import Tuned, keep, tune


@dataclass(frozen=True)
class Request:
    """The options of ``tilewright tune`` as they were typed."""

    kernel: str
    size: str = "4096"
    dtype: str | None = None
    budget: str = "60s"
    limit: str = "1s"
    seed: int = 1


def run(request: Request, *, json_file: Path | None, console: Console) -> Tuned:
    """Try combinations until the budget is spent; the best is kept, and each record written as soon as it is known.

    Raises UsageError, and UnavailableError where there is no GPU.
    """
    kernel, shape, dtype = _chosen(request)
    budget, limit = parse_seconds("budget", request.budget), parse_seconds("limit", request.limit)
    if request.seed < 0:
        raise UsageError(f"seed must not be negative, got {request.seed}")
    settings = Settings([kernel], [], [shape], [dtype], [1], limit_s=limit, seed=request.seed, device="cuda")
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(contextlib.closing(CudaBench(settings, environment(operands="uniform[-1,1)"))))
        writer = stack.enter_context(Writer(json_file)) if json_file else None
        columns = (SpinnerColumn(), TextColumn("{task.completed} tried {task.description}"), TimeElapsedColumn())
        progress = stack.enter_context(
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        )
        task, best = progress.add_task("", total=None), 0.0

        def tell(record: BenchRecord) -> None:
            nonlocal best
            best = max(best, record.gflops or 0)
            progress.update(task, advance=1, description=f"{kernel.name}, best {best:,.0f} GFLOPS")
            if writer is not None:
                writer.write(record)

        tuned = tune(bench, kernel, shape, dtype, budget_s=budget, seed=request.seed, tell=tell)
    if tuned.finalists and tuned.finalists[0].gflops:
        keep(tuned.finalists[0])
    return tuned


def _chosen(request: Request) -> tuple[CudaKernel, Shape, str]:
    """The kernel, the size and the dtype: without a word float32 if the kernel takes it, else the first that it takes."""
    (kernel,) = find([request.kernel], device="cuda")
    shapes = parse_sizes(request.size)
    if len(shapes) != 1:
        raise UsageError(f"size {request.size!r}: one size in one run; parameters that suit two suit neither best")
    if request.dtype is not None and request.dtype not in FORMATS:
        raise UsageError(f"dtype {request.dtype!r}: {did_you_mean(request.dtype, FORMATS)}")
    return kernel, shapes[0], request.dtype or own_dtype(kernel)
