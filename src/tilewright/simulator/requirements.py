"""Checks requirements on a launch, such as no finding and no bank conflict, and names the source lines that break them.

A requirement compares a measure with a number. A measure is a number of findings, a sum or ratio over the accesses of
all source lines, or a counter under the hardware's name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError, did_you_mean
from ..records.explanation import APPROXIMATELY, Access, Defect
from .counters.hardware_names import LABELS
from .findings import BY_THE_LETTER, GRADES, SURE, marked_grade

#: For each measure of findings, the grades that it counts. Findings in a library's code are counted separately, because
#: the kernel's author cannot repair them.
OF_FINDINGS = {"findings": (SURE, BY_THE_LETTER), "sure_findings": (SURE,), "all_findings": GRADES}
_MOVED, _SHARED = ("global", "local"), ("shared",)
#: For each measure of accesses: the memory spaces whose accesses it sums, the field that it sums, and the field by which
#: the sum is divided (empty if by none).
OF_ACCESSES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "sectors": (_MOVED, "sectors", ""),
    "sectors_per_request": (_MOVED, "sectors", "requests"),
    "sectors_over_least": (_MOVED, "sectors", "least"),
    "local_sectors": (("local",), "sectors", ""),
    "wavefronts": (_SHARED, "wavefronts", ""),
    "wavefronts_per_request": (_SHARED, "wavefronts", "requests"),
    "wavefronts_over_least": (_SHARED, "wavefronts", "least"),
    "bank_conflicts": (_SHARED, "conflicts", ""),
}
_RELATIONS = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "=": operator.eq, "!=": operator.ne, "<": operator.lt,
    ">": operator.gt,
}  # fmt: skip
_COMPARISON = re.compile(r"\s*(<=|>=|==|!=|=|<|>)\s*(\d[\d_]*(?:\.\d+)?)\s*")
#: The most lines that are named for one requirement; the number of further lines is given.
LINES = 5


@dataclass(frozen=True)
class Requirement:
    """A measure and the number with which it is compared."""

    measure: str
    relation: str
    bound: float

    def __str__(self) -> str:
        return f"{self.measure} {self.relation} {_number_text(self.bound)}"

    def holds(self, value: float) -> bool:
        """Whether a value of the measure satisfies the requirement."""
        return bool(_RELATIONS[self.relation](value, self.bound))


@dataclass(frozen=True)
class CodePlace:
    """A source line that breaks a requirement: the included file (empty for the kernel's own file), the line (0 if it
    is not known), and a text about the accesses or the finding at the line."""

    file: str
    line: int
    text: str

    def named(self, main: str) -> str:
        """Return the place as text for a list of source lines; the text begins with file and line. ``main`` is the
        kernel's own file."""
        return f"{self.file or main}:{self.line}: {self.text}" if self.line else f"{self.file or main}: {self.text}"


@dataclass(frozen=True)
class BrokenRequirement:
    """A requirement that a launch does not satisfy, with the measure's value as text and the lines that break it."""

    requirement: Requirement
    value: str
    places: list[CodePlace]

    def lines(self, main: str) -> list[str]:
        """Return the broken requirement as text: one line for the requirement, and one for each of the first LINES
        places that break it."""
        more = len(self.places) - LINES
        named = [f"  {place.named(main)}" for place in self.places[:LINES]]
        further = [f"  and {more} more line{'s' * (more > 1)}"] if more > 0 else []
        return [f"{self.requirement}: {self.value}", *named, *further]


def required(measure: str, comparison: Any) -> Requirement:
    """Make a requirement from a number, which means equality, or from a comparison as text.

    Raises UsageError for an unknown measure, and for a value that is neither a number nor a comparison.

    >>> str(required("bank_conflicts", 0)), str(required("sectors_per_request", "<= 4.1"))
    ('bank_conflicts == 0', 'sectors_per_request <= 4.1')
    """
    known = [*OF_FINDINGS, *OF_ACCESSES]
    if measure not in known and measure not in LABELS:
        hint = f"{did_you_mean(measure, known)} Or a counter by its whole name, such as {next(iter(LABELS))}"
        raise UsageError(f"require: {measure!r} is no measure: {hint}")
    if isinstance(comparison, str) and (found := _COMPARISON.fullmatch(comparison)):
        return Requirement(measure, "==" if found[1] == "=" else found[1], float(found[2]))
    if isinstance(comparison, bool) or not isinstance(comparison, int | float):
        raise UsageError(f"require: {measure} must be a number or a comparison such as '<= 4.1', got {comparison!r}")
    return Requirement(measure, "==", float(comparison))


