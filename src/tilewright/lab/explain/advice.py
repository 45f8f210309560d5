"""Advises how each line of a kernel could be cheaper, with the predicted count and time, and with the result of a trial.

**The model.** A launch takes as long as its slowest resource: arithmetic, device memory, the L2 cache, or the memory
pipes of the multiprocessors. ``time_bounds`` counts one cycle of a memory pipe (a turn) for every four sectors of
global memory, whatever their addresses are. The model of this module counts one turn for each line of 128 bytes that a
request touches, as measured on an H200. In this model, a change that is advised changes only the number of turns. The
model has no latency, so advice on occupancy has no predicted time. Advice for wider accesses and for arrays in
registers has no predicted time either: of three such changes, one made a kernel slower on an H200.

**The trial.** Often one number in the source decides how long the rows of an array in shared memory are. If the kernel
is small, the trial changes this number and runs the kernel again on the same operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import TilewrightError
from ...gpu.runtime.cubin import Resources
from ...records.explanation import Access, Advice, Bound
from ...simulator.counters.advice import Change, with_swizzle
from ...simulator.gpus import GpuModel
from ...simulator.microscope import Observation
from ...simulator.occupancy import Occupancy, occupancy

#: A kernel is run again only up to this number of warp instructions, which the microscope executes in a second or two.
SMALL = 200_000
#: The most changes of the source that are tried for one line, and the most lines for which changes are tried.
TRIALS, LINES = 3, 2
#: Below this occupancy, the latency of device memory may limit a kernel, and not its bandwidth.
FEW_WARPS = 0.25
FEW = "few warps wait for device memory"

#: Runs the kernel with another source and with these macros changed. Raises what the compiler and the microscope raise.
Rerun = Callable[[str, Mapping[str, str]], Observation]


@dataclass(frozen=True)
class Trial:
    """A kernel's source with one change, the macros that the change sets, and a description of the change."""

    source: str
    macros: dict[str, str]
    words: str


def advice_of(
    seen: Observation,
    card: GpuModel,
    bounds: Sequence[Bound],
    resident: Occupancy,
    *,
    rerun: Rerun | None = None,
    macros: Mapping[str, str] | None = None,
) -> list[Advice]:
    """Return the advice for the launch that was observed as ``seen``, on the GPU ``card``. The advice that would save
    most comes first.

    ``bounds`` is empty if no time should be predicted. ``macros`` are those that the compiler was given. ``rerun`` runs the
    kernel again; None forbids that.
    """
    changes = sorted((_fitting(change, card, resident) for change in seen.advice), key=lambda each: -each.saved_turns)
    before = model_seconds(bounds, seen.turns)
    found, padded = [], 0
    for change in changes:
        after = model_seconds(bounds, seen.turns - change.saved_turns) if change.timed else None
        seconds = None if before is None or after is None else (before, after)
        access = change.before
        one = Advice(access.line, change.text, *change.costs, file=access.file, seconds=seconds, exact=access.exact)
        padded += change.row_bytes > 0
        if rerun and change.row_bytes and padded <= LINES and seen.run.complete and seen.run.warp_instructions <= SMALL:
            one = _tried(one, change, seen, bounds, rerun, macros or {})
        found.append(one)
    return [*found, *_of_kernel(seen, card, bounds, resident)]


def model_seconds(bounds: Sequence[Bound], turns: int) -> float | None:
    """The time of a launch by the model if its memory pipes take ``turns``; None if the rate of the pipes is not known.

    >>> memory, pipes = Bound("device memory", 10, "bytes", 1e9), Bound("L1 and shared memory", 32, "turns", 1e9)
    >>> model_seconds([memory, pipes], 64), model_seconds([memory, pipes], 4)
    (6.4e-08, 1e-08)
    """
    rate = next((bound.rate for bound in bounds if bound.unit == "turns"), None)
    if rate is None:
        return None
    return max([turns / rate, *(bound.seconds for bound in bounds if bound.unit != "turns")])


def _fitting(change: Change, card: GpuModel, resident: Occupancy) -> Change:
    """Advice for a longer row, or for a swizzle instead if longer rows would leave room for fewer blocks."""
    if not change.row_bytes or not resident.blocks:
        return change
    longer = round(resident.shared * (1 + change.more_bytes / change.row_bytes))
    if occupancy(card, resident.threads, resident.registers, longer).blocks == resident.blocks:
        return change
    other = with_swizzle(change.before)
    return other if other and other.after.wavefronts <= change.after.wavefronts else change


# ---- of the whole kernel ---------------------------------------------------------------------------------------------


def _of_kernel(seen: Observation, card: GpuModel, bounds: Sequence[Bound], resident: Occupancy) -> Iterator[Advice]:
    """Advice on spilled registers, and on too few warps that wait for device memory. Neither advice has a predicted
    time."""
    needs = seen.resources or Resources(0, 0, 0, 0, 0, None)
    if needs.local_bytes and not any(access.space == "local" for access in seen.accesses):
        text = (
            f"{needs.local_bytes} bytes of a thread do not fit into {needs.registers} registers and lie in local memory"
        )
        yield Advice(0, f"{text}: give a thread fewer elements, or a block fewer threads", "", 0, 0)
    slowest = max(bounds, key=lambda bound: bound.seconds, default=None)
    waits = slowest is not None and slowest.name == "device memory"
    filled = seen.run.blocks_total >= card.sms * max(1, resident.blocks)
    if waits and filled and 0 < resident.fraction <= FEW_WARPS and (more := _more_warps(card, resident)):
        yield more


