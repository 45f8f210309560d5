"""One run of the bench from what a person typed: parse, choose, resume, measure with progress, keep what is done."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..errors import TilewrightError, UnavailableError, UsageError, did_you_mean
from ..kernels import Kernel, catalog, find, reference
from ..machine import machine
from ..operands import load_matrix
from ..records import BenchRecord, Writer
from ..run.cpu import call_once, runner
from .bench import Bench
from .cells import Cell, Settings, cells
from .environment import environment
from .sizes import parse_params, parse_sizes

DEFAULT_SIZES = "64,256,512,1000,2048"
_DTYPES = ("float32", "float64")
#: What must not have changed in the environment for a cell of an earlier run to be kept.
_SHAPING = ("kernel_source", "processor", "cores", "llvm_cpu", "numpy", "numba", "operands")
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "": 1.0}


@dataclass(frozen=True)
class Request:
    """The options of ``tilewright bench`` as they were typed."""

    kernels: list[str] = field(default_factory=list)
    device: str = "cpu"
    sizes: str | None = None
    operands: tuple[Path, Path] | None = None
    dtype: str | None = None
    threads: str | None = None
    against: str | None = None
    repeat: int = 4
    limit: str = "10s"
    seed: int = 1
    params: list[str] = field(default_factory=list)


@dataclass
class Done:
    """The records of a run, resumed ones included, and whether it was cut short."""

    records: list[BenchRecord] = field(default_factory=list)
    interrupted: bool = False


def run(request: Request, *, json_file: Path | None, resume: bool, console: Console) -> Done:
    """Measure what was asked for. Ctrl-C ends the run and keeps every finished cell."""
    settings, operands = _settings(request)
    bench = Bench(settings, environment(operands=operands))
    todo = cells(settings)
    if json_file is None:
        return _measure(bench, todo, Done(), None, console)
    with Writer(json_file, resume=resume) as writer:
        kept = _kept(writer.done, todo, bench)
        for cell in todo:
            if (record := kept.get(_cell_key(cell))) and record.median_s:
                bench.remember(cell, record.median_s)
        left = [cell for cell in todo if _cell_key(cell) not in kept]
        return _measure(bench, left, Done(list(kept.values())), writer, console)


def _measure(bench: Bench, todo: list[Cell], done: Done, writer: Writer | None, console: Console) -> Done:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    shown = console.is_terminal  # and drawn between cells only: a thread that redraws would compete with the kernel
    with Progress(*columns, console=console, transient=True, disable=not shown, auto_refresh=False) as progress:
        task = progress.add_task("", total=len(todo), left="")
        try:
            for index, cell in enumerate(todo):
                if shown:
                    left = f"about {_clock(bench.remaining_s(todo[index:]))} left"
                    progress.update(task, description=cell.label, left=left, refresh=True)
                record = bench.measure(cell)
                done.records.append(record)
                if writer is not None:
                    writer.write(record)
                progress.advance(task)
        except KeyboardInterrupt:
            done.interrupted = True
            kept = f" in {writer.path}; --resume continues" if writer else ""
            console.print(f"interrupted: {len(done.records)} finished cells kept{kept}", highlight=False, markup=False)
    return done


def _clock(seconds: float) -> str:
    return f"{round(seconds / 60)} min" if seconds > 90 else f"{max(1, round(seconds))} s"


# ---- resume ----------------------------------------------------------------------------------------------------------


def _cell_key(cell: Cell) -> tuple[Any, ...]:
    return cell.record("ok").cell


def _kept(done: list[BenchRecord], todo: list[Cell], bench: Bench) -> dict[tuple[Any, ...], BenchRecord]:
    """Cells of an earlier run that still stand, the last record of each, in the order of measurement.

    They stand if nothing has changed that shapes them: kernel source and constants, machine, libraries, operands and
    seed, and the reference. Cells without a time that another limit or more memory would give one are asked again.
    """
    last = {record.cell: record for record in done}
    wanted = ((key, cell) for cell in todo if (key := _cell_key(cell)) in last)
    return {key: last[key] for key, cell in wanted if _stands(last[key], cell, bench)}


def _stands(record: BenchRecord, cell: Cell, bench: Bench) -> bool:
    then, now = record.environment, bench.environment | {"kernel_source": cell.kernel.source_hash}
    references = bench.settings.references
    reference = references[0].name if references and references[0] is not cell.kernel else None
    return (
        all(then.get(key) == now[key] for key in _SHAPING)
        and record.about.get("constants") == cell.record("ok").about["constants"]
        and record.seed == bench.settings.seed
        and record.verdict not in ("time_limit", "out_of_memory")
        and (record.reference == reference or not record.samples_s)
    )


# ---- what was typed --------------------------------------------------------------------------------------------------


def _settings(request: Request) -> tuple[Settings, str]:
    if request.device != "cpu":
        if request.device == "cuda":
            raise UnavailableError(
                "device 'cuda': this version explains CUDA kernels (tilewright explain) and does not time them yet; "
                "use --device cpu"
            )
        raise UsageError(f"device {request.device!r}: {did_you_mean(request.device, ['cpu'])}")
    kernels = _kernels(request.kernels)
    given, operands = _operands(request)
    sizes = parse_sizes(DEFAULT_SIZES if request.sizes is None else request.sizes)
    dtypes = _listed("dtype", "float32" if request.dtype is None else request.dtype, _DTYPES)
    if given is not None:
        sizes = [(given[0].shape[0], given[1].shape[1], given[0].shape[1])]
        dtypes = dtypes if request.dtype else [np.result_type(*given).name]
        for dtype in dtypes:
            _check_range(*given, dtype)
    settings = Settings(
        kernels=kernels,
        references=_references(request.against),
        sizes=sizes,
        dtypes=dtypes,
        threads=_threads(request.threads),
        repeat=request.repeat,
        limit_s=_seconds(request.limit),
        seed=_seed(request.seed),
        params=_single(request.params),
        operands=given,
    )
    return settings, operands


def _kernels(names: list[str]) -> list[Kernel]:
    """Each kernel once; two files of one name would be one row of the table and one cell of the records."""
    try:
        found = find(names)
    except SystemExit as error:  # raised by a file of the user's
        raise UsageError(f"kernel files {' '.join(names)}: one of them ends the program (exit {error})") from None
    chosen: dict[str, Kernel] = {}
    for kernel in found:
        if (other := chosen.setdefault(kernel.name, kernel)).path != kernel.path:
            raise UsageError(f"kernel {kernel.name}: {other.path} and {kernel.path} have one name; rename one of them")
    return list(chosen.values())


def _operands(request: Request) -> tuple[tuple[np.ndarray, np.ndarray] | None, str]:
    """The user's matrices, and the words for them in the record: file names, and what tells their contents apart."""
    if request.operands is None:
        return None, "uniform[-1,1)"
    if request.sizes is not None:
        raise UsageError(f"sizes {request.sizes!r}: operands have a size of their own; give one or the other")
    a, b = (_load(path) for path in request.operands)
    if a.shape[1] != b.shape[0]:
        raise UsageError(f"operands: A is {a.shape}, B is {b.shape}: A's columns must equal B's rows")
    contents = hashlib.sha256()
    for path in request.operands:
        with path.open("rb") as file:
            contents.update(hashlib.file_digest(file, "sha256").digest())
    names = " ".join(path.name for path in request.operands)
    return (a, b), f"{names} (sha256 {contents.hexdigest()[:12]})"


