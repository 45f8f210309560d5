"""Kernels of compute capability 10.0 whose products use tensor memory: the right ones are right and silent, and each planted
defect is found at its line. No GPU confirmed this: the rules are those of the PTX ISA."""

from __future__ import annotations

import numpy as np
import pytest

from support.tensor_kernels import FOLDER, kernels
from tilewright.simulator.findings import BY_THE_LETTER, SURE

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

TWINS = [(source, name) for source, ring in kernels().items() for name in ring.twins]
DEFECTS = [(source, name) for source, ring in kernels().items() for name in ring.marks]


@pytest.mark.parametrize(("source", "name"), [pytest.param(*case, id="-".join(case)) for case in TWINS])
def test_a_kernel_is_right_and_silent(source: str, name: str) -> None:
    ring = kernels()[source]
    run = ring.run(name, "rolled")
    assert [str(finding) for finding in run.findings] == []
    assert run.complete
    np.testing.assert_array_equal(np.ravel(run.arrays[-1]), np.ravel(ring.right_of(name)))


@pytest.mark.parametrize(("source", "name"), [pytest.param(*case, id="-".join(case)) for case in DEFECTS])
def test_a_planted_defect_is_found_at_its_line(source: str, name: str) -> None:
    ring = kernels()[source]
    found = {(finding.line, finding.kind) for finding in ring.run(name, "rolled").findings}
    assert ring.marks[name] <= found


def test_what_works_today_is_marked() -> None:
    """The fences bind only the compiler, and a thread that has left has waited for what it started."""
    grades = {("gemm", "NO_AFTER_SYNC"): "missing fence", ("pair", "OTHERS_HAVE_LEFT"): "race"}
    for (source, name), kind in grades.items():
        found = [f.grade for f in kernels()[source].run(name, "rolled").findings if f.kind == kind]
        assert set(found) == {BY_THE_LETTER}
    assert {f.grade for f in kernels()["gemm"].run("NO_COMMIT", "rolled").findings} == {SURE}


def test_enough_is_planted() -> None:
    assert len(DEFECTS) >= 40
    assert {ring.source for ring in kernels().values()} == {path.name for path in FOLDER.glob("*.cu")}
