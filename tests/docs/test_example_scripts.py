"""The scripts under ``examples`` run, at small sizes, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def output(script: str, *arguments: str) -> str:
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_has_a_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    scripts = [path.name for path in EXAMPLES.glob("*.py")]
    assert len(scripts) == 6
    assert [name for name in scripts if f'"{name}"' not in tests] == []


@pytest.mark.slow
def test_learn_the_ladder() -> None:
    said = output("learn_the_ladder.py", "64", "naive", "transposed")
    assert "Three loops i, j, p" in said
    assert "times cpu/naive" in said
    assert said.count("GFLOPS") == 2
    assert "rungs: known are naive, transposed" in run("learn_the_ladder.py", "64", "niave").stderr


@pytest.mark.slow
def test_explain_your_own_kernel() -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    first, second, third = output("explain_your_own_kernel.py", "1").split("\n== ")
    assert "race at line 8" in first
    assert "bank conflicts" in second
    assert "race" not in second
    assert "race" not in third
    assert "bank conflicts" not in third
    assert "no defect found" in third


@pytest.mark.slow
def test_a_step_of_muon_in_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'tilewright[torch]'")
    said = output("muon_step.py", "100")
    assert float(said.split()[2]) < 1e-4
    assert "tilewright" in said


@pytest.mark.slow
def test_types_are_true() -> None:
    assert output("typed.py") == "all types are true\n"


@pytest.mark.slow
def test_types_are_true_of_tensors_and_arrays_of_jax() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'tilewright[torch]'")
    pytest.importorskip("jax", reason="jax is not installed: pip install 'tilewright[jax]'")
    assert output("typed_frameworks.py") == "all types are true\n"


@pytest.mark.slow
def test_multiply_files(tmp_path: Path) -> None:
    said = output("multiply_files.py", "300", "48MiB", str(tmp_path))
    assert "(300×300) · (300×300) float32, in blocks" in said
    assert "c.npy: 300×300 float32, largest relative error" in said
    before = (tmp_path / "c.npy").stat().st_mtime_ns
    output("multiply_files.py", "300", "48MiB", str(tmp_path))
    assert (tmp_path / "c.npy").stat().st_mtime_ns == before, "a complete result is not computed again"


@pytest.mark.slow
def test_a_wrong_result_is_said(tmp_path: Path) -> None:
    output("multiply_files.py", "300", "48MiB", str(tmp_path))
    with (tmp_path / "c.npy").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\0\0\0\0")
    assert run("multiply_files.py", "300", "48MiB", str(tmp_path)).returncode != 0
