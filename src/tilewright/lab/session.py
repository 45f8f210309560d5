"""One run of the bench from what a person typed: parse, choose, resume, measure with progress, keep what is done."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..errors import UnavailableError, UsageError, did_you_mean
from ..kernels import Kernel, catalog, find, reference
from ..machine import machine
from ..operands import load_matrix
from ..records import BenchRecord, Writer
from ..run.cpu import runner
from .bench import Bench
from .cells import Cell, Settings, cells
from .environment import environment
from .sizes import parse_sizes

_DTYPES = ("float32", "float64")
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "": 1.0}


@dataclass(frozen=True)
class Request:
    """The options of ``tilewright bench`` as they were typed."""

    kernels: list[str] = field(default_factory=list)
    device: str = "cpu"
    sizes: str = "512"
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
        done = Done([record for record in writer.done if record.cell in kept])
        return _measure(bench, [cell for cell in todo if _cell_key(cell) not in kept], done, writer, console)


def _measure(bench: Bench, todo: list[Cell], done: Done, writer: Writer | None, console: Console) -> Done:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(todo), left="")
        try:
            for index, cell in enumerate(todo):
                left = f"about {_clock(bench.remaining_s(todo[index:]))} left"
                progress.update(task, description=cell.label, left=left)
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


def _kept(done: list[BenchRecord], todo: list[Cell], bench: Bench) -> set[tuple[Any, ...]]:
    """Cells of an earlier run that still stand: same kernel source, machine, operands and seed."""
    sources = {_cell_key(cell): cell.kernel.source_hash for cell in todo}
    now = bench.environment
    return {
        record.cell
        for record in done
        if sources.get(record.cell) == record.environment.get("kernel_source")
        and all(record.environment.get(key) == now[key] for key in ("processor", "cores", "operands"))
        and record.seed == bench.settings.seed
    }


# ---- what was typed --------------------------------------------------------------------------------------------------


def _settings(request: Request) -> tuple[Settings, str]:
    if request.device != "cpu":
        if request.device == "cuda":
            raise UnavailableError("device 'cuda': this version has no CUDA kernels; use --device cpu")
        raise UsageError(f"device {request.device!r}: {did_you_mean(request.device, ['cpu'])}")
    kernels = find(request.kernels)
    given, operands = _operands(request)
    sizes = parse_sizes(request.sizes)
    dtypes = _listed("dtype", request.dtype or "float32", _DTYPES)
    if given is not None:
        sizes = [(given[0].shape[0], given[1].shape[1], given[0].shape[1])]
        dtypes = dtypes if request.dtype else [np.result_type(*given).name]
    settings = Settings(
        kernels=[k for k in kernels if not k.is_reference],
        references=_references(request.against) or [k for k in kernels if k.is_reference],
        sizes=sizes,
        dtypes=dtypes,
        threads=_threads(request.threads),
        repeat=request.repeat,
        limit_s=_seconds(request.limit),
        seed=_seed(request.seed),
        params=dict(_param(text) for text in request.params),
        operands=given,
    )
    return settings, operands


def _operands(request: Request) -> tuple[tuple[np.ndarray, np.ndarray] | None, str]:
    if request.operands is None:
        return None, "uniform[-1,1)"
    a, b = (load_matrix(path) for path in request.operands)
    if a.shape[1] != b.shape[0]:
        raise UsageError(f"operands: A is {a.shape}, B is {b.shape}: A's columns must equal B's rows")
    names = " ".join(f"{path.name}" for path in request.operands)
    return (a, b), names


def _references(against: str | None) -> list[Kernel]:
    """Those asked for, which must be there; without a word, all that are there, numpy's own first."""
    if against == "none":
        return []
    if against is not None:
        chosen = [reference(name.strip()) for name in against.split(",")]
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
    """Libraries are found at their first call; raises UnavailableError where there is none."""
    one = np.ones((1, 1), np.float32)
    runner(kernel, "float32")(one, one, one.copy())


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


def _param(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.lstrip("-").isdigit():
        raise UsageError(f"param must be NAME=INTEGER, got {text!r}")
    return name.strip(), int(value)
