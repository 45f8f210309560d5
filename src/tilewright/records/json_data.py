"""Reads JSON files of any origin. Each field is checked by its rule; an error is one line that names file, line and
field.

Files may come from another machine or another version, or be written by hand. JSON data whose fields obey their rules
need no other check: numbers are finite and not too large for computations, and nothing is nested deeply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import RecordError
from .legible import json_escaped

#: The largest whole number that is accepted; no real count reaches it.
LARGEST_COUNT = 2**63 - 1
#: Times in seconds, and some other numbers, must be 0 or lie between these two, so that a program can divide by them
#: and draw them on logarithmic axes.
LEAST_S, MOST_S = 1e-12, 1e12
LEAST, MOST = 1e-100, 1e100
#: The most levels of nested objects and lists, in fields that may have such.
DEEPEST = 16

Record = TypeVar("Record")


class Rule(NamedTuple):
    """``words`` says what a field must be; error messages put these words after "must be". ``holds(value)`` says
    whether a value satisfies the rule."""

    words: str
    holds: Callable[[Any], bool]


def parse_json(text: str | bytes, where: str, what: str) -> Any:
    """Parse the JSON ``text``.

    Raises RecordError for any other text; the error names ``where``, the origin of the text, and ``what`` the text
    should be.
    """
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", None) or error
        raise RecordError(f"{where}: not JSON ({why}); the file is damaged or no {what}") from None


def read_text(path: str | Path, what: str) -> str:
    """Read the whole text of a file; raises RecordError if it cannot be read as text."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read as {what} ({error.strerror})") from None
    except ValueError as error:
        raise RecordError(f"{path}: cannot be read as {what} ({error})") from None


def dumped(data: Any, *, indent: int | None = None) -> str:
    """Convert ``data`` to JSON that is safe to show on a terminal. Raises ValueError for NaN and infinities, which JSON
    lacks."""
    return json_escaped(json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False))


def check_fields(data: Mapping[str, Any], rules: Mapping[str, Rule], where: str, part: str = "") -> None:
    """Raise RecordError for the first field of ``data`` that breaks its rule.

    A field that ``data`` does not contain breaks no rule.
    """
    for name, (words, holds) in rules.items():
        if name in data and not holds(data[name]):
            raise RecordError(f"{where}: {part}{name} must be {words}, got {value_excerpt(data[name])}")


def holds_kind(path: str | Path, kind: str) -> bool:
    """Return whether the first line of a file is a JSON object of the given kind; False if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            data = parse_json(file.readline(), str(path), kind)
    except (OSError, RecordError):
        return False
    return isinstance(data, dict) and data.get("kind") == kind


def check_kind(data: Mapping[str, Any], kind: str, schema: int, where: str) -> None:
    """Raise RecordError if an object has another kind or schema than the given one."""
    if data.get("kind") != kind or data.get("schema") != schema:
        actual = f"{value_excerpt(data.get('kind'))} of schema {value_excerpt(data.get('schema'))}"
        raise RecordError(f"{where}: kind must be {kind!r} of schema {schema}, got {actual}")


def from_fields(record: Callable[..., Record], data: Mapping[str, Any], where: str, **given: Any) -> Record:
    """Make an object of the dataclass ``record``.

    Fields in ``given`` have the values that ``given`` states, and all other fields have the values in ``data``. Other
    entries of ``data``, such as those of a later version, are ignored. Raises RecordError if a field of ``record`` is
    missing.
    """
    known = {field.name for field in fields(record)} - given.keys()  # type: ignore[arg-type]  # a dataclass
    try:
        return record(**given, **{name: value for name, value in data.items() if name in known})
    except TypeError as error:
        raise RecordError(f"{where}: is incomplete: {str(error).split('()', 1)[-1].strip()}") from None


def value_excerpt(value: Any) -> str:
    """Return the first 80 characters of a value, as text.

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
    """Return whether a value is a whole number from 0 to ``LARGEST_COUNT``."""
    return type(value) is int and 0 <= value <= LARGEST_COUNT


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that is neither too large nor too small for computations."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (LEAST <= abs(value) <= MOST or not value)


def is_seconds(value: Any) -> bool:
    """Return whether a value is a time in seconds that a clock can measure, or 0."""
    return is_number(value) and (LEAST_S <= value <= MOST_S or not value)


def is_plain(value: Any) -> bool:
    """Return whether a value is a text, a finite number, true, false or null."""
    return value is None or isinstance(value, str | bool) or is_finite(value)


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that a double can represent."""
    try:
        return isinstance(value, int | float) and float(value) - float(value) == 0
    except OverflowError:
        return False


def is_tame(value: Any) -> bool:
    """Return whether a value is nested at most ``DEEPEST`` levels deep and contains only plain values."""
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
    """Make a rule that accepts null, and every value that ``rule`` accepts."""
    return Rule(f"{rule.words} or null", lambda value: value is None or rule.holds(value))


def many(words: str, holds: Callable[[Any], bool], least: int = 0, most: int | None = None) -> Rule:
    """Make the rule for a list of ``least`` to ``most`` items, whose items all satisfy ``holds``."""

    def all_hold(value: Any) -> bool:
        return (
            isinstance(value, list | tuple) and least <= len(value) <= (most or len(value)) and all(map(holds, value))
        )

    return Rule(words, all_hold)


def mapping(words: str, holds: Callable[[Any], bool]) -> Rule:
    """Make the rule for an object whose values all satisfy ``holds``."""
    return Rule(words, lambda value: isinstance(value, dict) and all(map(holds, value.values())))


COUNT = Rule("a whole number from 0 to 2^63 - 1", is_count)
TEXT = Rule("text", lambda value: isinstance(value, str))
TRUTH = Rule("true or false", lambda value: isinstance(value, bool))
NUMBER = Rule("a finite number", is_number)
#: The rule for rates, fractions and errors.
POSITIVE = Rule("a finite number, not negative", lambda value: is_number(value) and value >= 0)
TIMES = many("a list of finite numbers above 0, in seconds", lambda value: is_seconds(value) and value > 0)
OBJECT = Rule(
    f"an object of finite numbers, texts and the like, at most {DEEPEST} levels deep",
    lambda value: isinstance(value, dict) and is_tame(value),
)
OBJECTS = many("a list of objects", lambda value: isinstance(value, dict))
PLAIN_VALUES = mapping("an object of finite numbers, texts, truths and nulls", is_plain)
NUMBERS = mapping("an object of finite numbers", is_number)
