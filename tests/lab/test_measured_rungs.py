"""Predicted = counted for every SIMT rung at its smallest tile: the record of ``record_rungs.py``, held to its claims.

What differs is named here with its reason; nothing else may.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import record_rungs
from support import measured_rungs
from support.measured_rungs import GLOBAL, LAUNCHES, SIZES, WAVEFRONTS, differences, lines_apart
from tilewright.errors import UsageError
from tilewright.kernels.catalog import cuda_catalog
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.explain import measure
from tilewright.lab.explain.cuda import explain
from tilewright.simulator.assembly.disassembly import disassemble, find_tool, parse_sass
from tilewright.simulator.gpus import find_gpu

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

RECORD = Path(__file__).parents[2] / "benchmarks" / "explain-measured-h200.jsonl"
HEADER, *ROWS = (json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines())
NAMES = [f"{row['kernel']} {row['m']}" for row in ROWS]
LOADS, STORES = WAVEFRONTS

#: ncu's patched code counts these, not L1, whose own count of the same sectors (``l1tex__t_sectors…_ld``) is as predicted.
PATCHED = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum"
#: The launches whose patched code counts others, and not the same number in each launch.
PATCHED_APART = {"cuda/async_copy 1000"}
#: Launch → counters of wavefronts that are more than predicted, and not the same number in each launch. Multiprocessors have
#: several blocks then: with one none is apart, and no line's addresses cost more than predicted.
CROWDED = {
    "cuda/shared_tile 256": {LOADS, STORES}, "cuda/shared_tile 1000": {LOADS, STORES},
    "cuda/register_rows 256": {LOADS, STORES}, "cuda/register_rows 1000": {LOADS, STORES},
    "cuda/thread_columns 1000": {LOADS, STORES}, "cuda/thread_tile 1000": {LOADS, STORES},
    "cuda/vectorised 1000": {LOADS, STORES}, "cuda/double_buffer 1000": {LOADS},
    "cuda/register_banks 1000": {LOADS}, "cuda/dgemm_normal 1000": {LOADS, STORES},
    "cuda/dgemm_column 256": {LOADS, STORES}, "cuda/dgemm_column 1000": {LOADS, STORES},
}  # fmt: skip
#: The most that they are above the prediction, of it.
MOST = 0.18
#: The kernels that copy by ``cp.async.ca``.
COPYING = ("cuda/async_copy", "cuda/register_banks")
CONFLICTS_OF_COPIES = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum"


def test_every_rung_is_there() -> None:
    """At both sizes and as one block, with its smallest tile, from a GPU that computed the right product."""
    assert (HEADER["kind"], HEADER["schema"], HEADER["environment"]["gpu"]) == ("explain measured", 2, "NVIDIA H200")
    assert list(dict.fromkeys(row["kernel"] for row in ROWS)) == [kernel.name for kernel in measured_rungs.rungs()]
    for name in {row["kernel"] for row in ROWS}:
        of = [row for row in ROWS if row["kernel"] == name]
        assert [row["m"] for row in of[:2]] == list(SIZES)
        assert [row["blocks"] for row in of[2:]] == [1]
    for row in ROWS:
        assert len(row["counted"]) == LAUNCHES == HEADER["launches"]
        assert row["result"]["ok"]
        assert row["predicted_result"]["ok"]
        assert not row["local_bytes"], "registers that do not fit would be counted in"
        assert row["predicted"], row["kernel"]


@pytest.mark.parametrize("kernel", [k for k in cuda_catalog().values() if not k.boxes], ids=lambda kernel: kernel.name)
def test_the_smallest_tile(kernel: CudaKernel) -> None:
    params = measured_rungs.smallest(kernel)
    recorded = [row for row in ROWS if row["kernel"] == kernel.name and row["params"].keys() == params.keys()]
    named = any(row["kernel"] == kernel.name for row in ROWS)
    assert bool(recorded) == (named and kernel.name != "cuda/register_banks"), "STRIPS is newer"
    assert all(row["params"] == params for row in recorded)
    whole = kernel.launch(1024, 1024, 1, **params).blocks
    assert whole >= kernel.launch(1024, 1024, 1).blocks
    assert kernel.launch(*measured_rungs.shapes(kernel, params)[-1], **params).blocks == 1


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_global_memory(row: dict[str, Any]) -> None:
    """Every request and sector, in each launch."""
    found = differences(row, GLOBAL)
    assert set(found) == ({PATCHED} if f"{row['kernel']} {row['m']}" in PATCHED_APART else set())
    for more in found.values():
        assert len(set(more)) > 1, "the same in each launch: then it is no matter of timing"


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_shared_memory(row: dict[str, Any]) -> None:
    """Every wavefront of loads and stores, but where blocks are in each other's way."""
    found = differences(row, WAVEFRONTS)
    assert set(found) == CROWDED.get(f"{row['kernel']} {row['m']}", set())
    for name, more in found.items():
        assert len(set(more)) > 1, "the same in each launch: then it is no matter of timing"
        assert min(more) >= 0
        assert max(more) <= MOST * row["predicted"][name]
        assert row["blocks"] > find_gpu("H200").sms, "no multiprocessor need have two blocks"


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_bank_conflicts(row: dict[str, Any]) -> None:
    """Those of loads and stores are the wavefronts too many; those of copies vary, also with one warp alone."""
    conflicts = {name.replace("pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu"): name for name in WAVEFRONTS}
    assert differences(row, tuple(conflicts)) == {
        name: more for name, of in conflicts.items() for more in differences(row, (of,)).values()
    }
    copies = differences(row, (CONFLICTS_OF_COPIES,))
    assert bool(copies) == (row["kernel"] in COPYING)
    assert all(len(set(more)) > 1 and min(more) > 0 for more in copies.values())


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_every_line(row: dict[str, Any]) -> None:
    """What ncu says of each line; copies alone stand at a line of the prelude in the binary, and are not listed."""
    for unit in ("sectors", "wavefronts"):
        found = lines_apart(row, unit)
        assert bool(found) == (row["kernel"] in COPYING)
        assert all(counted == 0 for _, counted in found.values())
    assert any(row["counted_lines"].values())


