"""Without extras the library works: what only the laboratory needs is imported where it is used."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
