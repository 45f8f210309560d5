"""Which cases of a table the default run takes: so few that every row of every ``parametrize`` occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

#: What only ``.ci/run`` runs.
THOROUGH = pytest.mark.thorough
#: Dtypes that take the way of another of the same kind: int16 that of int8, unsigned integers that of signed ones,
#: complex128 that of complex64, bfloat16 that of float16. Compiling every kernel for them takes minutes.
TWINS = {"int16", "uint8", "uint16", "uint32", "uint64", "complex128", "bfloat16"}


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


def mark_the_rest(items: Sequence[pytest.Item]) -> None:
    """Mark as thorough: cases with one of ``TWINS``, and of a test marked ``each_value`` the cases that are not chosen."""
    tables: dict[str, list[pytest.Function]] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if any(isinstance(value, str | np.dtype) and str(value) in TWINS for value in item.callspec.params.values()):
            item.add_marker(THOROUGH)
        elif item.get_closest_marker("each_value"):
            tables.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in tables.values():
        chosen = each_value([rows(case) for case in cases])
        for index, case in enumerate(cases):
            if index not in chosen:
                case.add_marker(THOROUGH)
