"""Code in a library's headers: its accesses count at the user's line, and a fence that it lacks is marked as its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tilewright as tw
from support.async_sources import PRELUDE
from support.explanations import NAIVE, explanation
from tilewright.lab.terminal import show_explanations
from tilewright.lab.terminal.explanation import TURNS
from tilewright.records.explanation import Access, Defect
from tilewright.records.source_rows import source_rows
from tilewright.simulator import listing
from tilewright.simulator.findings import BY_THE_LETTER, IN_LIBRARY, SURE
from tilewright.simulator.microscope import Observation

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: A library that initialises a barrier and copies without the fence that must come between.
HEADER = f"""#pragma once
{PRELUDE}
DEV void prepare(u64* barrier) {{ INIT(barrier, 1); }}
DEV void fetch(float* to, const float* from, u64* barrier) {{
    ARRIVE_EXPECT(barrier, 128);
    LOAD(to, from, 128, barrier);
}}
DEV void copy(float* to, const float* from) {{
    *to = *from;
}}
"""
COPY_LINE = HEADER[: HEADER.index("*to = *from")].count("\n") + 1
MAIN = """#include <cute/arch/copy.hpp>
extern "C" __global__ void k(const float* x, float* y)
{
    __shared__ alignas(128) float tile[32];
    __shared__ u64 barrier;
    if (threadIdx.x == 0) {
        PREPARE(&barrier);
        fetch(tile, x, &barrier);
    }
    __syncthreads();
    WAIT(&barrier, 0);
    copy(&y[threadIdx.x], &tile[threadIdx.x]);
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    header = tmp_path / "third_party" / "include" / "cute" / "arch" / "copy.hpp"
    header.parent.mkdir(parents=True)
    header.write_text(HEADER)
    return tmp_path / "third_party" / "include"


def observed(folder: Path, prepare: str) -> Observation:
    args: list[Any] = [np.arange(32, dtype=np.float32), np.zeros(32, np.float32)]
    source = MAIN.replace("PREPARE(&barrier)", prepare)
    return tw.microscope(source, "k", 1, 32, args, include=[folder], arch="sm_90a")


def test_a_fence_that_a_library_lacks_is_not_the_authors_fault(folder: Path, without_disassembly: None) -> None:
    (finding,) = observed(folder, "prepare(&barrier)").findings
    assert (finding.kind, finding.line, finding.grade) == ("missing fence", 8, IN_LIBRARY)
    (own,) = observed(folder, "INIT(&barrier, 1)").findings
    assert (own.kind, own.line, own.grade) == ("missing fence", 8, SURE), "the author's own initialisation"


def test_accesses_of_a_library_count_at_the_line_that_calls_it(folder: Path, without_disassembly: None) -> None:
    seen = observed(folder, "prepare(&barrier)")
    places = {(access.file, access.line, access.space, access.kind): access.inside for access in seen.accesses}
    assert places["", 12, "shared", "ld"] == places["", 12, "global", "st"] == f"cute/arch/copy.hpp:{COPY_LINE}"
    assert all(file == "" for file, *_ in places)
    lines = str(seen).splitlines()
    at = next(i for i, line in enumerate(lines) if "copy(&y[threadIdx.x]" in line)
    assert lines[at + 1].strip() == f"(called from here: cute/arch/copy.hpp:{COPY_LINE})"
    assert f"(called from here: cute/arch/copy.hpp:{COPY_LINE})" in seen._repr_html_()
    assert lines[0] == "k: 1 finding (1 in a library's code); the block was run"


def test_a_line_without_a_library_has_no_such_note() -> None:
    (row,) = source_rows("x", [Access(1, "global", "ld", 4, 1, 128, sectors=4, least=4)], [])
    assert [line.source for line in listing.lines([row])] == ["", "x"]


def test_the_first_lines_of_explain_count_the_findings(capsys: Any) -> None:
    naive = explanation("cuda/naive", NAIVE, 64)
    naive = replace(
        naive, formulas=[], occupancy=naive.occupancy | {"shared": 0}, verified=naive.verified | {"of": "all"}
    )
    defects = [Defect("race", 3, (0, 0, 0), (0, 0, 0), "text", grade=grade) for grade in (SURE, BY_THE_LETTER)]
    for found, words in ((defects, "2 findings (1 sure, 1 by the letter of PTX)."), ([], "No defect found.")):
        show_explanations(Console(width=200), [replace(naive, defects=found)])
        shown = capsys.readouterr().out
        assert words in shown.splitlines()[:3]
        assert TURNS in shown
        assert ("race (by the letter of PTX), block (0, 0, 0)" in shown) == bool(found)