@pytest.mark.parametrize(("name", "by"), [(GLOBAL[0], 1), (GLOBAL[0], -1), (LOADS, 1), (STORES, 7)])
def test_a_count_that_is_off_is_seen(name: str, by: int) -> None:
    row = copy.deepcopy(ROWS[NAMES.index("cuda/warp_tile 256")])
    assert differences(row, (*GLOBAL, *WAVEFRONTS)) == {}
    row["counted"][2][name] += by
    assert differences(row, (*GLOBAL, *WAVEFRONTS)) == {name: [0, 0, by]}
    line, counts = next(iter(row["counted_lines"].items()))
    unit = next(iter(counts))
    counts[unit] += by
    assert lines_apart(row, unit) == {line: (counts[unit] - by, counts[unit])}


# ---- the script, without a GPU ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Predictions that were kept, and a GPU that counts 7 of everything and multiplies right."""
    if find_tool() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")

    def profiles(compiled: Any, launches: Any, metrics: Any = measure.COUNTERS, *, lines: bool = True) -> list[Any]:
        made = []
        for launch in launches:
            a, b, c = launch.args[:3]
            product = (a.astype(np.float64) @ b).astype(c.dtype)
            code = parse_sass(disassemble(compiled.cubin))[launch.entry] if lines else []
            counted = [measure.CountedInstruction(i.offset, i.opcode, {"executed": 1, "sectors": 2}) for i in code]
            made.append(SimpleNamespace(
                kernel=launch.entry, counters=dict.fromkeys(metrics, 7), instructions=counted, arrays={2: product}
            ))  # fmt: skip
        return made

    monkeypatch.setattr(measured_rungs, "SIZES", (16,))
    monkeypatch.setattr(measure, "profile_launches", profiles)
    monkeypatch.setattr(measure, "check_gpu", lambda name: None)
    monkeypatch.setattr(measure, "tools", lambda: {"gpu": "none"})
    record_rungs.predict("cuda/shared_tile", tmp_path)
    rows = record_rungs.rung("cuda/shared_tile", tmp_path)
    assert json.loads(json.dumps(rows)) == rows, "plain JSON values"
    assert [(row["m"], row["blocks"]) for row in rows] == [(16, 4), (8, 1)]
    for row in rows:
        assert row["result"]["ok"]
        assert [set(one.values()) for one in row["counted"]] == [{7}] * LAUNCHES
        assert differences(row, (LOADS,)) == {LOADS: [7 - row["predicted"][LOADS]] * LAUNCHES}
        assert all("executed" not in counts for counts in row["counted_lines"].values())
        record_rungs.show(row)
    kept = tmp_path / "shared_tile-16.json"
    kept.write_text(kept.read_text(encoding="utf-8").replace('"NVRTC', '"another NVRTC'), encoding="utf-8")
    with pytest.raises(UsageError, match="another source, other parameters or another compiler"):
        record_rungs.rung("cuda/shared_tile", tmp_path)


@pytest.mark.slow
def test_together_means_with_the_same_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "check_gpu", lambda name: None)
    kernel = cuda_catalog()["cuda/shared_tile"]
    found = [explain(kernel, 16, 16, 16, params={"TILE": tile}) for tile in (8, 16)]
    with pytest.raises(UsageError, match="measured together must have the same parameters"):
        measure.measured_together(kernel, found, seed=1)


@pytest.mark.slow
def test_a_sample_of_tiles_numbered_along_x_alone() -> None:
    """Where tiles hang over an edge that the sample may have missed, it says so, and is not taken for the whole grid."""
    kernel = cuda_catalog()["cuda/dgemm_column"]
    params = {"W": 8, "H": 32, "R": 8}
    missed = explain(kernel, 200, 1000, 8, params=params, whole=False)
    whole = explain(kernel, 200, 1000, 8, params=params, whole=True)
    assert missed.counters != whole.counters
    assert not missed.run["exact"]
    assert "which hang over an edge of C is not known: tiles of 32×8" in missed.run["words"]
    assert record_rungs.predicted(kernel, (200, 1000, 8), params).counters == whole.counters
    even = explain(kernel, 256, 1024, 8, params=params, whole=False)
    assert even.run["exact"]
    assert even.counters == explain(kernel, 256, 1024, 8, params=params, whole=True).counters
