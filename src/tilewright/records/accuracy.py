"""Records of how accurate products are, as plain data: JSON Lines that ``benchmarks/record_accuracy.py`` writes.

The first line of a file says where the products were measured. Each further line of a file is one product, or the
accuracy grade of a path; a path is a way to compute a product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RecordError
from .json_data import (
    COUNT,
    OBJECT,
    TEXT,
    TRUTH,
    Rule,
    check_fields,
    check_kind,
    from_fields,
    is_count,
    is_finite,
    many,
    nullable,
    parse_json,
    read_text,
    value_excerpt,
)

SCHEMA = 1
#: The kinds of lines: the first line, a product, and a grade.
KIND, PRODUCT, GRADE = "accuracy header", "accuracy", "accuracy grade"
#: The grades of a path: the strictest bound that it satisfies, or "–" if it satisfies none.
GRADES = ("A", "B", "C", "–")
#: The number of binades over which the distribution "graded" extends along k, if its name does not say it.
GRADED = 40


@dataclass(frozen=True)
class MeasuredAccuracy:
    """One product of one path. The errors of the product are in units of the dtype's unit roundoff; an error that is
    not a number is None.

    Three errors are the largest of any element: ``componentwise`` relative to |A||B|, ``by_lines`` relative to the
    norms of the element's row and column, and ``normwise`` relative to the norms of A and B. ``rms`` is the root mean
    square error divided by the root mean square of A·B. ``as_ieee`` says whether infinities and NaN are in the same
    elements as in IEEE arithmetic. ``over_promise`` is the largest error divided by the bound that the path promises,
    or None if it promises none. ``parts`` is the number of parts into which a GPU divides C, and ``flagged`` the number
    of these parts that it computed from the original operands instead of split operands or residues.
    """

    path: str
    dtype: str
    distribution: str
    m: int
    n: int
    k: int
    componentwise: float | None
    by_lines: float | None
    normwise: float | None
    rms: float | None
    as_ieee: bool
    over_promise: float | None = None
    kernel: str = ""
    flagged: int | None = None
    parts: int | None = None

    @property
    def binades(self) -> int | None:
        """The number of binades (powers of two) that the magnitudes in a row of A and in a column of B span along k;
        None unless the distribution is a graded one.

        >>> fields = dict.fromkeys(("componentwise", "by_lines", "normwise", "rms"), 1.0)
        >>> MeasuredAccuracy("a", "float32", "graded:60", 8, 8, 8, as_ieee=True, **fields).binades
        60
        """
        name, _, span = self.distribution.partition(":")
        return (int(span) if span else GRADED) if name == "graded" else None


@dataclass(frozen=True)
class AccuracyGrade:
    """The accuracy grade (A, B or C) of one way of computing products, found from products of ``sizes``.

    Each of the grades A, B and C sets a bound for errors. ``over`` has, for each of these bounds, the largest measured
    error divided by the bound.
    """

    path: str
    dtype: str
    sizes: tuple[int, ...]
    grade: str
    algorithm: str
    slope: float | None
    over: dict[str, float | None]


@dataclass(frozen=True)
class AccuracyRecord:
    """The contents of a file of accuracy records: measured products, grades, and the environment of the
    measurements."""

    products: tuple[MeasuredAccuracy, ...]
    grades: tuple[AccuracyGrade, ...]
    environment: dict[str, Any] = field(default_factory=dict)


_POSITIVE = nullable(Rule("a finite number, not negative", lambda value: _is_number(value) and value >= 0))


def _is_number(value: Any) -> bool:
    """Without the limits of other records: errors can be of any size."""
    return is_finite(value) and not isinstance(value, bool)


def _is_distribution(value: Any) -> bool:
    name, _, number = value.partition(":") if isinstance(value, str) else ("", "", "")
    return bool(name) and (
        name != "graded" or not number or (number.isascii() and number.isdigit() and len(number) < 6)
    )


_PRODUCT_RULES = {
    **{"path": TEXT, "dtype": TEXT, "kernel": TEXT, "as_ieee": TRUTH},
    "distribution": Rule("a distribution, such as uniform or graded:60", _is_distribution),
    **dict.fromkeys(
        ("m", "n", "k"), Rule("a whole number from 1 to 2^63 - 1", lambda value: is_count(value) and value > 0)
    ),
    **dict.fromkeys(("componentwise", "by_lines", "normwise", "rms", "over_promise"), _POSITIVE),
    **dict.fromkeys(("flagged", "parts"), nullable(COUNT)),
}
_GRADE_RULES = {
    **{"path": TEXT, "dtype": TEXT, "algorithm": TEXT},
    "sizes": many("a list of positive whole numbers", lambda value: is_count(value) and value > 0, least=1),
    "grade": Rule(f"one of {', '.join(GRADES)}", lambda value: value in GRADES),
    "slope": nullable(Rule("a finite number", _is_number)),
    "over": Rule(
        "an object of numbers or nulls for A, B and C",
        lambda value: (
            isinstance(value, dict) and set(value) == set("ABC") and all(map(_POSITIVE.holds, value.values()))
        ),
    ),
}


def read_accuracy(path: str | Path) -> AccuracyRecord:
    """Read the accuracy record in a file.

    Raises RecordError, which names the line and the field, for a file that is missing, damaged, of another kind or
    without a product.
    """
    lines = enumerate(read_text(path, "a record of accuracy").split("\n"), 1)
    (first, head), *rest = [(f"{path}:{number}", line) for number, line in lines if line.strip()] or [(str(path), "")]
    header = _object(head, first)
    check_kind(header, KIND, SCHEMA, first)
    check_fields(header, {"environment": OBJECT}, first)
    products: list[MeasuredAccuracy] = []
    grades: list[AccuracyGrade] = []
    for where, line in rest:
        data = _object(line, where)
        if data.get("kind") == GRADE:
            check_kind(data, GRADE, SCHEMA, where)
            check_fields(data, _GRADE_RULES, where)
            grades.append(from_fields(AccuracyGrade, data, where))
        else:
            check_kind(data, PRODUCT, SCHEMA, where)
            check_fields(data, _PRODUCT_RULES, where)
            products.append(from_fields(MeasuredAccuracy, data, where))
    if not products:
        raise RecordError(f"{path}: holds no measured product")
    return AccuracyRecord(tuple(products), tuple(grades), header.get("environment", {}))


def _object(line: str, where: str) -> dict[str, Any]:
    data = parse_json(line, where, "record of accuracy")
    if not isinstance(data, dict):
        raise RecordError(f"{where}: must be an object, got {value_excerpt(type(data).__name__)}")
    return data
