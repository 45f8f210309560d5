"""Explains any CUDA kernel: what it does to memory, what limits it, and whether its result is what the user expects.

``explain_any`` takes a file of CUDA C++, which may contain host code, or of PTX, and the options of the launch.
"""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import KernelFileError, UnavailableError, UsageError
from ...gpu.runtime.cubin import Resources
from ...gpu.runtime.nvrtc import architectures, compiler
from ...host.machine import machine
from ...kernels.header import code_of
from ...records.explanation import Explanation
from ...records.unit_counters import TENSOR_CYCLES
from ...simulator.counters.sectors import SECTOR
from ...simulator.findings import LAUNCH, STEP_LIMIT
from ...simulator.given_kernels import is_ptx, read_source
from ...simulator.gpus import GpuModel, find_gpu
from ...simulator.machine.options import MAX_BYTES, MAX_STEPS, Progress
from ...simulator.microscope import Observation, microscope
from ...simulator.occupancy import occupancy
from ..inputs.environment import environment
from ..inputs.launches import (
    Arguments,
    LaunchOptions,
    arguments_of,
    expected_arrays,
    options_in,
    options_of_file,
)
from ..inputs.signatures import BYTES, Signature, signatures
from .advice import Rerun, advice_of
from .cuda import (
    ArithmeticUnit,
    ExplainRequest,
    LeastWork,
    card_facts,
    file_names,
    occupancy_facts,
    predicted_time,
    stopped_notes,
    time_bounds,
    unknown,
    work_of,
)

#: In a launch of more threads than this, only a sample of the blocks is run, unless all blocks are asked for.
MOST_THREADS_RUN = 1 << 22
#: The largest relative error of a right result, by the number of bytes of an element.
TOLERANCE = {1: 0.2, 2: 2e-2, 4: 1e-4, 8: 1e-10}


@dataclass(frozen=True)
class AnyKernel:
    """A kernel's file, its name in the file, the options of its launch, and those of the compiler.

    ``launch_file`` is a Python file with options of the launch. If ``launch_file`` is None, ``FILE_launch.py`` in the
    folder of ``FILE.cu`` is read, if it exists."""

    path: Path
    kernel: str | None
    options: LaunchOptions = field(default_factory=LaunchOptions)
    launch_file: Path | None = None
    include: Sequence[Path] = ()
    defines: Mapping[str, str] = field(default_factory=dict)


def named_kernel(name: str) -> tuple[Path, str | None] | None:
    """The file and the kernel that a name such as ``FILE.cu::KERNEL`` or ``FILE.ptx`` states; None for any other name.

    >>> named_kernel("a/k.cu::ns::scale<8>"), named_kernel("k.ptx"), named_kernel("cuda/coalesced")
    ((PosixPath('a/k.cu'), 'ns::scale<8>'), (PosixPath('k.ptx'), None), None)
    """
    found = re.fullmatch(r"(.+?\.(?:cuh?|ptx))(?:::(.+))?", name)
    return (Path(found[1]), found[2]) if found else None


def is_explained_alone(path: Path, kernel: str | None, options: LaunchOptions, launch_file: Path | None) -> bool:
    """Whether a file is explained by ``explain_any``, and not as a matrix product whose header describes the launch.

    ``explain_any`` explains the file if the kernel is named, if an option of the launch is given in the command, the
    kernel's file or a Python file, or if no kernel in the file has the parameters of a product."""
    given = kernel is not None or launch_file is not None or options != LaunchOptions() or path.suffix != ".cu"
    if given or not path.is_file():
        return given
    source = read_source(path)
    return _beside(path).is_file() or options_in(source, None) != LaunchOptions() or _has_no_product(source)


def _has_no_product(source: str) -> bool:
    """Whether a source has kernels, none of which has the parameters of a product, and no header of a product."""
    header = source.removesuffix(code_of(source))
    found = signatures(source)
    return (
        bool(found)
        and not re.search(r"^\s*(idea|grid|block)\s*=", header, re.M)
        and not any(s.is_product for s in found)
    )


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}_launch.py")


