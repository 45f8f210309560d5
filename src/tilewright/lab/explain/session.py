"""One call of ``tilewright explain``: words → kernels and sizes → explanations, with progress on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...catalog import find
from ...errors import UsageError
from ...records.explanation import Explanation
from ...simulator.gpus import find_gpu
from ...simulator.machine.arguments import whole_number
from ...simulator.run.simulate import MAX_STEPS
from ..inputs.params import check_names, param_sets, parse_params
from ..inputs.sizes import parse_sizes
from .cuda import explain_prepared
from .measure import check_gpu, measured
from .prepared import Prepared, prepare


@dataclass(frozen=True)
class Request:
    """What was asked, as it was written."""

    kernels: list[str]
    size: str = "64"
    gpu: str = "H200"
    params: list[str] = field(default_factory=list)
    whole: bool = False
    measure: bool = False
    seed: int = 1
    max_steps: int = MAX_STEPS


def run(
    request: Request, *, console: Console, finished: Callable[[Explanation], None] | None = None
) -> list[Explanation]:
    """An explanation for each kernel, size and allowed set of parameters; ``finished`` gets each as soon as it is there.

    Raises UsageError, and what ``explain`` raises, before anything is run if any of them cannot be.
    """
    shapes = parse_sizes(request.size)
    if request.seed < 0:
        raise UsageError(f"seed must not be negative, got {request.seed}")
    whole_number("max-steps", request.max_steps, 1)
    find_gpu(request.gpu)
    if request.measure:
        check_gpu(request.gpu)
    kernels = find(request.kernels, device="cuda")
    params = parse_params(request.params)
    check_names(params, kernels)
    sets = [(kernel, chosen) for kernel in kernels for chosen in param_sets(kernel, params)]
    prepared = [
        prepare(kernel, *shape, gpu=request.gpu, params=chosen, whole=request.whole or None)
        for kernel, chosen in sets
        for shape in shapes
    ]
    found = []
    for one in prepared:
        found.append(_one(one, request, console))
        if finished is not None:
            finished(found[-1])
    return found


def _one(prepared: Prepared, request: Request, console: Console) -> Explanation:
    with _progress(prepared.kernel.name, console) as progress:
        found = explain_prepared(prepared, seed=request.seed, max_steps=request.max_steps, progress=progress)
    if not request.measure:
        return found
    return dataclasses.replace(found, measured=measured(prepared.kernel, found, request.seed))


@contextmanager
def _progress(name: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    named = TextColumn("{task.description}", markup=False)
    columns = (named, BarColumn(20), MofNCompleteColumn(), TextColumn("blocks"), TimeRemainingColumn())
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
