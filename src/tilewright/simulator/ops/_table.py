"""The table of opcodes: how an opcode is registered, found, and bound to the lanes on which it works.

An entry of the table is a small function. Most opcodes compute one value from others, element by element. For such an
opcode, ``@value`` registers a factory that returns ``compute(out, a, b, …)`` for a type and its modifiers. This module
handles the operands, views, immediates and divergence of opcodes that ``@value`` registers. Opcodes that access memory
or other lanes are registered by ``@step``; their functions get the instruction and the lanes. A modifier that an entry
does not list is an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...errors import UsageError
from ..assembly.instructions import SIZES, Instruction, ptx_integer
from ..assembly.program import is_special
from ..machine.lanes import Lanes
from ..machine.values import DTYPES, Array, Ints

#: A function that runs an instruction for the given lanes, or for all lanes (None).
Step = Callable[["Ints | None"], None]
Builder = Callable[[Instruction, Lanes], Step]
Compute = Callable[..., Any]
Factory = Callable[[str, set[str]], Compute]

TABLE: dict[tuple[str, str], Builder] = {}

UNSIGNED, SIGNED, BITS = ("u16", "u32", "u64"), ("s16", "s32", "s64"), ("b16", "b32", "b64")
INTS = (*UNSIGNED, *SIGNED)
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
FLOATS = ("f32", "f64", *HALVES)


class UnknownInstruction(UsageError):  # noqa: N818 - a public name
    """An instruction, or a form of an instruction, is not in the table."""

    def __init__(self, ins: Instruction, why: str = "is not one that the microscope knows") -> None:
        super().__init__(f"{ins.place()}: instruction {ins.opcode} {why} ({ins.text})")


def bind(ins: Instruction, lanes: Lanes) -> Step:
    """Make the step that runs an instruction on these lanes, including its guard.

    Raises UnknownInstruction if the table has no entry for the instruction.
    """
    key = entry(ins)
    if key is None:
        raise UnknownInstruction(ins)
    run, watch = TABLE[key](ins, lanes), lanes.warpgroups.watch(ins)
    if watch is not None:
        run = _both(watch, run)
    return run if ins.guard is None else guarded(run, lanes.source(ins.guard[0], "pred", ins), ins.guard[1])


def _both(first: Step, then: Step) -> Step:
    def run(sel: Ints | None) -> None:
        first(sel)
        then(sel)

    return run


def entry(ins: Instruction) -> tuple[str, str] | None:
    """Return the key of an instruction in the table, which is its opcode and type (``add.cc`` is another opcode than
    ``add``); None if the table has no entry."""
    parts = ins.parts
    name = f"{parts[0]}.cc" if "cc" in parts else parts[0]
    if parts[0] in ("st", "red") and parts[1:2] == ("async",):
        name += ".async"
    if parts[:2] == ("tcgen05", "mma"):
        name += ".mma"
    return next((key for key in ((name, parts[-1]), (name, "")) if key in TABLE), None)


def guarded(run: Step, predicate: Array, negate: bool) -> Step:
    """Make a step that runs only for the active lanes whose predicate is true, or false if ``negate`` is set."""

    def step(sel: Ints | None) -> None:
        p = predicate if sel is None else predicate[sel]
        if negate:
            p = ~p
        if p.all():
            run(sel)
        elif p.any():
            run(np.flatnonzero(p) if sel is None else sel[p])

    return step


def step(name: str, kinds: Iterable[str] = ("",)) -> Callable[[Builder], Builder]:
    """Register a builder for an opcode and its types ("" for any type)."""

    def register(builder: Builder) -> Builder:
        for kind in kinds:
            TABLE[name, kind] = builder
        return builder

    return register


def check_modifiers(ins: Instruction, allowed: Iterable[str], skip: int = 1) -> set[str]:
    """Return the modifiers between opcode and type of an instruction. Raises UnknownInstruction for a modifier that the
    entry of the instruction does not allow."""
    flags = set(ins.parts[1:-skip] if skip else ins.parts[1:])
    unknown = flags - set(allowed)
    if unknown:
        raise UnknownInstruction(ins, f"has a modifier that is not supported: .{' .'.join(sorted(unknown))}")
    return flags


def value(
    name: str,
    kinds: Iterable[str],
    flags: Iterable[str] = (),
    *,
    out: Callable[[str, set[str]], str] | None = None,
    takes: Callable[[str, set[str]], tuple[str, ...]] | None = None,
) -> Callable[[Factory], Factory]:
    """Register an opcode that computes one value, element by element.

    ``out`` and ``takes`` are functions that return the types of the result and of the operands, if these differ from
    the instruction's type.
    """
    allowed = tuple(flags)

    def register(factory: Factory) -> Factory:
        def build(ins: Instruction, lanes: Lanes) -> Step:
            kind, modifiers = ins.parts[-1], check_modifiers(ins, allowed)
            count = len(ins.operands) - 1
            try:
                types = takes(kind, modifiers) if takes else (kind,) * count
                result_kind = out(kind, modifiers) if out else kind
                compute = factory(kind, modifiers)
            except NotImplementedError as error:
                raise UnknownInstruction(ins, str(error)) from None
            inputs = [lanes.source(o, t, ins) for o, t in zip(ins.operands[1:], types, strict=True)]
            return elementwise(lanes, ins, ins.operands[0], result_kind, compute, inputs)

        for kind in kinds:
            TABLE[name, kind] = build
        return factory

    return register


def apply_ufunc(ufunc: Any) -> Compute:
    """Use a NumPy ufunc as the computation of an opcode."""

    def compute(out: Array, *inputs: Array) -> None:
        ufunc(*inputs, out=out)

    return compute


def elementwise(lanes: Lanes, ins: Instruction, target: str, kind: str, compute: Compute, inputs: list[Array]) -> Step:
    """Make a step that calls ``compute(out, *inputs)`` for the active lanes; ``compute`` reads all its inputs before it
    writes ``out``."""
    out, dtype, wider = destination(lanes, ins, target, kind)
    scalar = [x.ndim == 0 for x in inputs]

    def run(sel: Ints | None) -> None:
        if sel is None and not wider:
            compute(out, *inputs)
            return
        n = lanes.size if sel is None else sel.size
        result = np.empty(n, dtype)
        if sel is None:
            compute(result, *inputs)
            out[:] = result
        else:
            compute(result, *[x if s else x[sel] for x, s in zip(inputs, scalar, strict=True)])
            out[sel] = result

    return run


def destination(lanes: Lanes, ins: Instruction, target: str, kind: str) -> tuple[Array, Any, bool]:
    """Return three facts about a register as a destination of type ``kind``: the view to write, the dtype in which to
    compute, and whether the register is wider than that dtype."""
    dtype = DTYPES[kind]
    if target == "_":
        return np.empty(lanes.size, dtype), dtype, False
    if is_special(target) and not lanes.is_register(target):
        raise UnknownInstruction(ins, "writes a special register")
    register = lanes.register(target, ins)
    if (register.dtype.kind == "b") != (dtype.kind == "b") or register.dtype.itemsize < dtype.itemsize:
        raise UsageError(f"{ins.place()}: {target} cannot hold a {kind} in {ins.text}")
    if register.dtype.itemsize == dtype.itemsize:
        return register.view(dtype), dtype, False
    if dtype.kind == "f":
        raise UnknownInstruction(ins, f"writes a {kind} to a wider register")
    return register.view(f"{dtype.kind}{register.dtype.itemsize}"), dtype, True


def one_of(ins: Instruction, flags: set[str], choices: Iterable[str]) -> str:
    """Return the modifier of an instruction that is in ``choices``; the instruction must have exactly one such
    modifier."""
    found = sorted(flags & set(choices))
    if len(found) != 1:
        raise UnknownInstruction(ins, f"must have one of the modifiers .{' .'.join(choices)}")
    return found[0]


def number_of(ins: Instruction, operand: str) -> int:
    """Parse an operand that must be a whole number."""
    number = ptx_integer(operand)
    if number is None:
        raise UnknownInstruction(ins, f"needs a number in place of {operand}")
    return number


def size_of(kind: str) -> int:
    """Return the number of bytes of a PTX type."""
    return SIZES[kind]