def explain_any(
    kernel: AnyKernel,
    *,
    gpu: str = "H200",
    whole: bool = False,
    seed: int = 1,
    max_steps: int = MAX_STEPS,
    progress: Progress | None = None,
) -> Explanation:
    """Explain a kernel for a GPU.

    If the launch has more than MOST_THREADS_RUN threads, a sample of its blocks is run. With ``whole``, all blocks are
    run. Raises UsageError if options are missing or wrong, and what ``microscope`` raises.
    """
    text, card = read_source(kernel.path), find_gpu(gpu)
    options = _options(kernel, text)
    _check_described(kernel, text, options)
    arguments = arguments_of(options.args, seed)
    constants = arguments_of(options.constants, seed)
    grid, block = options.grid or (1,), options.block
    sampled = not whole and math.prod(grid) * math.prod(block or (1024,)) > MOST_THREADS_RUN
    how: dict[str, Any] = {
        "arch": _arch(card),
        "shared_bytes": options.shared,
        "constants": dict(zip(constants.names, constants.values, strict=True)),
        "sampled": sampled,
        "max_steps": max_steps,
        "max_bytes": (machine().memory_total or 2 * MAX_BYTES) // 2,
    }

    def run(source: Any, include: Sequence[Path], macros: Mapping[str, str], seen: Progress | None) -> Observation:
        options = {"include": include, "defines": macros or None, "progress": seen} | how
        return microscope(source, kernel.kernel, grid, block, arguments.values, **options)

    def rerun(changed: str, macros: Mapping[str, str]) -> Observation:
        return run(changed, [*kernel.include, kernel.path.parent], {**kernel.defines, **macros}, None)

    seen = run(kernel.path, kernel.include, kernel.defines, progress)
    return _explanation(kernel, text, card, seen, options, arguments, seed, None if is_ptx(text) else rerun)


def _options(kernel: AnyKernel, text: str) -> LaunchOptions:
    """The options of the command, else of the Python file, else of the comments in the kernel's file."""
    options = options_in(text, kernel.kernel)
    file = kernel.launch_file or (_beside(kernel.path) if _beside(kernel.path).is_file() else None)
    return kernel.options.over(options_of_file(file, kernel.kernel).over(options) if file else options)


def _check_described(kernel: AnyKernel, text: str, options: LaunchOptions) -> None:
    """Raises KernelFileError, with a command to begin with, if neither grid nor arguments are given, or if the kernel has
    another number of parameters."""
    every = signatures(text)
    base = (kernel.kernel or "").partition("<")[0]
    found = [s for s in every if not base or base in (s.name, s.name.rpartition("::")[2])]
    if options.grid is None and not options.args:
        wrong = f"no kernel {base} is seen in it" if every and not found else "say how the kernel is launched"
        raise KernelFileError(f"{kernel.path}: {wrong}. {_example(kernel, found or every)}")
    if len(found) == 1 and found[0].is_certain and not is_ptx(text):
        wanted, given = len(found[0].parameters), len(options.args)
        if wanted != given:
            wrong = f"{found[0].name} takes {wanted} argument{'s' * (wanted != 1)}, got {given}"
            raise KernelFileError(f"{kernel.path}: {wrong}. {_example(kernel, found)}")


def _example(kernel: AnyKernel, found: Sequence[Signature]) -> str:
    """A text: the signatures of kernels, a command that launches the first kernel, and the other options."""
    if not found:
        return "Give --grid, --block, and an --arg for each parameter, such as x:float32:1024 for an array, or n=1024"
    several = len(found) > 1
    listed = "\n".join(f"    {signature}" for signature in found)
    of_kernel = kernel.kernel if kernel.kernel and not several else None
    command = found[0].command(kernel.path, of_kernel)
    unknown_sizes = " BYTES stands for the size of a type that is not known here." if BYTES in command else ""
    begin = (
        f"Begin with this command{' for the first' * several}, and change its sizes and values to yours.{unknown_sizes}"
    )
    comment = f"into a comment '// explain: --grid …' of {kernel.path.name}, or into {_beside(kernel.path).name}"
    more = f"Add --expect 'NAME = EXPRESSION' to have an array compared. You can also write the options {comment}."
    what = "Its kernels are" if several else "The kernel is"
    return "\n\n".join(
        [what, listed, textwrap.fill(begin, 78), textwrap.indent(command, "    "), textwrap.fill(more, 78)]
    )


