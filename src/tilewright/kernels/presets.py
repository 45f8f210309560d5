"""Presets of CUDA kernels, as their headers declare them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from .cuda_kernel import Preset
from .expression import Expression
from .parameters import WrongHeaderError


def presets_of(key: str, table: Any, expression: Callable[[str, Any], Expression]) -> Iterator[Preset]:
    """The presets that a header describes by this table: each combination of the lists in ``params``, which may itself be a
    list of tables. ``expression(key, text)`` checks a condition. Raises WrongHeaderError."""
    known = isinstance(table, dict) and {"rate", "params"} <= set(table) <= {"rate", "when", "params"}
    sets = _listed(table["params"]) if known else []
    if (
        not sets
        or any(not isinstance(each, dict) for each in sets)
        or type(table["rate"]) is not int
        or table["rate"] < 1
    ):
        raise WrongHeaderError(f"{key} must have rate, from 1, and params, got {table!r}")
    when = expression(f"{key}.when", table.get("when", 1))
    for params in sets:
        for values in itertools.product(*map(_listed, params.values())):
            yield Preset(table["rate"], when, dict(zip(params, values, strict=True)))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
