"""Runs the bench once, from the command's options to the records: parses options, chooses cells, resumes an earlier
run, measures, and writes records."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...cpu.runtime.runner import call_once, runner
from ...errors import UnavailableError, UsageError, did_you_mean
from ...gpu.planning.choice import best_params
from ...gpu.runtime.cublas import CUBLAS, Reference
from ...host.machine import machine
from ...kernels import NUMERIC, Kernel
from ...kernels.catalog import catalog, find, reference
from ...records.bench import BenchRecord, Writer
from ...records.compare import MIN_SAMPLES
from ..inputs.distributions import check_benched
from ..inputs.environment import environment
from ..inputs.formats import FORMATS
from ..inputs.options import Shape, asked_sets, param_sets, parse_params, parse_seconds, parse_sizes
from .cells import Cell, Settings, TimeLeft, cells
from .cpu import Bench
from .cuda import CudaBench
from .library import LIBRARY
from .library import NAMES as LIBRARY_NAMES
from .operand_sets import check_range, read_operands

DEFAULT_SIZES = {"cpu": "64,256,512,1000,2048", "cuda": "256,1000,1024,2048,4096"}
_DTYPES = {"cpu": (*NUMERIC, "float16"), "cuda": tuple(FORMATS)}
#: Keys of the environment that must be unchanged for a record of an earlier run to be reused.
_SHAPING = {
    "cpu": ("kernel_source", "processor", "cores", "llvm_cpu", "numpy", "numba", "operands"),
    "cuda": ("kernel_source", "gpu", "driver", "nvrtc", "blas", "operands"),
}

AnyBench = Bench | CudaBench
#: A function that prints a line for the user.
Say = Callable[[str], None]
#: A function that is called before each cell, with the cell, the number of cells done, the number of all cells, and a
#: function that estimates the time left.
Begin = Callable[[Cell, int, int, Callable[[], TimeLeft]], None]


@dataclass(frozen=True)
class BenchRequest:
    """The options of ``tilewright bench`` as they were typed."""

    kernels: list[str] = field(default_factory=list)
    device: str = "cpu"
    sizes: str | None = None
    operands: tuple[Path, Path] | None = None
    distribution: str | None = None
    dtype: str | None = None
    threads: str | None = None
    against: str | None = None
    repeat: int = MIN_SAMPLES
    limit: str = "10s"
    seed: int = 1
    params: list[str] = field(default_factory=list)
    tuned: bool = False


@dataclass
class RunRecords:
    """The records of a run, including those of the resumed run, and whether the run was interrupted."""

    records: list[BenchRecord] = field(default_factory=list)
    interrupted: bool = False


def _ignore(*reported: object) -> None:
    """Does nothing."""


def run_bench(
    request: BenchRequest,
    *,
    json_file: Path | None = None,
    resume: bool = False,
    say: Say = _ignore,
    begin: Begin = _ignore,
) -> RunRecords:
    """Measure the cells of ``request``. Ctrl-C ends the run and keeps every finished cell."""
    settings, operands = _settings(request)
    with contextlib.closing(_bench(settings, environment(operands=operands))) as bench:
        _say_left_out(settings, say)
        todo = _cells(settings, bench, say)
        if json_file is None:
            return _measure(bench, todo, RunRecords(), None, say, begin)
        with Writer(json_file, resume=resume) as writer:
            valid = _valid_records(writer.done, todo, bench)
            for cell in todo:
                if record := valid.get(_cell_key(cell)):
                    bench.resume(cell, record)
            left = [cell for cell in todo if _cell_key(cell) not in valid]
            return _measure(bench, left, RunRecords(list(valid.values())), writer, say, begin)


def _bench(settings: Settings, where: dict[str, Any]) -> AnyBench:
    return CudaBench(settings, where) if settings.device == "cuda" else Bench(settings, where)


def _say_left_out(settings: Settings, say: Say) -> None:
    for kernel in settings.kernels:
        asked, allowed = asked_sets(kernel, settings.params), len(param_sets(kernel, settings.params))
        if allowed < asked:
            say(f"{kernel.name}: {asked - allowed} of {asked} combinations left out: it does not allow them")


def _cells(settings: Settings, bench: AnyBench, say: Say) -> list[Cell]:
    """The cells of ``settings``; if they are ``tuned``, with the parameters that the tuner cached for this GPU."""
    tuned_kernels: dict[str, None] = {}

    def cached(kernel: Any, dtype: str, shape: Shape) -> dict[str, Any] | None:
        best = best_params(kernel, bench.environment["gpu"], dtype, shape)
        if best is not None:
            tuned_kernels[kernel.name] = None
        return best

    todo = cells(settings, cached)
    if settings.tuned:
        names = ", ".join(tuned_kernels)
        say(
            f"tuned: cached for {names}" if names else "tuned: nothing is cached; tilewright tune KERNEL finds the best"
        )
    return todo


def _measure(
    bench: AnyBench, todo: list[Cell], done: RunRecords, writer: Writer | None, say: Say, begin: Begin
) -> RunRecords:
    bench.spare_s = bench.undecided_s * len(todo)
    try:
        for index, cell in enumerate(todo):
            bench.cells_left = len(todo) - index
            begin(cell, index, len(todo), functools.partial(bench.time_left, todo[index:]))
            record = bench.measure(cell)
            done.records.append(record)
            if writer is not None:
                writer.write(record)
    except KeyboardInterrupt:
        done.interrupted = True
        where = f" in {writer.path}; --resume continues" if writer else ""
        say(f"interrupted: {len(done.records)} finished cells kept{where}")
    return done


# ---- resume ----------------------------------------------------------------------------------------------------------


def _cell_key(cell: Cell) -> tuple[Any, ...]:
    return cell.record("ok").cell


def _valid_records(done: list[BenchRecord], todo: list[Cell], bench: AnyBench) -> dict[tuple[Any, ...], BenchRecord]:
    """Cells of an earlier run that are still valid, the last record of each, in the order of measurement.

    They are valid if nothing has changed that they depend on: kernel source and constants, machine, libraries, operands and
    seed, and the reference. Cells for which there was too little time or memory are measured again.
    """
    last = {record.cell: record for record in done}
    wanted = ((key, cell) for cell in todo if (key := _cell_key(cell)) in last)
    return {key: last[key] for key, cell in wanted if _is_valid(last[key], cell, bench)}


def _is_valid(record: BenchRecord, cell: Cell, bench: AnyBench) -> bool:
    then, now = record.environment, bench.environment | {"kernel_source": cell.kernel.source_hash}
    references = bench.settings.references
    reference = references[0].name if references and references[0] is not cell.kernel else None
    return (
        all(then.get(key) == now[key] for key in _SHAPING[cell.device])
        and record.about.get("constants") == cell.record("ok").about["constants"]
        and record.seed == bench.settings.seed
        and record.verdict not in ("time_limit", "out_of_memory")
        and (record.reference == reference or not record.samples_s)
    )


# ---- options ---------------------------------------------------------------------------------------------------------


def _settings(request: BenchRequest) -> tuple[Settings, str]:
    device = request.device
    if device not in _DTYPES:
        raise UsageError(f"device {device!r}: {did_you_mean(device, _DTYPES)}")
    if request.tuned and device != "cuda":
        raise UsageError(f"tuned: only kernels on a GPU are tuned; add --device cuda, got {device}")
    kernels = _kernels(request.kernels, device)
    given, operands = _operands(request)
    sizes = parse_sizes(DEFAULT_SIZES[device] if request.sizes is None else request.sizes)
    dtypes = _dtypes(request, kernels)
    if request.distribution is not None:
        check_benched(request.distribution, dtypes)
    engine = []
    if device == "cpu" and not request.kernels:  # no kernel named: all rungs that take one of the dtypes
        kernels = [kernel for kernel in [*kernels, LIBRARY] if set(dtypes) & set(kernel.dtypes)]
        engine = [kernel for kernel in catalog().values() if not (kernel.is_rung or kernel.is_reference)]
    if given is not None:
        sizes = [(given[0].shape[0], given[1].shape[1], given[0].shape[1])]
        if device == "cpu" and not request.dtype:
            dtypes = [np.result_type(*given).name]
        for dtype in dtypes or ["float32"]:
            check_range(*given, dtype)
    settings = Settings(
        kernels=kernels,
        references=_libraries(request.against) if device == "cuda" else _references(request.against),
        sizes=sizes,
        dtypes=dtypes,
        threads=_threads(request),
        repeat=request.repeat,
        limit_s=parse_seconds("limit", request.limit),
        seed=_seed(request.seed),
        params=parse_params(request.params),
        tuned=request.tuned,
        operands=given,
        distribution=request.distribution or "",
        device=device,
        engine=engine,
    )
    return settings, operands


def _dtypes(request: BenchRequest, kernels: list[Any]) -> list[str]:
    """The dtypes of the request. The default is float32 on the CPU; on a GPU it is an empty list, which means each kernel's
    own. Raises UsageError where no kernel on the GPU takes any of the dtypes."""
    if request.dtype is None:
        return ["float32"] if request.device == "cpu" else []
    asked = _listed("dtype", request.dtype, _DTYPES[request.device])
    if request.device == "cuda" and not any(dtype in kernel.dtypes for dtype in asked for kernel in kernels):
        taken = ", ".join(f"{kernel.name} {'/'.join(kernel.dtypes)}" for kernel in kernels)
        raise UsageError(f"dtype {request.dtype!r}: none of the chosen kernels takes it: {taken}")
    return asked


def _kernels(names: list[str], device: str) -> list[Any]:
    """The kernels of these names or files, each once. Two files with kernels of one name are refused, because a table and
    the records know kernels by their names."""
    try:
        found: list[Any] = list(find(names, device="cuda") if device == "cuda" else _on_cpu(names))
    except SystemExit as error:  # raised by a user's file
        raise UsageError(f"kernel files {' '.join(names)}: one of them ends the program (exit {error})") from None
    chosen: dict[str, Any] = {}
    for kernel in found:
        if (other := chosen.setdefault(kernel.name, kernel)).path != kernel.path:
            raise UsageError(f"kernel {kernel.name}: {other.path} and {kernel.path} have one name; rename one of them")
    return list(chosen.values())


def _on_cpu(names: list[str]) -> list[Kernel]:
    """The kernels of these names; the library's call may be one of them, though it is not in the catalog."""
    return [kernel for name in names for kernel in ([LIBRARY] if name in LIBRARY_NAMES else find([name]))] or find([])


