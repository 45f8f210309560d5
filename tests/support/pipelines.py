"""Pipelines for the tests of their pictures: the ring of the documents, recorded, and tiles made in code."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import UnavailableError
from tilewright.records.pipeline import (
    BarrierEvent,
    BarrierHistory,
    Pipeline,
    PipelineRow,
    PipelineSpan,
    SwizzledTile,
)

RING = (Path(__file__).parents[2] / "examples" / "ring_of_copies.cu").read_text(encoding="utf-8")
#: A line of the ring → the same line with a mistake.
WRONG_PARITY = ("wait(full[s], parity);", "wait(full[s], parity ^ 1);")
WRONG_BYTES = ("expect(full[s], BYTES);", "expect(full[s], BYTES + 16);")


@functools.cache
def ring(rows: int = 7, good: str = "", bad: str = "") -> tw.simulator.Observation:
    """What the microscope sees of the ring, with one text replaced by another."""
    assert good in RING
    x = np.random.default_rng(1).integers(-4, 5, (rows, 128)).astype(np.float32)
    try:
        return tw.microscope(
            RING.replace(good, bad) if good else RING, "ring", 1, 160, [x, np.zeros(128, np.float32), rows]
        )
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")


def pipeline(rows: int = 7, good: str = "", bad: str = "") -> Pipeline:
    found = ring(rows, good, bad).pipeline
    assert found is not None
    return found


def tile(swizzle: int, row_bytes: int = 128, *, read_with: int | None = None) -> SwizzledTile:
    """A tile as a copy with a swizzle writes it, read by a product with the same or another one, or not at all."""

    def place(row: int, column: int, width: int) -> int:
        at = row * row_bytes + 16 * column
        return at ^ (at >> 3 & (max(16, width) - 16)) if width else at

    cells = [[place(r, c, swizzle) for c in range(row_bytes // 16)] for r in range(8)]
    if read_with is None:
        return SwizzledTile(7, swizzle, row_bytes, cells)
    reads = [place(r, 0, read_with) for r in range(8)]
    return SwizzledTile(7, swizzle, row_bytes, cells, "A", 9, f"{read_with}-byte swizzle", reads)


def in_code() -> Pipeline:
    """A pipeline of one copy that is used once, with a wait that never ends."""
    spans = [
        PipelineSpan("wait", 0, 1.25, "0", 0, "waits for phase 0 of <full>", 9, "stage 0"),
        PipelineSpan("multiply", 1.25, 2.25, "0", 0, "multiplies", 9),
        PipelineSpan("wait", 2.25, None, "0", 1, "waits for ever", 9),
    ]
    rows = [
        PipelineRow("warp 4", "warps", [PipelineSpan("ask", 0, 0.25, "0", 0, "asks for 512 bytes", 7)]),
        PipelineRow("stage 0", "stage", [PipelineSpan("copy", 0.25, 1.25, "0", 0, "a copy"),
                                         PipelineSpan("full", 1.25, 2.25, "0", 0, "full")]),
        PipelineRow("warps 0–3", "warps", spans),
    ]  # fmt: skip
    events = [
        BarrierEvent("init", "warp 0", 1, 1, 0, 0, 5),
        BarrierEvent("expect", "warp 4", 512, 0, 512, 0, 7),
        BarrierEvent("bytes", "copy engine", 512, 1, 0, 1, 7),
        BarrierEvent("pass", "warps 0–3", 0, 1, 0, 1, 9),
    ]
    barriers = [BarrierHistory("<full>", 1, events, "stage 0 is full")]
    return Pipeline("block (0, 0, 0)", 3.25, True, rows, barriers, [tile(128, read_with=128)])
