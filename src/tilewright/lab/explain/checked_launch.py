"""Checks and compiles the launch that is explained, makes its operands, and verifies its result.

All launches that ``explain`` refuses are refused by this module, before a kernel runs. The result is verified at the
size that is explained and at a small, irregular size. The size that is explained is often 64×64×64, a multiple of every
tile. At a size such as 64×64×64, the result is right even if the kernel has no guards at the edges, or confuses m, n
and k.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CompileError, UnavailableError, UsageError
from ...gpu.runtime.engine_product import PlainLaunch, plain_launch
from ...gpu.runtime.launch import Mapped
from ...gpu.runtime.nvrtc import Compiled, architectures, compile_with, compiler
from ...host.machine import machine
from ...kernels.cuda_kernel import CudaKernel, Launch
from ...simulator.assembly.instructions import Function
from ...simulator.assembly.parser import parse_ptx
from ...simulator.assembly.program import Program, link
from ...simulator.compiled_launch import registers_at_launch
from ...simulator.findings import OUT_OF_BOUNDS, STEP_LIMIT, UNWRITTEN_OUTPUT, UNWRITTEN_READ, Finding
from ...simulator.gpus import GpuModel, find_gpu, named_in_full
from ...simulator.machine.arguments import MOST_BLOCKS
from ...simulator.machine.options import RunOptions
from ...simulator.machine.tensor_map import TensorMap
from ...simulator.microscope import Observation
from ...simulator.run.simulate import Run, run_program
from ..inputs.formats import FORMATS, format_of
from ..inputs.options import ODD_SIZE, Shape, is_odd
from ..verify.verify import NOTHING_WRITTEN, Check, Oracle

# ---- kernel, size and card -------------------------------------------------------------------------------------------

#: Up to this m·n·k every block is run. Of a larger product a sample of the blocks is run. 512³ takes some seconds.
WHOLE = 512**3
#: The parameters that a kernel must have. For an operand in the header's ``boxes`` the parameter is a tensor map.
SIGNATURE = "(const T* a, const T* b, T* c, int m, int n, int k)"
_MAP = "const __grid_constant__ TensorMap"


@dataclass(frozen=True)
class CheckedLaunch:
    """A compiled kernel and its launch on a GPU, both checked.

    ``compiler_options`` has ``include`` and ``defines``, if they were given.
    """

    kernel: CudaKernel
    m: int
    n: int
    k: int
    params: dict[str, int]
    card: GpuModel
    arch: str
    plain: PlainLaunch
    program: Program
    sampled: bool
    notes: list[str]
    compiler_options: dict[str, Any] = field(default_factory=dict)

    @property
    def compiled(self) -> Compiled:
        """The compiled kernel."""
        return self.plain.compiled

    @property
    def launch(self) -> Launch:
        """The size of the launch."""
        return self.plain.launch


def check_launch(
    kernel: CudaKernel,
    m: int,
    n: int,
    k: int,
    *,
    gpu: str = "H200",
    params: Mapping[str, int] | None = None,
    whole: bool | None = None,
    include: Sequence[str | Path] = (),
    defines: Mapping[str, object] | None = None,
) -> CheckedLaunch:
    """Check the arguments of ``explain`` and compile the kernel. Raises what ``explain`` raises."""
    chosen = kernel.checked(params or {})
    card = find_gpu(gpu)
    sampled = m * n * k > WHOLE if whole is None else not whole
    _check_size(kernel, m, n, k, kernel.launch_on(card.sms, m, n, k, **chosen), sampled)
    arch, notes = arch_for(kernel, card)
    if named_in_full(gpu, card):
        notes = [f"the data of the {card.name} are from: {card.source}", *notes]
    options: dict[str, Any] = {"arch": arch, "sms": card.sms, "defines": defines, "include": include}
    plain = plain_launch(kernel, (m, n, k), kernel.dtypes[0], chosen, **options)
    program = link(parse_ptx(plain.compiled.ptx), plain.entry)
    if not kernel.in_engine:
        _check_signature(kernel, program.entry)
    given = {"include": [str(folder) for folder in include], "defines": dict(defines or {})}
    given_options = {name: value for name, value in given.items() if value}
    return CheckedLaunch(kernel, m, n, k, chosen, card, arch, plain, program, sampled, notes, given_options)


def _check_size(kernel: CudaKernel, m: int, n: int, k: int, launch: Launch, sampled: bool) -> None:
    where = f"{kernel.name} at {m}x{n}x{k}"
    if not launch.blocks:
        raise UsageError(f"{where}: C has no elements, so nothing is launched")
    if not sampled and launch.blocks > MOST_BLOCKS:
        raise UsageError(f"{where}: {launch.blocks:,} blocks are too many to run all: at most {MOST_BLOCKS:,}")
    size = format_of(kernel.dtypes[0], kernel.precision).itemsize
    needed = (m * k + k * n + m * n) * size
    memory = machine().memory_total
    if memory and 2 * needed > memory:
        raise UsageError(
            f"{where}: its operands and a copy of them take {2 * needed >> 30:,} GiB, this machine has {memory >> 30:,}"
        )


def _check_signature(kernel: CudaKernel, function: Function) -> None:
    """Raises UsageError unless the kernel's parameters are a product's operands and sizes."""
    params = function.params
    sizes = [*(128 if name in kernel.boxes else 8 for name in "abc"), 4, 4, 4]
    if [p.size for p in params] != sizes or any(p.type.startswith("f") for p in params):
        types = ", ".join(f".{p.type}" for p in params) or "nothing"
        signature = SIGNATURE
        for name in kernel.boxes:
            signature = re.sub(rf"(const )?T\* {name}\b", f"{_MAP} {name}", signature)
        raise UsageError(
            f"{kernel.path}: {kernel.entry} must take {signature}, takes {types} (in PTX); "
            f"explain a kernel with other parameters as {kernel.path.name}::{kernel.entry} with --grid, --block and --arg, "
            "or in Python with tilewright.microscope"
        )


def arch_for(kernel: CudaKernel, card: GpuModel) -> tuple[str, list[str]]:
    """The architecture to compile for, and notes about it: the GPU's own architecture, or the oldest that the compiler
    knows if the GPU's is older."""
    known = architectures()
    if kernel.capability[-1] in "af" and card.arch == f"sm_{kernel.capability[:-1].replace('.', '')}":
        return f"{card.arch}{kernel.capability[-1]}", []
    if card.arch in known:
        return card.arch, []
    oldest = known[0]
    return oldest, [f"registers are those of {oldest}: {compiler()} does not compile for the {card.name} ({card.arch})"]


