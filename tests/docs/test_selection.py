"""The default run leaves no parameter's value out."""

from __future__ import annotations

import doctest
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support import selection

TESTS = Path(__file__).parents[1]

TABLE = """
import pytest

@pytest.mark.each_value
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_table(size, dtype):
    pass

@pytest.mark.parametrize("size", [1, 2])
def test_all(size):
    pass

@pytest.mark.slow_cases("float64", "a-b")
@pytest.mark.parametrize("case", ["float64-1", "float32-1", "a-b"])
def test_cases(case):
    pass

@pytest.mark.slow
def test_slow():
    pass
"""


def test_doctests() -> None:
    assert doctest.testmod(selection).failed == 0


@pytest.mark.parametrize(
    "cases",
    [
        [{"a": a, "b": b, "c": c} for a in range(9) for b in range(4) for c in range(2)],
        [{"a": 1}],
        [{"a": a, "b": a} for a in range(5)],
        [{"a": a, "b": b} for a in range(6) for b in range(6) if a != b],
    ],
)
def test_every_value_is_chosen_by_few_cases(cases: list[Mapping[str, object]]) -> None:
    chosen = [cases[index] for index in selection.each_value(cases)]
    for name in cases[0]:
        assert {case[name] for case in chosen} == {case[name] for case in cases}
    assert len(chosen) <= sum(len({case[name] for case in cases}) for name in cases[0])


def test_the_project_says_the_same() -> None:
    options = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert options["addopts"].endswith(f" -m '{selection.DEFAULT}'")


@pytest.mark.slow
def test_the_others_are_deselected(tmp_path: Path) -> None:
    """In a run of its own, with this project's conftest.py."""
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_table.py").write_text(TABLE)
    markers = "\n    ".join(["markers =", *selection.MARKS, "slow_cases", "fast", "each_value"])
    options = f"addopts = -p no:xdist -m '{selection.DEFAULT}'\npythonpath = {TESTS}\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{options}{markers}\n")

    def passed(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()[-1]

    assert passed().startswith("7 passed, 7 deselected")
    assert passed("-m", "").startswith("14 passed")
    assert passed("-m", "slow").startswith("3 passed, 11 deselected")
    assert passed("-m", "further").startswith("4 passed, 10 deselected")
    assert passed("-m", "fast").startswith("2 passed"), "of test_table and test_cases one each"
    assert passed("-k", "test").startswith("14 passed"), "asked for by name: all cases"


@pytest.mark.slow
def test_shares_cover_all_cases() -> None:
    """Whichever seed: tests that are no further cases always, a part of these, and each of these for some seed."""

    class Case:
        def __init__(self, number: int) -> None:
            self.nodeid = f"test.py::test[{number}]"

        def get_closest_marker(self, name: str) -> object | None:
            return name if name == "further" and int(self.nodeid[14:-1]) % 2 else None

    cases: list[Any] = [Case(number) for number in range(200)]
    seen = set()
    for seed in range(4000):
        kept, left = selection.shared(cases, seed)
        assert {*kept, *left} == {*cases}
        assert {case for case in cases if not case.get_closest_marker("further")} <= {*kept}
        assert 100 <= len(kept) <= 120
        seen |= {*kept}
    assert seen == {*cases}


@pytest.mark.thorough
def test_slow_cases_of_a_table_take_turns() -> None:
    """One in 110; one in 40 of slow tests that stand alone, among them the first of a table none of whose cases is quick."""

    class Case:
        def __init__(self, nodeid: str, mark: str = "slow") -> None:
            self.nodeid, self.mark = nodeid, mark

        def get_closest_marker(self, name: str) -> object | None:
            return name if name == self.mark else None

    cases: list[Any] = [Case(f"{table}[{number}]") for table in ("a.py::one", "a.py::two") for number in range(100)]
    alone: list[Any] = [Case("a.py::alone"), Case("a.py::two[quick]", "")]
    seen, counts = set(), Counter[str]()
    for seed in range(900):
        kept, left = selection.shared([*cases, *alone], seed)
        assert 175 < len(left) <= 201
        seen |= {*kept}
        counts.update(case.nodeid for case in kept)
    assert seen == {*cases, *alone}
    assert counts[alone[1].nodeid] == 900, "it is quick"
    assert all(10 < counts[case.nodeid] < 40 for case in (cases[0], alone[0]))
