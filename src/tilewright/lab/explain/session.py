"""One call of ``tilewright explain``: options → kernels and sizes → explanations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...kernels.catalog import find
from ...kernels.cuda_kernel import CudaKernel
from ...records.explanation import Explanation
from ...simulator.gpus import GpuModel, find_gpu
from ...simulator.machine.arguments import whole_number
from ...simulator.machine.options import MAX_STEPS
from ..inputs.options import Shape, check_names, param_sets, parse_params, parse_sizes
from .checked_launch import check_launch
from .cuda import explain_launch
from .measure import check_gpu, measured

#: The default size of a single explanation: all blocks run, in a second.
SIZE = 64
#: The default sizes of explanations that are compared: the first that fills the card. A sample of blocks runs, in seconds.
COMPARED = (1024, 2048)
#: Called with the number of blocks of a launch that have run, and of all.
Blocks = Callable[[int, int], None]


def _ignore(done: int, total: int) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class ExplainRequest:
    """The options of ``tilewright explain`` as they were typed."""

    kernels: list[str]
    size: str | None = None
    gpu: str = "H200"
    params: list[str] = field(default_factory=list)
    whole: bool = False
    measure: bool = False
    seed: int = 1
    max_steps: int = MAX_STEPS
    include: list[Path] = field(default_factory=list)
    defines: dict[str, str] = field(default_factory=dict)


def run_explanations(
    request: ExplainRequest,
    *,
    finished: Callable[[Explanation], None] = lambda explanation: None,
    progress: Callable[[str], AbstractContextManager[Blocks]] = lambda kernel: nullcontext(_ignore),
) -> list[Explanation]:
    """An explanation for each kernel, size and allowed set of parameters; ``finished`` is called with each when it is made.

    For each launch, ``progress`` is called with the kernel's name; it returns a context, whose value is called with the
    blocks that have run. Raises UsageError, and what ``explain`` raises, before any kernel runs if one of them is refused.
    """
    shapes = None if request.size is None else parse_sizes(request.size)
    if request.seed < 0:
        raise UsageError(f"seed must not be negative, got {request.seed}")
    whole_number("max-steps", request.max_steps, 1)
    card = find_gpu(request.gpu)
    if request.measure:
        check_gpu(request.gpu)
    kernels = find(request.kernels, device="cuda")
    params = parse_params(request.params)
    check_names(params, kernels)
    sets = [(kernel, chosen) for kernel in kernels for chosen in param_sets(kernel, params)]
    options: dict[str, Any] = {"include": request.include, "defines": request.defines}
    prepared = [
        check_launch(kernel, *shape, gpu=request.gpu, params=chosen, whole=request.whole or None, **options)
        for kernel, chosen in sets
        for shape in shapes or _default_sizes(sets, card)
    ]
    explanations = []
    for each in prepared:
        with progress(each.kernel.name) as blocks:
            explanation = explain_launch(each, seed=request.seed, max_steps=request.max_steps, progress=blocks)
        if request.measure:
            explanation = dataclasses.replace(explanation, measured=measured(each.kernel, explanation, request.seed))
        explanations.append(explanation)
        finished(explanation)
    return explanations


def _default_sizes(sets: Sequence[tuple[CudaKernel, Mapping[str, int]]], card: GpuModel) -> list[Shape]:
    """The default size: SIZE for a single kernel; for several, which are compared, the first of COMPARED at which each
    launch has a block for every multiprocessor, or the last. With fewer blocks multiprocessors are idle, and small tiles,
    which make more blocks, would seem faster than they are.
    """
    if len(sets) == 1:
        return [(SIZE,) * 3]
    for n in COMPARED:
        if all(kernel.launch(n, n, n, **kernel.checked(chosen)).blocks >= card.sms for kernel, chosen in sets):
            break
    return [(n,) * 3]