def _operands(request: BenchRequest) -> tuple[tuple[np.ndarray, np.ndarray] | None, str]:
    """The user's matrices, if there are any, and the text for the operands in the record."""
    if request.operands is None:
        return None, request.distribution or "uniform[-1,1)"
    if request.distribution is not None:
        raise UsageError(
            f"distribution {request.distribution!r}: operands have numbers of their own; give one of the two"
        )
    if request.sizes is not None:
        raise UsageError(f"sizes {request.sizes!r}: operands have a size of their own; give one or the other")
    return read_operands(request.operands)


def _references(against: str | None) -> list[Kernel]:
    """The references of ``against``, which must be installed; by default all that are installed, numpy's own first."""
    if against == "none":
        return []
    if against is not None:
        chosen = list(dict.fromkeys(reference(name.strip()) for name in against.split(",")))
        for kernel in chosen:
            _load_library(kernel)
        return chosen
    installed = []
    for kernel in sorted((k for k in catalog().values() if k.is_reference), key=lambda k: k.name != "ref/openblas"):
        try:
            _load_library(kernel)
        except UnavailableError:
            continue
        installed.append(kernel)
    return installed


def _libraries(against: str | None) -> list[Reference]:
    """cuBLAS. The process that uses the GPU loads it; where it is not installed, the records of its cells say so."""
    if against == "none":
        return []
    for name in ("cublas" if against is None else against).split(","):
        if (short := name.strip().removeprefix("ref/")) != "cublas":
            raise UsageError(f"reference {short!r} is not known on a GPU: {did_you_mean(short, ['cublas', 'none'])}")
    return [CUBLAS]


