"""``tilewright gram`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.command_line import is_one_line
from tilewright.cpu.runtime.machine_code import engine_code

if engine_code() is None:
    pytest.skip("without machine code no blocks are multiplied", allow_module_level=True)


def test_a_covariance(cli, tmp_path: Path) -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (500, 60)) + 3
    np.save(tmp_path / "x.npy", x)
    answer = cli("gram", "x.npy", "-o", "c.npy", "--center", "--ddof", "1", "--memory", "32MiB", "--json", "r.json")
    assert (answer.code, answer.err) == (0, "")
    np.testing.assert_allclose(np.load("c.npy"), np.cov(x.T), rtol=1e-12, atol=1e-14)
    for word in ("C in one tile", "centred", "divided", "reads", "c.npy: (60, 60) float64", "GFLOPS"):
        assert word in answer.out
    assert all(len(line.rstrip()) <= 80 for line in answer.out.splitlines())
    record = json.loads(Path("r.json").read_text())
    assert (record["kind"], record["n"], record["k"], record["center"]) == ("gram", 60, 500, True)
    assert record["measured"]["read_bytes"] == record["read_bytes"] == x.nbytes


def test_a_dry_run_computes_nothing_and_errors_are_one_line(cli, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 60)))
    answer = cli("gram", "x.npy", "-o", "c.npy", "--rows", "--dry-run")
    assert answer.code == 0
    assert "(50×60) · (60×50) float64" in answer.out
    assert not Path("c.npy").exists()
    for arguments in (
        ["nothing.npy", "-o", "c.npy"],
        ["x.npy", "-o", "x.npy"],
        ["x.npy", "-o", "c.npy", "--ddof", "50"],
    ):
        answer = cli("gram", *arguments)
        assert answer.code == 2
        assert is_one_line(answer)
