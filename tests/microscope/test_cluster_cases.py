"""Instructions of clusters, against an NVIDIA H200: ``data/clusters-h200.npz`` is what every case of ``cluster_cases`` wrote
there, by ``python benchmarks/record_clusters.py DIR``. It has a hash of each case: record anew when cases change."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cluster_cases import CASES
from tilewright.simulator import simulate

RECORD = Path(__file__).parents[1] / "data" / "clusters-h200.npz"


@functools.cache
def recording() -> tuple[dict[str, Any], dict[str, bytes]]:
    """Metadata, and the bytes that each case wrote."""
    with np.load(RECORD) as file:
        outputs = {name: file[name].tobytes() for name in file.files if name != "metadata"}
        return json.loads(str(file["metadata"])), outputs


@pytest.mark.parametrize("name", CASES)
def test_as_the_gpu_does(name: str) -> None:
    case = CASES[name]
    run = simulate(case.ptx, "k", case.grid, case.block, list(case.arguments))
    assert not run.findings
    assert b"".join(np.asarray(run.arrays[output]).tobytes() for output in case.outputs) == recording()[1][name]


def test_the_recording_is_of_these_cases() -> None:
    metadata, outputs = recording()
    assert not metadata["failed"]
    assert set(outputs) == set(CASES)
    assert {name: case.digest() for name, case in CASES.items()} == metadata["cases"]
    assert "H200" in metadata["gpu"]
