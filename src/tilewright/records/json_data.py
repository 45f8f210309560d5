"""JSON files from anywhere: parsed whole, each field held to its rule, or one line that names file, line and field.

What is read here was written on another machine, by another version, or by hand. What passes its rules can be used without
another look: numbers are finite and of a size that can be computed with, and nothing is nested deeply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import RecordError
from .legible import json_escaped

#: Whole numbers at most, which all that counts something fits.
LARGEST_COUNT = 2**63 - 1
#: Times, in seconds, and other numbers that are divided by or drawn on logarithmic axes, lie between these or are 0.
LEAST_S, MOST_S = 1e-12, 1e12
LEAST, MOST = 1e-100, 1e100
#: Levels of objects and lists within each other, where any are allowed.
DEEPEST = 16


class Rule(NamedTuple):
    """What a field must be, in words that follow "must be", and whether a value is that."""

    words: str
    holds: Callable[[Any], bool]


def parse_json(text: str | bytes, where: str, what: str) -> Any:
    """The JSON in ``text``; raises RecordError where there is none, naming ``where`` and ``what`` it should be."""
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", None) or error
        raise RecordError(f"{where}: not JSON ({why}); the file is damaged or no {what}") from None


def read_text(path: str | Path, what: str) -> str:
    """All of a file; raises RecordError where it cannot be read as text."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read as {what} ({error.strerror})") from None
    except ValueError as error:
        raise RecordError(f"{path}: cannot be read as {what} ({error})") from None


def dumped(data: Any, *, indent: int | None = None) -> str:
    """As JSON, readable and safe to show in a terminal. Raises ValueError for NaN and infinities, which JSON has not."""
    return json_escaped(json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False))


def hold(data: Mapping[str, Any], rules: Mapping[str, Rule], where: str, part: str = "") -> None:
    """Raises RecordError for the first field of ``data`` that breaks its rule; one that is absent breaks none."""
    for name, (words, holds) in rules.items():
        if name in data and not holds(data[name]):
            raise RecordError(f"{where}: {part}{name} must be {words}, got {value_excerpt(data[name])}")


def value_excerpt(value: Any) -> str:
    """The beginning of a value.

    >>> value_excerpt("x" * 1000)[:5]
    "'xxxx"
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST:
        return "a number of more than 100 digits"
    try:
        return f"{value!r:.80}"
    except RecursionError:
        return f"{type(value).__name__} of many levels"


# ---- rules -----------------------------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    """A whole number that is not negative and fits 64 bits."""
    return type(value) is int and 0 <= value <= LARGEST_COUNT


def is_number(value: Any) -> bool:
    """Finite, and of a size that can be computed with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (LEAST <= abs(value) <= MOST or not value)


def is_seconds(value: Any) -> bool:
    """A time that a clock can have measured, or 0."""
    return is_number(value) and (LEAST_S <= value <= MOST_S or not value)


def is_plain(value: Any) -> bool:
    """A text, a number, a truth or null."""
    return value is None or isinstance(value, str | bool) or is_finite(value)


def is_finite(value: Any) -> bool:
    """A number that a double can hold."""
    try:
        return isinstance(value, int | float) and float(value) - float(value) == 0
    except OverflowError:
        return False


def is_tame(value: Any) -> bool:
    """Of any shape, but at most DEEPEST levels, and its numbers are finite."""
    level = [value]
    for _ in range(DEEPEST):
        inside: list[Any] = []
        for each in level:
            if isinstance(each, dict | list | tuple):
                inside += each.values() if isinstance(each, dict) else each
            elif not is_plain(each):
                return False
        if not inside:
            return True
        level = inside
    return False


def nullable(rule: Rule) -> Rule:
    """The same rule, which null fulfils too."""
    return Rule(f"{rule.words} or null", lambda value: value is None or rule.holds(value))


def many(words: str, holds: Callable[[Any], bool], least: int = 0, most: int | None = None) -> Rule:
    """A list whose items all are such, from ``least`` to ``most`` of them."""

    def all_hold(value: Any) -> bool:
        return (
            isinstance(value, list | tuple) and least <= len(value) <= (most or len(value)) and all(map(holds, value))
        )

    return Rule(words, all_hold)


def mapping(words: str, holds: Callable[[Any], bool]) -> Rule:
    """An object whose values all are such."""
    return Rule(words, lambda value: isinstance(value, dict) and all(map(holds, value.values())))


COUNT = Rule("a whole number from 0 to 2^63 - 1", is_count)
TEXT = Rule("text", lambda value: isinstance(value, str))
TRUTH = Rule("true or false", lambda value: isinstance(value, bool))
NUMBER = Rule("a finite number", is_number)
#: Rates, shares and errors.
POSITIVE = Rule("a finite number, not negative", lambda value: is_number(value) and value >= 0)
TIMES = many("a list of finite numbers above 0, in seconds", lambda value: is_seconds(value) and value > 0)
OBJECT = Rule(
    f"an object of finite numbers, texts and the like, at most {DEEPEST} levels deep",
    lambda value: isinstance(value, dict) and is_tame(value),
)
OBJECTS = many("a list of objects", lambda value: isinstance(value, dict))
PLAIN_VALUES = mapping("an object of finite numbers, texts, truths and nulls", is_plain)
NUMBERS = mapping("an object of finite numbers", is_number)
