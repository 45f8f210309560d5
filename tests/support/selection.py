"""Which tests the default run takes: no slow ones, and few cases of a table, but every row of each ``parametrize``.

What it leaves is marked ``thorough``. ``.ci/nightly`` runs it, and ``.ci/run`` a part: one in 40 of the slow tests, and of
a table fewer: if the default run takes one of its cases, or another slow one is first, one in 110; and one in 430 further
cases.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: What only ``.ci/run`` runs.
THOROUGH = pytest.mark.thorough
#: Dtypes that take the way of another of the same kind: int16 that of int8, unsigned integers that of signed ones,
#: complex128 that of complex64, bfloat16 that of float16. Compiling every kernel for them takes minutes.
TWINS = {"int16", "uint8", "uint16", "uint32", "uint64", "complex128", "bfloat16"}


#: Seconds from which a test is slow, without what it compiles for others too; and the tests that were when ``pytest --slow``
#: wrote the file.
SLOW_S = 0.3
SLOW = set(json.loads((Path(__file__).parents[1] / "slow.json").read_text(encoding="utf-8")))
#: One in so many runs in each share: of the further cases of tables, of slow cases beside another case of their table, and
#: of slow tests that stand alone.
PARTS, SLOW_PARTS, SINGLE_PARTS = 430, 110, 40


class Clock:
    """A plugin of pytest that writes which tests take long; under xdist those of all workers."""

    def __init__(self, path: Path) -> None:
        self.path, self.seconds = path, defaultdict[str, float](float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        slow = sorted(test for test, seconds in self.seconds.items() if seconds >= SLOW_S)
        self.path.write_text(json.dumps(slow, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def shared(items: Sequence[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests without those further and slow cases of tables that another seed chooses, and these."""
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    runs = {item.nodeid.split("[")[0] for item in items if item.nodeid not in SLOW and not _is_thorough(item)}
    for item in items:
        table, parts = item.nodeid.split("[")[0], 1
        if item.get_closest_marker("further") is not None:
            parts = PARTS
        elif item.nodeid in SLOW:
            parts = SLOW_PARTS if table in runs else SINGLE_PARTS
            runs.add(table)
        chosen = random.Random(f"{seed} {item.nodeid}").randrange(parts) == 0
        (kept if chosen else left).append(item)
    return kept, left


def _is_thorough(item: pytest.Item) -> bool:
    return item.get_closest_marker("thorough") is not None


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


def further(item: pytest.Item) -> None:
    """Mark a case of a table that the default run leaves."""
    item.add_marker(THOROUGH)
    item.add_marker(pytest.mark.further)


def mark_the_rest(items: Sequence[pytest.Item]) -> None:
    """Mark as thorough: slow tests, cases with one of ``TWINS``, and those that ``each_value`` does not choose."""
    tables: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.nodeid in SLOW or item.get_closest_marker("further"):
            item.add_marker(THOROUGH)
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if any(has_twin(value) for value in item.callspec.params.values()):
            further(item)
        elif item.get_closest_marker("each_value"):
            tables.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in tables.values():
        chosen = each_value([rows(case) for case in cases])
        for index, case in enumerate(cases):
            if index not in chosen:
                further(case)