def _arch(card: GpuModel) -> str:
    """The architecture of a card with its own instructions, or the compiler's oldest if the card is older than that."""
    try:
        known = architectures()
    except UnavailableError:  # PTX needs no compiler
        return card.arch
    if card.arch not in known:
        return known[0]
    return f"{card.arch}a" if card.compute_capability >= (9, 0) else card.arch


def explain_files(
    request: ExplainRequest,
    options: LaunchOptions,
    launch_file: Path | None,
    *,
    finished: Callable[[Explanation], None] = lambda explanation: None,
    progress: Callable[[str], AbstractContextManager[Progress]],
) -> list[Explanation]:
    """Return an explanation for each kernel of ``request``. For matrix products, ``run_explanations`` makes the
    explanations."""
    if request.seed < 0:
        raise UsageError(f"seed must not be negative, got {request.seed}")
    explanations = []
    each_named = [(name, named_kernel(name)) for name in request.kernels]
    files = file_names([named[0] for _, named in each_named if named])
    for name, named in each_named:
        if named is None:
            raise UsageError(f"{name}: explain it without the others, because it is not a file of CUDA C++ or PTX")
        kernel = AnyKernel(*named, options, launch_file, request.include, request.defines)
        with progress(name) as blocks:
            how: dict[str, Any] = {"gpu": request.gpu, "whole": request.whole, "seed": request.seed}
            explanation = explain_any(kernel, max_steps=request.max_steps, progress=blocks, **how)
        explanations.append(dataclasses.replace(explanation, file=files[kernel.path]))
        finished(explanations[-1])
    return explanations


# ---- the record ------------------------------------------------------------------------------------------------------


def _explanation(
    kernel: AnyKernel,
    text: str,
    card: GpuModel,
    seen: Observation,
    options: LaunchOptions,
    arguments: Arguments,
    seed: int,
    rerun: Rerun | None,
) -> Explanation:
    needs = seen.resources or Resources(0, 0, 0, 0, 0, None)
    dynamic, blocks, threads = seen.shared_bytes, math.prod(seen.grid), math.prod(seen.block)
    resident = occupancy(card, threads, needs.registers, needs.shared_bytes + dynamic)
    moved = min(_bytes(arguments), SECTOR * sum(a.sectors for a in seen.accesses if a.space == "global"))
    cycles = seen.counters.get(TENSOR_CYCLES, 0)
    work = work_of(seen, arguments.values, threads=threads, registers=needs.registers, shared_bytes=resident.shared)
    without = [] if seen.resources else ["registers and occupancy are not known without a binary"]
    verified = _verified(seen, options, arguments)
    bounds = time_bounds(card, None, LeastWork(0, moved), blocks, seen.accesses, cycles)
    timed = seen.run.complete and verified["ok"] is not False and resident.blocks
    advice = advice_of(seen, card, bounds if timed else [], resident, rerun=rerun, macros=kernel.defines)
    made = {} if is_ptx(text) else {"compiler": compiler(), "arch": _arch(card)}
    return Explanation(
        kernel=seen.kernel,
        file=kernel.path.name,
        source=text,
        m=0,
        n=0,
        k=0,
        dtype="",
        params={},
        about={"idea": "", "parent": None, "row": "", "order": 0},
        gpu=card_facts(card, card.fp32_gflops),
        launch={"grid": seen.grid, "block": seen.block, "shared_bytes": dynamic, "blocks": blocks, "threads": threads},
        resources=dataclasses.asdict(needs),
        occupancy=occupancy_facts(card, resident),
        accesses=seen.accesses,
        counters=seen.counters,
        formulas=[],
        bounds=bounds,
        defects=[
            dataclasses.replace(defect, text=_named(defect.text, arguments))
            for defect in seen.defects
            if defect.kind not in (STEP_LIMIT, LAUNCH)
        ],
        verified=verified,
        run={
            **{name: getattr(seen.run, name) for name in ("blocks_run", "blocks_total", "steps", "complete")},
            **{"exact": seen.exact, "words": seen.words, "seconds": seen.seconds},
        },
        included=seen.included,
        printed=seen.printed,
        approximate=sorted(seen.approximate),
        pipeline=seen.pipeline,
        predicted=predicted_time(work, card) if work.pipelined and seen.run.complete and seen.resources else [],
        advice=advice,
        notes=[
            *dict.fromkeys([
                *stopped_notes(seen), *(f.text for f in seen.findings if f.kind == LAUNCH), *seen.notes, *without,
                *unknown(card, ArithmeticUnit("", 1.0)),
            ])
        ],
        environment=environment(operands=f"seed {seed}") | made,
    )  # fmt: skip