def _load(path: Path) -> np.ndarray:
    try:
        return load_matrix(path)
    except TilewrightError as error:
        raise type(error)(f"operands: {error}") from None


def _check_range(a: np.ndarray, b: np.ndarray, dtype: str) -> None:
    """Raises UsageError where the product could exceed the largest number: every kernel would look wrong."""
    largest = float(np.finfo(dtype).max)
    in_a, in_b = (float(max(x.max(initial=0), -x.min(initial=0))) for x in (a, b))
    if not max(in_a, in_b, in_a * in_b * a.shape[1]) <= largest:
        rule = f"the largest of A times that of B times k must stay within {dtype}'s {largest:.3g}"
        raise UsageError(f"operands: {rule}, got {in_a:.3g}, {in_b:.3g} and {a.shape[1]}; scale them")


def _references(against: str | None) -> list[Kernel]:
    """Those asked for, which must be there; without a word, all that are there, numpy's own first."""
    if against == "none":
        return []
    if against is not None:
        chosen = list(dict.fromkeys(reference(name.strip()) for name in against.split(",")))
        for kernel in chosen:
            _try(kernel)
        return chosen
    found = []
    for kernel in sorted((k for k in catalog().values() if k.is_reference), key=lambda k: k.name != "ref/openblas"):
        try:
            _try(kernel)
        except UnavailableError:
            continue
        found.append(kernel)
    return found


def _try(kernel: Kernel) -> None:
    """Libraries are found at their first call; raises UnavailableError where there is none, or a broken one."""
    try:
        call_once(runner(kernel, "float32"), "float32")
    except OSError as error:
        raise UnavailableError(f"{kernel.name}: the library does not load: {error}") from None


def _listed(name: str, text: str, known: tuple[str, ...]) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if item not in known:
            raise UsageError(f"{name} {item!r}: {did_you_mean(item, known)}")
    return list(dict.fromkeys(items))


def _threads(text: str | None) -> list[int]:
    cores = machine().usable_cores
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


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|)", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"limit must be a time such as 10s, 500ms or 2min, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def _seed(seed: int) -> int:
    if seed < 0:
        raise UsageError(f"seed must not be negative, got {seed}")
    return seed


def _single(texts: list[str]) -> dict[str, int]:
    found = parse_params(texts)
    for name, values in found.items():
        if len(values) > 1:
            raise UsageError(f"param: one value of {name} in one run, got {values}")
    return {name: values[0] for name, values in found.items()}
