"""Runs one call of ``tilewright tune``: finds kernel and size from the options, searches for the best parameters, and
caches them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError, did_you_mean
from ...kernels import Kernel, blocking
from ...kernels.catalog import catalog, cuda_catalog, cuda_engine, did_you_mean_kernel, find, tunable
from ...kernels.cuda_kernel import CudaKernel
from ...records.bench import BenchRecord, Writer
from ..bench.cells import Settings, own_dtype
from ..bench.cuda import CudaBench
from ..inputs.environment import environment
from ..inputs.formats import FORMATS
from ..inputs.options import Shape, parse_seconds, parse_sizes
from .cpu import TunedBlocking, check_tunable
from .cpu import tune_blocking as tune_blocking
from .cuda import Listener, TuningResult, cache_best, tune_parameters


@dataclass(frozen=True)
class TuneRequest:
    """The options of ``tilewright tune`` as they were typed; for an option that is None, the default depends on the
    kernel's device."""

    kernel: str
    size: str | None = None
    dtype: str | None = None
    budget: str = "60s"
    limit: str | None = None
    seed: int = 1
    threads: int | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether the options name a kernel of the CPU. A short name that kernels of both kinds have means the CUDA
        kernels."""
        if "/" in self.kernel or self.kernel.endswith((".py", ".cu")):
            return self.kernel.endswith(".py") or self.kernel.startswith(("cpu/", "ref/"))
        return f"cpu/{self.kernel}" in catalog() and f"cuda/{self.kernel}" not in cuda_catalog() | cuda_engine()


def _ignore(record: BenchRecord) -> None:
    """Ignores a record."""


def run_on_gpu(request: TuneRequest, *, json_file: Path | None = None, tell: Listener = _ignore) -> TuningResult:
    """Tune a CUDA kernel: try combinations of parameters until the time budget is spent, cache the best one, and write
    and report each record as soon as it is known.

    Raises UsageError for wrong options, and UnavailableError if there is no GPU.
    """
    kernel, shape, dtype = _chosen(request)
    budget, limit = parse_seconds("budget", request.budget), parse_seconds("limit", request.limit or "1s")
    if request.threads is not None:
        raise UsageError(f"threads: {kernel.name} runs on a GPU")
    settings = Settings([kernel], [], [shape], [dtype], [1], limit_s=limit, seed=request.seed, device="cuda")
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(contextlib.closing(CudaBench(settings, environment(operands="uniform[-1,1)"))))
        written = stack.enter_context(_written(json_file, tell))
        tuned = tune_parameters(bench, kernel, shape, dtype, budget_s=budget, seed=request.seed, tell=written)
    if tuned.finalists and tuned.finalists[0].gflops:
        cache_best(tuned.finalists[0])
    return tuned


def run_on_cpu(request: TuneRequest, *, json_file: Path | None = None, tell: Listener = _ignore) -> TunedBlocking:
    """Tune the block sizes of a kernel on the CPU. A blocking that is measurably better than the analytic choice is
    cached for later processes.

    Raises UsageError for wrong options.
    """
    kernel, shape, dtype = _chosen_on_cpu(request)
    budget, limit = parse_seconds("budget", request.budget), parse_seconds("limit", request.limit or "10s")
    threads = 1 if request.threads is None else request.threads
    if threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    with _written(json_file, tell) as written:
        tuned = tune_blocking(
            kernel, shape, dtype, threads=threads, budget_s=budget, limit_s=limit, seed=request.seed, tell=written
        )
    if tuned.winner is not None:
        record = tuned.winner.record
        known = {"ratio": record.ratio, "kernel": kernel.name, "dtype": dtype, "shape": shape, "threads": threads}
        blocking.store_blocking(tuned.winner.blocking, known)
    return tuned


def forget_tuned(request: TuneRequest) -> bool:
    """Remove the blocking that was cached for the CPU; return whether there was one. Raises UsageError for a CUDA
    kernel."""
    if not request.on_cpu:
        raise UsageError(
            f"reset: the cached parameters of {request.kernel} are for a GPU: only a new search replaces them"
        )
    _chosen_on_cpu(request)
    return blocking.forget_blocking()


@contextlib.contextmanager
def _written(json_file: Path | None, tell: Listener) -> Iterator[Listener]:
    """A function that writes each record to ``json_file``, if there is one, and passes it to ``tell``."""
    if json_file is None:
        yield tell
        return
    with Writer(json_file) as writer:

        def write_and_tell(record: BenchRecord) -> None:
            writer.write(record)
            tell(record)

        yield write_and_tell


def _chosen(request: TuneRequest) -> tuple[CudaKernel, Shape, str]:
    """The kernel, the size and the dtype: by default float32 if the kernel takes it, else the first that it takes."""
    _refuse_unknown(request.kernel)
    (kernel,) = find([request.kernel], device="cuda")
    if not kernel.parameters:
        raise UsageError(f"{kernel.name} cannot be tuned: it has no parameters; can be: {', '.join(tunable())}")
    if request.dtype is not None and request.dtype not in FORMATS:
        raise UsageError(f"dtype {request.dtype!r}: {did_you_mean(request.dtype, FORMATS)}")
    return kernel, _size(request, "4096"), request.dtype or own_dtype(kernel)


def _refuse_unknown(name: str) -> None:
    """Raises UsageError for a name that no kernel of any device has; the message names those that can be tuned."""
    every = [*catalog(), *cuda_catalog(), *cuda_engine()]
    if name.endswith((".py", ".cu")) or name in every or any(full.partition("/")[2] == name for full in every):
        return
    raise UsageError(f"kernel {name!r} is not known: {did_you_mean_kernel(name, tunable())}")


def _chosen_on_cpu(request: TuneRequest) -> tuple[Kernel, Shape, str]:
    _refuse_unknown(request.kernel)
    (kernel,) = find([request.kernel])
    dtype = request.dtype or own_dtype(kernel)
    check_tunable(kernel, dtype)
    return kernel, _size(request, "2048"), dtype


def _size(request: TuneRequest, default: str) -> Shape:
    size = request.size or default
    shapes = parse_sizes(size)
    if len(shapes) != 1:
        raise UsageError(f"size {size!r}: give one size; each size has best parameters of its own")
    if request.seed < 0:
        raise UsageError(f"seed must not be negative, got {request.seed}")
    return shapes[0]
