"""The operands of a launch that is explained, and whether its result is right: at its own size, and at an odd one.

The size that is explained, often a square of 64, may be a multiple of every tile: there a kernel without guards is right,
and so is one that confuses m, n and k.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import CompileError, UnavailableError, UsageError
from ...gpu.runtime.boxes import Mapped
from ...gpu.runtime.nvrtc import compile_with
from ...gpu.runtime.plain_launch import PlainLaunch, plain_launch
from ...kernels.cuda_kernel import CudaKernel
from ...simulator.assembly.parser import parse_ptx
from ...simulator.assembly.program import link
from ...simulator.compiled_launch import registers_at_launch
from ...simulator.findings import OUT_OF_BOUNDS, STEP_LIMIT, UNWRITTEN_OUTPUT, UNWRITTEN_READ, Finding
from ...simulator.machine.options import RunOptions
from ...simulator.machine.tensor_map import TensorMap
from ...simulator.microscope import Observation
from ...simulator.run.simulate import Run, run_program
from ..inputs.formats import FORMATS, format_of
from ..inputs.sizes import ODD_SIZE, Shape, is_odd
from ..verify.verify import NOTHING_WRITTEN, Check, Oracle
from .checked_launch import CheckedLaunch

#: Of these the first that a kernel takes. In the later ones rows are multiples of 16 bytes, as tensor maps need them: for
#: elements of four bytes, of two, and of one.
ODD_SIZES = (ODD_SIZE, (33, 36, 28), (33, 40, 24), (33, 48, 80))
#: A run at such a size takes some thousand steps. It is stopped after so many, or twice those of the size that is explained.
ODD_STEPS = 50_000


#: What is known of an element that is NaN, where C began as NaN and nothing else was observed.
_NAN = "was never written (C starts as NaN), or is not a number"


@dataclass
class Result:
    """``verified``: plain JSON values. ``findings``: those at both sizes."""

    verified: dict[str, Any]
    findings: list[Finding]
    notes: list[str] = field(default_factory=list)


# ---- operands --------------------------------------------------------------------------------------------------------


def operands(kernel: CudaKernel, m: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random A and B, and a C of NaN, so that unwritten elements are found; in the dtype of storage (see ``formats``)."""
    form = format_of(kernel.dtypes[0], kernel.precision)
    rng = np.random.default_rng(seed)
    numbers = [rng.random(shape, form.working) for shape in ((m, k), (k, n))]
    for array in numbers:
        array *= 2
        array -= 1
    a, b = (form.stored(array) for array in numbers)
    return a, b, form.stored(np.full((m, n), np.nan, form.working))


def in_boxes(kernel: CudaKernel, arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a launch as the microscope takes them: those that are ``Mapped`` as tensor maps, with swizzles of 128
    bytes."""
    kind = {"bfloat16": "bf16"}.get(kernel.dtypes[0])
    return [
        TensorMap(np.asarray(each.memory)[None], (1, *each.operand.box), data_type=kind, swizzle=128)
        if isinstance(each, Mapped)
        else each
        for each in arguments
    ]


def verified(kernel: CudaKernel, a: np.ndarray, b: np.ndarray, c: np.ndarray, *, sampled: bool = False) -> Check:
    """Whether ``c`` is the product, within the bound of the kernel's format. ``sampled`` checks only written elements."""
    form = format_of(kernel.dtypes[0], kernel.precision)
    oracle = Oracle(form.values(a), form.values(b))
    own = None if form == FORMATS.get(form.name) and form.rounding == 0 else form
    check = (oracle.check_written if sampled else oracle.check)(form.values(c), form=own)
    return replace(check, reason=re.sub(r"is nan: .*", _NAN, check.reason))


# ---- the verdict -----------------------------------------------------------------------------------------------------


def judged(
    p: CheckedLaunch, a: np.ndarray, b: np.ndarray, observed: Observation, *, seed: int, max_steps: int
) -> Result:
    """Whether the kernel is right, with the findings of the run that was ``observed`` and of one at an odd size.

    ``ok`` is None where the limit of steps stopped the observed run, because its result is not complete.
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
    """Add the verdict and the findings of a run at an odd size; a note where there can be none."""
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
    """The first of ODD_SIZES that the kernel takes, and its launch there. Raises UsageError where it takes none."""
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
    """Add the verdict at another size. A kernel is right if it is right at both; the reason is that of the first failure."""
    so_far, other = result.verified, check.as_dict()
    if not so_far["ok"]:
        return
    if check.ok:
        worst = max(so_far["error_over_bound"] or 0.0, other["error_over_bound"] or 0.0)
        result.verified = so_far | {"of": f"{so_far['of']}, and all of C at {at}", "error_over_bound": worst}
    else:
        result.verified = so_far | other | {"reason": f"at {at}: {check.reason}", "at": at}


def _explained(check: Check, findings: Sequence[Finding], result: int) -> Check:
    """A check whose reason says why an element is NaN, as far as the findings of the same run know it: C was read before it
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
    """Where C is wrong and nothing says why: look for accesses beyond a thread's local arrays.

    They are undefined, so the optimising compiler removes the code that they lead to, often the stores to C, and nothing of
    them is left in the kernel that was run. They are found in the kernel as it is without optimisation.
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
    """None for a kernel that cannot be compiled, or run, without optimisation."""
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