# ---- the result, at two sizes ----------------------------------------------------------------------------------------

#: The sizes at which the result is verified again: the first of them that the kernel accepts. From the second on, rows are
#: multiples of 16 bytes, which tensor maps require: for elements of four bytes, of two bytes, and of one byte.
ODD_SIZES = (ODD_SIZE, (33, 36, 28), (33, 40, 24), (33, 48, 80))
#: A run at an odd size takes some thousand steps. It is stopped after this number, or after twice the steps of the run at
#: the size that is explained, whichever is larger.
ODD_STEPS = 50_000


#: The reason for an element that is NaN, if the findings do not tell which of the two is true.
_NAN = "was never written (C starts as NaN), or is not a number"


@dataclass
class Result:
    """Whether a kernel's result is right (``verified``, in values for JSON), and the findings and notes of the runs at
    the explained size and at the small, irregular size."""

    verified: dict[str, Any]
    findings: list[Finding]
    notes: list[str] = field(default_factory=list)


# ---- operands --------------------------------------------------------------------------------------------------------


def operands(kernel: CudaKernel, m: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random A and B, and a C filled with NaN, which shows unwritten elements. All three matrices have the dtype in
    which the kernel's format is stored (``lab.inputs.formats``)."""
    form = format_of(kernel.dtypes[0], kernel.precision)
    rng = np.random.default_rng(seed)
    numbers = [rng.random(shape, form.working) for shape in ((m, k), (k, n))]
    for array in numbers:
        array *= 2
        array -= 1
    a, b = (form.stored(array) for array in numbers)
    return a, b, form.stored(np.full((m, n), np.nan, form.working))


def in_boxes(kernel: CudaKernel, arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a launch as the microscope takes them. Each ``Mapped`` argument becomes a tensor map with a swizzle
    of 128 bytes."""
    kind = {"bfloat16": "bf16"}.get(kernel.dtypes[0])
    return [
        TensorMap(np.asarray(each.memory)[None], (1, *each.operand.box), data_type=kind, swizzle=128)
        if isinstance(each, Mapped)
        else each
        for each in arguments
    ]


def verified(kernel: CudaKernel, a: np.ndarray, b: np.ndarray, c: np.ndarray, *, sampled: bool = False) -> Check:
    """Whether ``c`` is the product of ``a`` and ``b``, within the error bound of the kernel's format. With ``sampled`` only
    the elements that were written are checked."""
    form = format_of(kernel.dtypes[0], kernel.precision)
    oracle = Oracle(form.values(a), form.values(b))
    own = None if form == FORMATS.get(form.name) and form.rounding == 0 else form
    check = (oracle.check_written if sampled else oracle.check)(form.values(c), form=own)
    return replace(check, reason=re.sub(r"is nan: .*", _NAN, check.reason))


# ---- the verdict -----------------------------------------------------------------------------------------------------


def judged(
    p: CheckedLaunch, a: np.ndarray, b: np.ndarray, observed: Observation, *, seed: int, max_steps: int
) -> Result:
    """Whether the kernel's result is right in the ``observed`` run and in a run at an odd size, with the findings of both.

    ``ok`` is None if the observed run was stopped at the limit of steps, because its result is then not complete.
    """
    run, findings = observed.run, list(observed.findings)
    if any(f.kind == STEP_LIMIT for f in findings):
        reason = f"stopped after {run.steps:,} steps: result not complete, not verified"
        return Result({"ok": None, "reason": reason, "error_over_bound": None, "of": ""}, findings)
    c = observed.arrays[p.plain.result].reshape(len(a), -1)
    check = _explained(verified(p.kernel, a, b, c, sampled=run.sampled), findings, p.plain.result)
    of = "the elements that the sampled blocks wrote" if run.sampled else "every element"
    result = Result(check.as_dict() | {"of": of}, findings)
    if run.sampled or not is_odd(p.m, p.n, p.k):
        _judge_odd_size(p, result, seed, min(max_steps, max(ODD_STEPS, 2 * run.steps)))
    _name_overruns(p, result, seed)
    return result


def _judge_odd_size(p: CheckedLaunch, result: Result, seed: int, max_steps: int) -> None:
    """Add the verdict and the findings of a run at an irregular size, or a note if no such run is possible."""
    try:
        shape, plain = _odd_launch(p)
    except UsageError as error:
        result.notes.append(f"verified at this size alone: {error}")
        return
    at = "x".join(map(str, shape))
    if not plain.launch.blocks:
        _add_verdict(result, at, Check(False, np.inf, np.inf, "the grid has no block, so that C is never written"))
        return
    a, b, c = operands(p.kernel, *shape, seed)
    run = _run_once(p.kernel, plain, (a, b, c), max_steps)
    known = {(f.kind, f.file, f.line) for f in result.findings}
    new = [f for f in run.findings if f.kind != STEP_LIMIT and (f.kind, f.file, f.line) not in known]
    result.findings += [replace(f, text=f"{f.text} (at {at})") for f in new]
    if run.complete:
        check = verified(p.kernel, a, b, np.asarray(run.arrays[plain.result]).reshape(c.shape))
        _add_verdict(result, at, _explained(check, run.findings, plain.result))
    elif any(f.kind == STEP_LIMIT for f in run.findings):
        result.notes.append(f"not verified at {at}: it did not end within {run.steps:,} steps")
    else:
        _add_verdict(result, at, Check(False, np.inf, np.inf, "it never ends"))


def _odd_launch(p: CheckedLaunch) -> tuple[Shape, PlainLaunch]:
    """The first of ODD_SIZES that the kernel takes, and the launch at this size. Raises UsageError if the kernel takes
    none of them."""
    options: dict[str, Any] = {"arch": p.arch, "sms": p.card.sms, **p.compiler_options}
    for shape in ODD_SIZES:
        with contextlib.suppress(UsageError):
            return shape, plain_launch(p.kernel, shape, p.kernel.dtypes[0], p.params, **options)
    return ODD_SIZES[0], plain_launch(p.kernel, ODD_SIZES[0], p.kernel.dtypes[0], p.params, **options)


def _run_once(kernel: CudaKernel, plain: PlainLaunch, given: Sequence[np.ndarray], max_steps: int) -> Run:
    """Run a launch on A, B and an empty C, without counting."""
    program = link(parse_ptx(plain.compiled.ptx), plain.entry)
    registers = registers_at_launch(plain.compiled, plain.entry)
    options = RunOptions(
        plain.launch.shared_bytes, [plain.result], None, max_steps, registers=registers, outputs_empty=True
    )
    args = in_boxes(kernel, plain.arguments(given))
    return run_program(program, plain.launch.grid, plain.launch.block, args, options)


def _add_verdict(result: Result, at: str, check: Check) -> None:
    """Add the verdict at another size. A kernel is right if it is right at both sizes; the reason is that of the first
    failure."""
    so_far, other = result.verified, check.as_dict()
    if not so_far["ok"]:
        return
    if check.ok:
        worst = max(so_far["error_over_bound"] or 0.0, other["error_over_bound"] or 0.0)
        result.verified = so_far | {"of": f"{so_far['of']}, and all of C at {at}", "error_over_bound": worst}
    else:
        result.verified = so_far | other | {"reason": f"at {at}: {check.reason}", "at": at}


def _explained(check: Check, findings: Sequence[Finding], result: int) -> Check:
    """A check whose reason says why an element is NaN, if the findings of the same run tell it: C was read before it
    was written, the element was not written, or what was written is not a number."""
    reason = check.reason
    if check.ok or not (reason.endswith(_NAN) or reason == NOTHING_WRITTEN):
        return check
    place = reason.removesuffix(_NAN).strip()
    reads = [f for f in findings if f.kind == UNWRITTEN_READ and f" of argument {result}, " in f.text]
    missing = [f for f in findings if f.kind == UNWRITTEN_OUTPUT]
    if reads:
        element = place if reason.endswith(_NAN) else "C"
        reason = f"{element} is not a number: {_line(reads[0])} reads C before anything is written there"
    elif any(f"element {place.removeprefix('C')} of " in f.text for f in missing):
        reason = f"{place} was never written"
    elif reason.endswith(_NAN):
        reason = f"{place} was written, but is not a number"
    return replace(check, reason=reason)


def _line(finding: Finding) -> str:
    return f"line {finding.line}" if finding.line else "the kernel"


# ---- what the compiler removes ---------------------------------------------------------------------------------------


def _name_overruns(p: CheckedLaunch, result: Result, seed: int) -> None:
    """If C is wrong and no finding says why, look for accesses beyond a thread's local arrays. The behaviour of such
    accesses is undefined, so the optimising compiler removes the code that follows them, often the stores to C, and the
    kernel that was run does not contain the accesses. They are found in the kernel that is compiled without
    optimisation.
    """
    if result.verified["ok"] is not False or any(f.kind != UNWRITTEN_OUTPUT for f in result.findings):
        return
    found = _local_overruns(p, seed)
    if not found:
        return
    without = "(compiled without optimisation)"
    result.findings = [
        replace(f, text=f"{re.sub(r'local __local_depot[0-9]+', 'the local arrays of a thread', f.text)} {without}")
        for f in found
    ]
    why = f"{_line(found[0])} accesses memory beyond a local array, and the compiler removes what that leads to"
    reason = result.verified["reason"].replace("was never written", "is not stored")
    result.verified = result.verified | {"reason": f"{reason}: {why}"}


def _local_overruns(p: CheckedLaunch, seed: int) -> list[Finding]:
    """Returns None for a kernel that cannot be compiled, or run, without optimisation."""
    if p.kernel.in_engine:
        return []
    macros, include = p.compiler_options.get("defines", {}), p.compiler_options.get("include", ())
    try:
        shape, plain = _odd_launch(p)
        unoptimised = compile_with(p.kernel, p.params, p.arch, macros, include, optimised=False)
        plain = replace(plain, compiled=unoptimised, entry=unoptimised.entry(p.kernel.entry))
        run = _run_once(p.kernel, plain, operands(p.kernel, *shape, seed), ODD_STEPS)
    except (CompileError, UnavailableError, UsageError):
        return []
    return [f for f in run.findings if f.kind == OUT_OF_BOUNDS and " of local " in f.text]
