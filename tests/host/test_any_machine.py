"""What plans, cuts and limits memory, on every machine that ``tests/data/machines`` describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.selection import DEFAULT

TESTS = Path(__file__).parents[1]
MACHINES = sorted((TESTS / "data" / "machines").glob("*.json"))
#: The files that have such tests.
FILES = sorted(str(path) for path in TESTS.rglob("test_*.py") if "pytest.mark.any_machine" in path.read_text("utf-8"))
#: The machines of the default run; CI takes all.
ALWAYS = ("one-core", "server-64-cores")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem in ALWAYS else pytest.mark.thorough, id=path.stem) for path in MACHINES],
)
def test_plans_hold_on(path: Path, tmp_path: Path) -> None:
    """The marked tests pass in a process that takes this description for its machine: cuts are made when modules are
    loaded."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", f"any_machine and {DEFAULT}"]
    environment = {"TILEWRIGHT_MACHINE": str(path), "TILEWRIGHT_CACHE": str(tmp_path)}
    answer = subprocess.run(
        [*command, *FILES], env=os.environ | environment, capture_output=True, text=True, cwd=TESTS.parent, check=False
    )
    assert answer.returncode == 0, answer.stdout[-5000:] + answer.stderr
    assert int(re.search(r"(\d+) passed", answer.stdout)[1]) > 100
    compiled = sorted(str(file) for file in tmp_path.rglob("*.nb*"))
    assert not compiled, "planning is arithmetic"
