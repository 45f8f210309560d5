"""Rings, groups, parities and warps in kernels of a foreign style, rolled and unrolled: each planted defect is found at its
line, and the twins without one are right and silent."""

from __future__ import annotations

import numpy as np
import pytest

from support.planted_rings import FOLDER, RINGS, variants
from tilewright.simulator.findings import BY_THE_LETTER, SURE

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")


@pytest.mark.parametrize(("source", "name", "how"), variants(lambda ring: ring.twins))
def test_a_twin_is_right_and_silent(source: str, name: str, how: str) -> None:
    ring = RINGS[source]
    run = ring.run(name, how)
    assert [str(finding) for finding in run.findings] == []
    assert run.complete
    np.testing.assert_array_equal(np.ravel(run.arrays[1])[: ring.right.size], ring.right)


@pytest.mark.parametrize(("source", "name", "how"), variants(lambda ring: ring.marks))
def test_a_planted_defect_is_found_at_its_line(source: str, name: str, how: str) -> None:
    found = {(finding.line, finding.kind) for finding in RINGS[source].run(name, how).findings}
    assert RINGS[source].marks[name] <= found


def test_enough_is_planted() -> None:
    assert sum(len(ring.marks) for ring in RINGS.values()) >= 80
    assert {ring.source for ring in RINGS.values()} == {path.name for path in FOLDER.glob("*.cu")}


def test_the_test_of_a_defect_can_fail() -> None:
    ring = RINGS["async_groups"]
    assert not ring.marks["NO_WAIT"] <= {
        (finding.line, finding.kind) for finding in ring.run("RIGHT", "rolled").findings
    }


def test_what_works_today_is_marked() -> None:
    """PTX promises neither; a race with the copy itself is sure."""
    (volatile,) = RINGS["warps"].run("VOLATILE_NO_SYNCWARP", "rolled").findings
    (left,) = RINGS["bulk_stores"].run("LEAVES_WHILE_READ", "rolled").findings
    assert (volatile.grade, left.grade) == (BY_THE_LETTER, BY_THE_LETTER)
    assert "volatile race (by the letter of PTX) in " in str(volatile)
    assert {finding.grade for finding in RINGS["async_groups"].run("NO_WAIT", "rolled").findings} == {SURE}