def required_in(text: str) -> Requirement:
    """Parse a requirement in the form of the command line.

    >>> str(required_in("findings=0")), str(required_in("sectors_per_request <= 4.1"))
    ('findings == 0', 'sectors_per_request <= 4.1')
    """
    found = re.fullmatch(r"\s*([\w.]+)\s*([<>=!].*)", text)
    if not found:
        raise UsageError(f"require: must be such as findings=0 or 'sectors_per_request<=4.1', got {text!r}")
    return required(found[1], found[2])


def broken_requirements(
    requirements: Sequence[Requirement],
    defects: Sequence[Defect],
    accesses: Sequence[Access],
    counters: Mapping[str, int],
    advice: Iterable[tuple[str, int, str]] = (),
) -> list[BrokenRequirement]:
    """Return the requirements that a launch with these findings, accesses and counters does not satisfy. ``advice`` has
    tuples of file, line and text; the text is added to the place that names the line."""
    broken, advised = [], dict[tuple[str, int], list[str]]()
    for file, line, text in advice:
        advised.setdefault((file, line), []).append(text)
    for requirement in requirements:
        if requirement.measure in OF_FINDINGS:
            found = _broken_by_findings(requirement, defects)
        elif requirement.measure in OF_ACCESSES:
            found = _broken_by_accesses(requirement, accesses, advised)
        else:
            value = counters.get(requirement.measure, 0)
            kept = requirement.holds(value)
            found = None if kept else BrokenRequirement(requirement, f"it is {_number_text(value)}", [])
        broken += [found] if found else []
    return broken


def broken_text(kernel: str, main: str, asked: int, broken: Sequence[BrokenRequirement]) -> list[str]:
    """Return text lines about the ``broken`` requirements of a kernel, out of ``asked`` requirements in all; the
    kernel's file is ``main``."""
    first = f"{kernel} breaks {len(broken)} of {asked} requirement{'s' * (asked != 1)}"
    return [first, *(line for each in broken for line in each.lines(main))]


def _broken_by_findings(requirement: Requirement, defects: Sequence[Defect]) -> BrokenRequirement | None:
    counted = [defect for defect in defects if defect.grade in OF_FINDINGS[requirement.measure]]
    if requirement.holds(len(counted)):
        return None
    places = [CodePlace(d.file, d.line, f"{d.kind}{marked_grade(d.grade)}: {d.text}") for d in counted]
    return BrokenRequirement(requirement, f"there {'is' if len(counted) == 1 else 'are'} {len(counted)}", places)


def _broken_by_accesses(
    requirement: Requirement, accesses: Sequence[Access], advised: Mapping[tuple[str, int], Sequence[str]]
) -> BrokenRequirement | None:
    """A ratio without any access is broken too: a requirement on nothing would hold whatever the kernel does."""
    spaces, field, divisor = OF_ACCESSES[requirement.measure]
    counted = [access for access in accesses if access.space in spaces and access.requests]
    if divisor and not counted:
        return BrokenRequirement(requirement, f"the launch accesses no {' or '.join(spaces)} memory", [])
    total = _value(counted, field, divisor)
    if requirement.holds(total):
        return None
    by_line: dict[tuple[str, int], list[Access]] = {}
    for access in counted:
        by_line.setdefault((access.file, access.line), []).append(access)
    values = {place: _value(here, field, divisor) for place, here in by_line.items()}
    blamed = {place: value for place, value in values.items() if value and not requirement.holds(value)} or values
    places = [
        CodePlace(
            *place, "; ".join([_words(by_line[place], blamed[place], requirement.measure), *advised.get(place, ())])
        )
        for place in sorted(blamed, key=lambda place: -blamed[place])
    ]
    mark = "" if all(access.exact for access in counted) else f"{APPROXIMATELY} "
    return BrokenRequirement(requirement, f"it is {mark}{_number_text(total)}", places)


def _value(accesses: Sequence[Access], field: str, divisor: str) -> float:
    total = sum(getattr(access, field) for access in accesses)
    return total / max(1, sum(getattr(access, divisor) for access in accesses)) if divisor else total


def _words(here: Sequence[Access], value: float, measure: str) -> str:
    kinds = ", ".join(dict.fromkeys(f"{access.space} {access.kind}" for access in here))
    inside = ", ".join(dict.fromkeys(access.inside for access in here if access.inside))
    called = f"; called from here: {inside}" if inside else ""
    return f"{_number_text(value)} {measure.replace('_', ' ')} ({kinds}{called})"


def _number_text(value: float) -> str:
    """A whole number in full, any other with six digits.

    >>> _number_text(1024.0), _number_text(4.125), _number_text(0)
    ('1,024', '4.125', '0')
    """
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"
