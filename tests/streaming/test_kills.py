"""A swap that is killed at any of its steps loses neither the old nor the new result; and a swap that does is found out.

``benchmarks/kills.py`` does the same to the command, at random moments and at every system call.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

SOURCE = Path(tilewright.__file__).parent.parent
SCRIPT = Path(__file__).parents[1] / "support" / "killed_swaps.py"


def kill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for library, suffix in (("h5py", ".h5"), ("zarr", ".zarr")):
        if suffix in arguments[0]:
            pytest.importorskip(library, reason=f"{library} is not installed: pip install 'tilewright[files]'")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), *arguments]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how", "least"),
    [
        ("c.npy", "exchange", 20),
        pytest.param("c.raw", "exchange", 20, marks=pytest.mark.further),  # written as .npy is
        pytest.param("c.safetensors", "exchange", 20, marks=pytest.mark.further),
        ("c.h5", "exchange", 20),
        ("c.zarr", "exchange", 60),
        ("c.npy", "renames", 20),
        ("c.zarr", "renames", 60),
        ("c.npy", "interrupts", 20),
    ],
)
def test_death_at_every_step_of_the_swap_loses_nothing(tmp_path: Path, name: str, how: str, least: int) -> None:
    """Also where two names cannot be exchanged: then a directory may be absent, until the next run puts it back."""
    done = kill(tmp_path, name, how)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= least, "the steps are seen"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mutant"),
    [(name, mutant) for name in ("c.npy", "c.zarr") for mutant in ("removing_first", "unsettled")]
    + [("c.raw", "in_place")],
)
def test_a_swap_that_is_not_atomic_is_found_out(tmp_path: Path, name: str, mutant: str) -> None:
    done = kill(tmp_path, name, "exchange", mutant)
    assert done.returncode == 1
    assert "torn or lost" in done.stderr
