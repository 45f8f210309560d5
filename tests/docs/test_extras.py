"""Without extras the library works: what only the laboratory needs is imported where it is used."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.errors import how_to_install

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: Refuses the packages named, as if they were not installed, then multiplies on every path of the host.
USED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import tilewright as tw

a = np.ones((40, 30), np.float32)
assert np.array_equal(tw.matmul(a, a.T), a @ a.T)
assert np.array_equal(tw.multiply(a, a.T, device="cpu"), a @ a.T)
assert tw.gemm(1.0, a, a.T, 0.0, np.empty((40, 40), np.float32))[0, 0] == 30
assert str(tw.plan(a, a.T))
assert "cpu/naive" in tw.ladder()
"""


def packages() -> list[str]:
    """The modules of every package that only an extra installs."""
    listed = {re.split(r"[\s\[<>=;]", line)[0] for extra in PROJECT["optional-dependencies"].values() for line in extra}
    return [*sorted(name.replace("-", "_").removesuffix("_python") for name in listed), "cuda", "elftools"]


@pytest.mark.slow
def test_the_library_needs_no_extra() -> None:
    assert {"threadpoolctl", "typer", "vl_convert", "h5py"} <= set(packages())
    blocked = [name for name in packages() if name != "tilewright"]
    done = subprocess.run([sys.executable, "-c", USED, *blocked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("place", "command"),
    [
        (None, "pip install 'tilewright[lab]'"),
        ({"url": "file:///home/me/my%20tools", "dir_info": {}}, "pip install '/home/me/my tools[lab]'"),
        ({"url": "file:///src/tw", "dir_info": {"editable": True}}, "pip install -e '/src/tw[lab]'"),
        (
            {"url": "file:///tmp/tilewright-1.whl", "archive_info": {}},
            "pip install 'tilewright[lab] @ file:///tmp/tilewright-1.whl'",
        ),
        (
            {"url": "https://host/tw.git", "vcs_info": {"vcs": "git"}},
            "pip install 'tilewright[lab] @ git+https://host/tw.git'",
        ),
    ],
    ids=["index", "checkout", "editable", "file", "repository"],
)
def test_the_command_for_an_extra_is_for_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, place: dict[str, Any] | None, command: str
) -> None:
    """PEP 610's file says it; a package from an index has none."""
    installed = SimpleNamespace(read_text=lambda name: place and json.dumps(place))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: installed)
    assert how_to_install("lab") == command


def test_the_command_for_an_extra_of_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert how_to_install("lab") == "pip install '.[lab]' in the checkout"
