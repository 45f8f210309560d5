"""Which tests the default run takes: no slow ones, and few cases of a table, but every row of each ``parametrize``.

``@pytest.mark.slow`` marks a test that takes more than 0.3 s, and ``@pytest.mark.slow_cases("float64", "1200")`` those cases
of a table whose id has one of these parts. The cases of a table that the default run leaves are marked ``further`` here, and
a selection of what it takes is marked ``fast``.

``.ci/nightly`` runs all, and ``.ci/run`` a part of what the default run leaves: one in 40 of the slow tests, and of a table
fewer: if the default run takes one of its cases, or another slow one is first, one in 110; and one in 430 further cases.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

#: Dtypes that take the way of another of the same kind: int16 that of int8, unsigned integers that of signed ones,
#: complex128 that of complex64, bfloat16 that of float16. Compiling every kernel for them takes minutes.
TWINS = {"int16", "uint8", "uint16", "uint32", "uint64", "complex128", "bfloat16"}
#: One in so many runs in each share: of the further cases of tables, of slow cases beside another case of their table, and
#: of slow tests that stand alone.
PARTS, SLOW_PARTS, SINGLE_PARTS = 430, 110, 40
#: The marks of what the default run leaves.
MARKS = "slow", "further", "thorough", "browser"
#: The same as ``pyproject.toml`` says it.
DEFAULT = " and ".join(f"not {name}" for name in MARKS)


def shared(items: Sequence[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests without those further and slow cases of tables that another seed chooses, and these."""
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    runs = {table_of(item) for item in items if not _marks(item)}
    for item in items:
        table, parts = table_of(item), 1
        if "further" in _marks(item):
            parts = PARTS
        elif "slow" in _marks(item):
            parts = SLOW_PARTS if table in runs else SINGLE_PARTS
            runs.add(table)
        chosen = random.Random(f"{seed} {item.nodeid}").randrange(parts) == 0
        (kept if chosen else left).append(item)
    return kept, left


def table_of(item: pytest.Item) -> str:
    """The test function, without the case."""
    return item.nodeid.split("[")[0]


def _marks(item: pytest.Item) -> set[str]:
    return {name for name in MARKS if item.get_closest_marker(name) is not None}


def each_value(cases: Sequence[Mapping[str, object]]) -> list[int]:
    """Indices of the cases that are chosen, greedily: the next is the one with the most values not met before.

    >>> each_value([{"m": m, "dtype": d} for m in (1, 2, 3) for d in "fd"])
    [0, 3, 4]
    """
    values = [set(case.items()) for case in cases]
    missing, chosen = set().union(*values), []
    while missing:
        best = max(range(len(values)), key=lambda i: len(values[i] & missing))
        chosen.append(best)
        missing -= values[best]
    return sorted(chosen)


def rows(case: pytest.Function) -> dict[str, object]:
    """By the names of each ``parametrize`` (and of each fixture with parameters) the row that this case has of it."""
    values = {name: id(value) for name, value in case.callspec.params.items()}
    tables = [mark.args[0] for mark in case.iter_markers("parametrize")]
    names = [table.replace(",", " ").split() if isinstance(table, str) else list(table) for table in tables]
    own = [[name] for name in values if not any(name in table for table in names)]
    return {" ".join(table): tuple(values[name] for name in table) for table in [*names, *own]}


def has_twin(value: object) -> bool:
    """Whether a parameter is one of ``TWINS``, or, as a variant of a kernel, names one as its ``dtype``.

    >>> from types import SimpleNamespace
    >>> [has_twin(value) for value in ("uint8", np.dtype("uint8"), SimpleNamespace(dtype="uint8"), "int8")]
    [True, True, True, False]
    """
    name = str(value) if isinstance(value, np.dtype) else getattr(value, "dtype", value)
    return isinstance(name, str) and name in TWINS


def in_turns(table: Sequence[Any], always: int) -> list[Any]:
    """Rows of a ``parametrize``: the default run takes the first ``always`` of them, and the others are further cases."""
    rows = [row if isinstance(row, tuple) else (row,) for row in table]
    return [pytest.param(*row, marks=[] if at < always else pytest.mark.further) for at, row in enumerate(rows)]


def widest_and_narrowest(sets: Iterable[Mapping[str, int]]) -> list[dict[str, int]]:
    """Of sets of parameters that differ in the width of a tile alone, and in what follows from it, the first and the last.

    >>> widest_and_narrowest([{"BN": 64}, {"BN": 72, "STAGES": 3}, {"BN": 80}, {"BN": 64, "CLUSTER": 2}])
    [{'BN': 64}, {'BN': 80}, {'BN': 64, 'CLUSTER': 2}]
    """
    alike: dict[tuple[tuple[str, int], ...], list[dict[str, int]]] = {}
    for params in sets:
        others = sorted((name, value) for name, value in params.items() if name not in ("BN", "STAGES"))
        alike.setdefault(tuple(others), []).append(dict(params))
    return [each for found in alike.values() for each in (found[0], *found[1:][-1:])]


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark slow cases; as ``further`` cases with one of ``TWINS`` and those that ``each_value`` does not choose; and of what
    the default run takes, as ``fast``, the first case of every second function."""
    tables: dict[str, list[pytest.Function]] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        case = item.callspec.id
        parts = {case, *case.split("-")}
        if any(parts & {*marker.args} for marker in item.iter_markers("slow_cases")):
            item.add_marker("slow")
        if any(has_twin(value) for value in item.callspec.params.values()):
            item.add_marker("further")
        elif item.get_closest_marker("each_value"):
            tables.setdefault(table_of(item), []).append(item)
    for cases in tables.values():
        chosen = each_value([rows(case) for case in cases])
        for index, case in enumerate(cases):
            if index not in chosen:
                case.add_marker("further")
    first = {table_of(item): item for item in reversed(items) if not _marks(item)}
    for at, item in enumerate(reversed(first.values())):
        if at % 2 == 0:
            item.add_marker("fast")
