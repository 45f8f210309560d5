"""What is advised, and that the predicted cost is what is counted after the change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.records.explanation import Access
from tilewright.simulator.counters.advice import advice

COLUMN = Access(
    1, "shared", "ld", 4, 32, 4096, wavefronts=1024, conflicts=992, least=32, lanes=list(range(0, 4096, 128))
)
STRIDED = Access(1, "global", "ld", 4, 10, 1280, sectors=320, least=40, lanes=list(range(0, 4096, 128)))


def test_what_is_advised() -> None:
    assert advice(COLUMN) == "pad the row from 32 to 33 elements of 4 bytes: wavefronts 1,024 → 32"
    assert advice(STRIDED) == "lanes are 128 bytes apart; at 4: sectors 320 → 40"


@pytest.mark.parametrize(
    "access",
    [
        replace(COLUMN, wavefronts=1000),  # not all requests are like the example
        replace(COLUMN, conflicts=0),
        replace(COLUMN, kind="atom"),
        replace(COLUMN, lanes=[]),
        replace(COLUMN, lanes=[None, *COLUMN.lanes[1:]]),
        replace(COLUMN, wavefronts=64, conflicts=32, lanes=list(range(0, 256, 8))),  # members of a structure
        replace(COLUMN, wavefronts=32, conflicts=1, lanes=list(range(0, 4224, 132))),  # padded already
        replace(STRIDED, sectors=300),
        replace(STRIDED, lanes=list(range(0, 128, 4)), sectors=40),
        replace(STRIDED, space="local"),
        replace(STRIDED, lanes=[0, *range(64, 4032, 128)]),
    ],
)
def test_where_nothing_is_known_to_help(access: Access) -> None:
    assert advice(access) == ""


# ---- against a run of the changed layout -----------------------------------------------------------------------------

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

SOURCE = """
extern "C" __global__ void column(const KIND* in, KIND* out)
{
    __shared__ KIND tile[32][PITCH];
    int x = threadIdx.x % WIDTH, y = threadIdx.x / WIDTH;
    for (int r = threadIdx.x; r < 32 * COLUMNS; r += 32) tile[r / COLUMNS][r % COLUMNS] = in[r];
    __syncthreads();
    out[threadIdx.x] = tile[ROW][COLUMN];
}
"""


def reads(kind: str, columns: int, pitch: int, width: int, row: str, column: str) -> Access:
    """The reads of the tile, at this pitch."""
    defines = {"KIND": kind, "COLUMNS": columns, "PITCH": pitch, "WIDTH": width, "ROW": row, "COLUMN": column}
    size = {"float": 4, "double": 8, "float4": 16}[kind]
    args: list[Any] = [np.zeros(32 * columns * size, np.uint8), np.zeros(32 * size, np.uint8)]
    seen = tw.microscope(SOURCE, "column", 1, 32, args, defines=defines)
    return next(access for access in seen.accesses if (access.space, access.kind) == ("shared", "ld"))


@pytest.mark.parametrize(
    ("kind", "columns", "width", "row", "column", "more"),
    [
        ("float", 32, 32, "x", "y", 1),
        ("float", 32, 32, "x", "5", 1),
        ("float", 16, 16, "x", "y", 2),  # two rows of threads: with one element two wavefronts are left
        ("float", 32, 8, "y", "x", 8),  # narrow warps
        ("double", 16, 32, "x", "3", 1),
        ("float4", 8, 32, "x", "3", 1),
    ],
)
def test_the_predicted_cost_is_counted(
    kind: str, columns: int, width: int, row: str, column: str, more: int, without_disassembly: None
) -> None:
    before, after = (reads(kind, columns, pitch, width, row, column) for pitch in (columns, columns + more))
    assert before.wavefronts > after.wavefronts
    words = f"from {columns} to {columns + more} elements of {before.nbytes} bytes: "
    assert advice(before) == f"pad the row {words}wavefronts {before.wavefronts:,} → {after.wavefronts:,}"
