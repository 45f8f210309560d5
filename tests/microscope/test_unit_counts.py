"""Counts of tensor cores and of the copy engine: those of the microscope, and those that an H200 counted."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from microscope.test_asynchronous_defects import tensor_map
from support.asynchronous_kernels import ARCH, KERNELS, SMALL, WHOLE, TileMap
from tilewright.errors import UnavailableError
from tilewright.records.unit_counters import UNIT_LABELS
from tilewright.simulator.counters.work import filled_sectors, touched_sectors, wgmma_work

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_gmma.sum"
CYCLES = "sm__pipe_tensor_cycles_active.sum"


@functools.cache
def forms() -> tuple[int, list[dict[str, Any]]]:
    """How often each instruction was repeated, and what was counted of each form of wgmma."""
    head, *rows = map(json.loads, (BENCHMARKS / "wgmma-h200.jsonl").read_text(encoding="utf-8").splitlines())
    return head["environment"]["repeats"], [row for row in rows if row["instruction"] == "wgmma"]


def test_every_form_of_wgmma_was_counted() -> None:
    _, rows = forms()
    assert {row["type"] for row in rows} == {"bf16", "f16", "tf32", "e4m3", "s8"}
    assert {row["n"] for row in rows} >= {8, 64, 128, 256}
    assert len(rows) == len({(row["type"], row["n"], row["layout"], row["a"]) for row in rows}) == 240


def test_wavefronts_and_cycles_of_wgmma_are_those_of_the_gpu() -> None:
    repeats, rows = forms()
    for row in rows:
        work = wgmma_work(row["n"], from_registers=row["a"] == "registers")
        found = [row["counters"][name] for name in (WAVEFRONTS, CYCLES, CONFLICTS)]
        assert found == [repeats * work.wavefronts, repeats * work.cycles, 0], row


def test_no_instruction_is_faster_than_its_units_allow() -> None:
    repeats, rows = forms()
    for row in rows:
        work = wgmma_work(row["n"], from_registers=row["a"] == "registers")
        least = max(work.cycles / 4, work.wavefronts)
        assert least <= row["cycles"] / repeats <= max(21, least + 4), row


@pytest.mark.parametrize(("nbytes", "inside"), [(128, 112), (64, 48), (32, 16)])
def test_lines_at_the_edge_of_a_box(nbytes: int, inside: int) -> None:
    """45 lines of a matrix whose lines begin at odd multiples of 16 bytes, in boxes of 32 lines: see swizzled_copy.cu."""
    pitch = nbytes + inside
    total = 0
    for first, moved in ((0, nbytes), (nbytes, inside)):
        for top in (0, 32):
            lines = np.arange(top, min(45, top + 32)) * pitch + first
            total += touched_sectors(lines, moved) + filled_sectors(32, nbytes, lines.size, moved)
    assert total == {128: 579, 64: 323, 32: 195}[nbytes]  # as counted: benchmarks/asynchronous-h200.jsonl


@functools.cache
def recorded() -> dict[tuple[str, str], dict[str, Any]]:
    """What was counted of each asynchronous kernel, by its name and size."""
    _, *rows = map(json.loads, (BENCHMARKS / "asynchronous-h200.jsonl").read_text(encoding="utf-8").splitlines())
    return {(row["kernel"], row["size"]): row["counters"] for row in rows if "counters" in row}


@pytest.mark.parametrize("name", KERNELS)
def test_counts_of_the_asynchronous_kernels_are_those_of_the_gpu(name: str) -> None:
    kernel = KERNELS[name]
    launch = kernel.launch(SMALL, WHOLE)
    args = [tensor_map(arg) if isinstance(arg, TileMap) else arg for arg in launch.args]
    try:
        seen = tw.microscope(
            kernel.path, kernel.entry, launch.grid, kernel.block, args,
            arch=ARCH, defines=kernel.defines, shared_bytes=kernel.shared_bytes,
        )  # fmt: skip
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    counted = recorded()[name, SMALL]
    ours = {key: value for key, value in seen.counters.items() if key in UNIT_LABELS}
    assert ours or name == "stmatrix"
    assert {key: counted[key] for key in ours} == ours
    missed = {key for key, value in counted.items() if key in UNIT_LABELS and value and key not in ours}
    assert not missed - ({CYCLES} if name == "ring" else set())  # it has mma.sync, whose cycles are not counted