def _bytes(arguments: Arguments) -> int:
    return sum({id(array): array.nbytes for array in arguments.arrays().values()}.values())


def _named(text: str, arguments: Arguments) -> str:
    """A finding that names arguments by their position, with their names."""
    names = {str(i): name for i, name in enumerate(arguments.names) if not name.isdigit()}
    return re.sub(r"\bargument (\d+)\b", lambda found: names.get(found[1], found[0]), text)


def _verified(seen: Observation, options: LaunchOptions, arguments: Arguments) -> dict[str, Any]:
    """Whether the arrays have the expected values."""
    unchecked = {"ok": None, "error_over_bound": None, "of": ""}
    if not options.expect:
        return unchecked | {"reason": "not compared: say what must result, such as --expect 'y = 2 * x'"}
    if not seen.run.complete:
        return unchecked | {"reason": f"stopped after {seen.run.steps:,} steps: result not complete, not verified"}
    if seen.run.sampled:
        return unchecked | {"reason": "not compared: only a sample of the blocks was run; --whole runs all"}
    after = dict(zip(arguments.names, seen.arrays, strict=True))
    changed = [name for name, array in arguments.arrays().items() if not _same(after[name], array)]
    worst = 0.0
    expected = expected_arrays(options.expect, arguments, changed)
    for name, right in expected.items():
        reason, error = _compared(name, after[name], right)
        if reason:
            return {"ok": False, "reason": reason, "error_over_bound": None, "of": name}
        worst = max(worst, error)
    of = f"every element of {', '.join(expected)}"
    return {"ok": True, "reason": "", "error_over_bound": worst if worst else None, "of": of}


def _same(after: Any, before: np.ndarray) -> bool:
    """Whether an array is unchanged. An array that was passed by value has no memory that a kernel could write."""
    return after is None or after is before or after.tobytes() == before.tobytes()


def _compared(name: str, actual: np.ndarray, right: np.ndarray) -> tuple[str, float]:
    """The reason why an array is wrong (empty if it is right), and its largest error divided by the allowed error.

    Whole numbers must be equal. The error of a real number is relative to the number itself, or to the root mean square
    of all numbers if that is greater, so that a sum that cancels may have the error of its terms.
    """
    right = np.broadcast_to(right.reshape(-1) if right.size > 1 else right.reshape(()), actual.size).reshape(
        actual.shape
    )
    if actual.dtype.kind in "iub":
        wrong = actual != right
        error = np.where(wrong, np.inf, 0.0)
    else:
        values = actual.astype(np.complex128 if actual.dtype.kind == "c" else np.float64)
        finite = np.isfinite(right)
        scale = float(np.sqrt(np.mean(np.abs(right[finite]) ** 2))) if finite.any() else 0.0
        size = actual.dtype.itemsize // (2 if actual.dtype.kind == "c" else 1)
        allowed = TOLERANCE[min(size, 8)] * np.maximum(np.abs(right), scale) + np.finfo(np.float64).tiny
        with np.errstate(all="ignore"):
            error = np.abs(values - right) / allowed
        error = np.where((values == right) | (np.isnan(values) & np.isnan(right)), 0.0, error)
        wrong = ~(error <= 1)
    if not wrong.any():
        return "", float(error.max(initial=0.0))
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum()):,} of {actual.size:,} elements differ"
    return f"{count}, the first {name}{list(first)}: {actual[first]:.9g}, expected {right[first]:.9g}", 0.0