def _load_library(kernel: Kernel) -> None:
    """Call a library once, which loads it. Raises UnavailableError where it is not installed or does not load."""
    try:
        call_once(runner(kernel, "float32"), "float32")
    except OSError as error:
        raise UnavailableError(f"{kernel.name}: the library does not load: {error}") from None


def _listed(name: str, text: str, allowed: tuple[str, ...]) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if item not in allowed:
            raise UsageError(f"{name} {item!r}: {did_you_mean(item, allowed)}")
    return list(dict.fromkeys(items))


def _threads(request: BenchRequest) -> list[int]:
    cores, text = machine().usable_cores, request.threads
    if request.device == "cuda":
        if text is not None:
            raise UsageError(f"threads {text!r}: a GPU has no such number to choose; leave it out with --device cuda")
        return [1]
    if text is None:
        return [cores]
    try:
        counts = [int(item) for item in text.split(",")]
    except ValueError:
        raise UsageError(f"threads must be numbers joined by commas, got {text!r}") from None
    for count in counts:
        if not 1 <= count <= 4 * cores:
            raise UsageError(f"threads must be from 1 to {4 * cores} ({cores} cores are usable here), got {count}")
    return sorted(set(counts))


def _seed(seed: int) -> int:
    if seed < 0:
        raise UsageError(f"seed must not be negative, got {seed}")
    return seed