def _more_warps(card: GpuModel, resident: Occupancy) -> Advice | None:
    """The fewest registers, or bytes of shared memory, that a block must save so that one more block fits."""
    threads, registers, shared = resident.threads, resident.registers, resident.shared
    for fewer in range(registers - 1, 15, -1):
        if (warps := occupancy(card, threads, fewer, shared).warps) > resident.warps:
            text = f"{FEW}: {fewer} registers a thread instead of {registers} make room for more"
            return Advice(0, text, "warps", resident.warps, warps)
    for fewer in range(shared - 1024, -1, -1024):
        if (warps := occupancy(card, threads, registers, fewer).warps) > resident.warps:
            text = f"{FEW}: {fewer:,} bytes of shared memory a block instead of {shared:,} make room for more"
            return Advice(0, text, "warps", resident.warps, warps)
    return None


# ---- a run of the changed source -------------------------------------------------------------------------------------


def _tried(
    advice: Advice, change: Change, seen: Observation, bounds: Sequence[Bound], rerun: Rerun, macros: Mapping[str, str]
) -> Advice:
    """The advice, with the outcome of a run of a changed source if that run has the same result and fewer
    wavefronts."""
    for trial in list(trials(seen.source, change, macros))[:TRIALS]:
        try:
            again = rerun(trial.source, trial.macros)
        except TilewrightError:
            continue  # the source does not compile, or cannot be launched, when it is changed so
        line_before, cost = (sum(a.wavefronts for a in e.accesses if _is_of(a, change.before)) for e in (seen, again))
        all_before, all_after = (sum(a.wavefronts for a in each.accesses) for each in (seen, again))
        same = again.run.complete and len(again.findings) <= len(seen.findings) and same_arrays(seen, again)
        if same and cost < line_before and all_after < all_before:
            after = model_seconds(bounds, again.turns)
            seconds = (advice.seconds[0], after) if advice.seconds and after else None
            words = f"run again with {trial.words}: {cost:,} wavefronts, the same result"
            return replace(advice, before=line_before, after=cost, seconds=seconds, tried=words)
    return advice


def _is_of(access: Access, before: Access) -> bool:
    return (access.file, access.line, access.space, access.kind) == (before.file, before.line, "shared", before.kind)


def same_arrays(one: Observation, other: Observation) -> bool:
    """Whether the arrays after two runs have the same bits."""
    return all(_bits(a) == _bits(b) for a, b in zip(one.arrays, other.arrays, strict=True))


def _bits(array: Any) -> bytes:
    return b"" if array is None else array.tobytes()


#: The size of each element type, in bytes.
SIZES = {
    **dict.fromkeys(("char", "int8_t", "uint8_t", "bool"), 1),
    **dict.fromkeys(("half", "__half", "nv_bfloat16", "__nv_bfloat16", "short", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("float", "int", "unsigned", "int32_t", "uint32_t", "half2", "__half2"), 4),
    **dict.fromkeys(("double", "float2", "int2", "int64_t", "uint64_t"), 8),
    **dict.fromkeys(("float4", "int4", "double2", "uint4"), 16),
}
_SHARED = re.compile(r"__shared__\s+(?:(?:__align__|alignas)\s*\(\w+\)\s*)?(\w+)\s+([^;(){}]*);")
_ROWS = re.compile(r"(\w+)((?:\s*\[[^\[\]]+\])+)\s*\[([^\[\]]+)\]")
_PITCH = r"\w*(?:PITCH|STRIDE|PAD|SKEW|LD)\w*"
_CONSTANT = re.compile(
    rf"(#\s*define\s+({_PITCH})\s+|const(?:expr)?\s+(?:unsigned|int|size_t)\s+({_PITCH})\s*=\s*)(\d+)\b"
)


def trials(source: str, change: Change, macros: Mapping[str, str]) -> Iterator[Trial]:
    """Return sources in which the rows of an array in shared memory are longer. The change is made in the array's
    declaration, or in a constant or macro whose name says that it is a pitch or padding.

    >>> column = Access(1, "shared", "ld", 4, 32, 4096)
    >>> change = Change("", column, column, 128, 4)
    >>> [trial.words for trial in trials("__shared__ float a[8][32], b[8][64]; const int PAD = 0;", change, {})]
    ['a[8][32 + 1]', 'PAD 1']
    """
    for declared in _SHARED.finditer(source):
        size = SIZES.get(declared[1], 0)
        if not size or change.more_bytes % size:
            continue
        for rows in _ROWS.finditer(declared[2]):
            length = rows[3].strip()
            if length.isdigit() and int(length) * size != change.row_bytes:
                continue
            at = declared.start(2) + rows.end(3)
            more = f" + {change.more_bytes // size}"
            words = f"{rows[1]}{''.join(rows[2].split())}[{length}{more}]"
            yield Trial(source[:at] + more + source[at:], {}, words)
    longer, length = (each // change.before.nbytes for each in (change.more_bytes, change.row_bytes))
    for constant in _CONSTANT.finditer(source):
        if int(constant[4]) in (0, length):
            value = str(int(constant[4]) + longer)
            words = f"{constant[2] or constant[3]} {value}"
            yield Trial(source[: constant.start(4)] + value + source[constant.end(4) :], {}, words)
    for name, text in macros.items():
        if re.fullmatch(_PITCH, name) and text in ("0", str(length)):
            value = str(int(text) + longer)
            yield Trial(source, {name: value}, f"{name}={value}")
