"""What is advised, and that the predicted cost is what is counted after the change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.records.explanation import Access
from tilewright.simulator.counters.advice import Change, advice, changes, line_turns, with_swizzle

COLUMN = Access(
    1, "shared", "ld", 4, 32, 4096, wavefronts=1024, conflicts=992, least=32, lanes=list(range(0, 4096, 128))
)
STRIDED = Access(1, "global", "ld", 4, 10, 1280, sectors=320, least=40, lanes=list(range(0, 4096, 128)))


def test_what_is_advised() -> None:
    assert str(advice(COLUMN)) == "pad the row from 32 to 33 elements of 4 bytes: wavefronts 1,024 → 32"
    assert str(advice(STRIDED)) == "let lanes access neighbours, not every 128 bytes: sectors 320 → 40"
    # In a transpose by blocks of 16 × 16 threads, a warp writes two columns, of 16 elements each.
    columns = replace(STRIDED, lanes=[1280 * (lane % 16) + 4 * (lane // 16) for lane in range(32)], sectors=160)
    assert str(advice(columns)) == "let lanes access neighbours, not every 1,280 bytes: sectors 160 → 40"


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
        replace(STRIDED, sectors=200),
        replace(STRIDED, lanes=list(range(0, 128, 4)), sectors=40),
        replace(STRIDED, kind="atom"),
        replace(STRIDED, lanes=[0, *range(64, 4032, 128)]),
        replace(STRIDED, lanes=[1280 * (lane // 16) + 4 * (lane % 16) for lane in range(32)], sectors=40),  # two rows
    ],
)
def test_where_nothing_is_known_to_help(access: Access) -> None:
    assert advice(access) is None


def test_a_longer_row_keeps_the_alignment_of_wider_accesses() -> None:
    quads = Access(2, "shared", "st", 16, 8, 4096, wavefronts=32, least=32, lanes=list(range(0, 512, 16)))
    assert str(advice(COLUMN, others=[COLUMN, quads])).startswith("pad the row from 32 to 36 elements")


def test_rows_of_matrices_are_padded_by_bytes() -> None:
    rows = replace(COLUMN, kind="ldmatrix", nbytes=16, wavefronts=1024, conflicts=896, least=128)
    assert str(advice(rows)) == "pad the row from 128 to 144 bytes: wavefronts 1,024 → 128"


def test_a_swizzle_takes_no_memory() -> None:
    change = with_swizzle(COLUMN)
    assert change is not None
    assert (change.row_bytes, change.after.wavefronts) == (0, 32)
    assert with_swizzle(replace(COLUMN, lanes=list(range(0, 4224, 132)), wavefronts=32)) is None


def test_a_turn_of_the_pipe_for_each_line() -> None:
    """Of 32 lines, and of one with four sectors; the copy engine takes none."""
    near = replace(STRIDED, lanes=list(range(0, 128, 4)), sectors=40)
    assert (
        line_turns(STRIDED),
        line_turns(near),
        line_turns(replace(STRIDED, kind="tma load")),
        line_turns(COLUMN),
    ) == (320, 10, 0, 1024)


def test_what_saves_next_to_nothing_is_not_advised() -> None:
    much = replace(COLUMN, line=2, wavefronts=10**6, requests=10**6, conflicts=0, lanes=list(range(0, 128, 4)))
    assert [change.before for change in changes([COLUMN], {})] == [COLUMN]
    assert changes([COLUMN, much], {}) == []


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
    found = next(access for access in seen.accesses if (access.space, access.kind) == ("shared", "ld"))
    return replace(found, exact=True)


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
    assert str(advice(before)) == f"pad the row {words}wavefronts {before.wavefronts:,} → {after.wavefronts:,}"


# ---- each kind of advice, on a kernel that needs it and on one that does not -------------------------------------------

KERNELS = Path(__file__).parents[2] / "benchmarks" / "advised_changes.cu"


def seen_advice(kernel: str, changed: int, block: tuple[int, int] = (256, 1)) -> list[Change]:
    """The advice for a kernel of the benchmark, before the change or after it."""
    kind = {"double_columns": "float64", "bytes": "uint8", "bins": "uint8"}.get(kernel, "float32")
    x, y = np.ones(1 << 15, kind), np.zeros(1 << 13, "float64" if kind == "float64" else "float32")
    n = {"transpose": 64, "rows": 512}.get(kernel, 1 << 12)
    return tw.microscope(KERNELS, kernel, (2, 1), block, [x, y, n], defines={"CHANGED": changed}).advice


@pytest.mark.parametrize(
    ("kernel", "block", "words"),
    [
        ("transpose", (32, 32), "pad the row from 32 to 33 elements of 4 bytes"),
        ("columns", (32, 32), "pad the row from 32 to 33 elements of 4 bytes"),
        ("double_columns", (32, 32), "pad the row from 16 to 17 elements of 8 bytes"),
        ("rows", (256, 1), "let lanes access neighbours, not every 128 bytes"),
        ("members", (256, 1), "let lanes access neighbours, not every 16 bytes"),
        ("quads", (256, 1), "access 4 neighbouring elements of 4 bytes by one of 16 bytes"),
        ("bytes", (256, 1), "access 4 elements of 1 byte at once in each thread"),
        ("bins", (256, 1), "index the thread's array by constants, as in unrolled loops, so that it lies in registers"),
    ],
)
def test_advice_that_was_followed_is_not_repeated(kernel: str, block: tuple[int, int], words: str) -> None:
    assert words in [change.text for change in seen_advice(kernel, 0, block)]
    assert words not in [change.text for change in seen_advice(kernel, 1, block)]


def test_neighbours_of_one_thread_get_one_advice() -> None:
    (change,) = seen_advice("quads", 0)
    assert change.costs == ("sectors", 2 * 8 * 4 * 16 * 16, 2 * 8 * 16 * 16)
    assert change.after.requests * 4 == change.before.requests


def test_a_run_shows_its_advice_below_the_line() -> None:
    x = np.ones((64, 64), np.float32)
    seen = tw.microscope(KERNELS, "transpose", (2, 2), (32, 32), [x, x, 64], defines={"CHANGED": 0})
    lines = str(seen).splitlines()
    at = next(i for i, line in enumerate(lines) if "tile[i][j];" in line)
    assert "→ pad the row from 32 to 33 elements of 4 bytes: wavefronts 4,096" in lines[at + 1]
    assert "→ pad the row" in seen._repr_html_()
