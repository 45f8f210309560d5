"""Predicted = counted: every counter of every kernel of ``twelve.cu`` and ``five.cu``, in total and by source line.

The record is what an H200 counted (``record_counters.py``); the prediction is the microscope's, of the very binaries that
were counted: their PTX, run on the CPU, and their disassembly are in ``data/counted``. What differs is in ``DIFFERENCES``,
with both values and the reason; nothing else may.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.twelve_kernels import CASES, DATA, Case, wrong
from tilewright.records.unit_counters import UNIT_LABELS
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly import disassembly, program
from tilewright.simulator.assembly.instructions import Module
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.ptxas import match_accesses, ptx_accesses
from tilewright.simulator.counters.hardware_names import LABELS
from tilewright.simulator.counters.tally import Counters

RECORD = Path(__file__).parents[2] / "benchmarks" / "microscope-counters-h200.jsonl"
ROWS = [json.loads(line) for line in RECORD.read_text().splitlines()]
COUNTED = {row["case"]: row for row in ROWS[1:]}
#: What was counted: the counters that every GPU has.
COUNTERS = [name for name in LABELS if name not in UNIT_LABELS]
FIVE = json.loads((DATA / "five-kernels-h200.json").read_text())["kernels"]

#: (case, counter) → predicted, counted, why.
DIFFERENCES: dict[tuple[str, str], tuple[int, int, str]] = {
    ("async_copies", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum"): (
        164, 193, "varies with how the data comes in: 164, 164, 193, 246, 248 in five launches; the sum over all kinds "
        "of access, read in another pass of this very launch, is 164",
    ),
}  # fmt: skip

_MODEL = "ncu's column is no counter but a model, and the hardware's own counters are those predicted: "
_HALVES = _MODEL + "each half of a 16-byte load merges on its own there"
_PAST_L1 = _MODEL + "copies past L1 take no wavefront"
#: (case, source line, what) → predicted, counted, why.
LINE_DIFFERENCES: dict[tuple[str, int, str], tuple[int, int, str]] = {
    ("global_atomics", 45, "sectors"): (64, 4, _MODEL + "lanes on one address take turns, each with its sector"),
    ("loads_128", 105, "wavefronts"): (16, 12, _HALVES),
    ("loads_128", 106, "wavefronts"): (16, 12, _HALVES),
    ("async_copies", 198, "wavefronts"): (0, 16, _PAST_L1),
    ("async_copies", 199, "wavefronts"): (0, 32, _PAST_L1),
    ("async_copies", 200, "wavefronts"): (0, 128, _PAST_L1),
    ("async_copies", 202, "wavefronts"): (0, 8, _PAST_L1),
}


@functools.cache
def code(source: str) -> tuple[Module, dict[str, list[disassembly.MachineInstruction]]]:
    at = DATA / "counted" / source
    return parse_ptx(at.with_suffix(".ptx").read_text()), disassembly.parse_sass(at.with_suffix(".sass").read_text())


@functools.cache
def predicted(name: str, *, by_ptx_alone: bool = False) -> Counters:
    case = next(case for case in CASES if case.name == name)
    module, binary = code(case.source)
    launch = case.launch
    machine = match_accesses(ptx_accesses(program.link(module, launch.entry)), binary[launch.entry])
    assert machine.notes == []
    watch = Counters(None if by_ptx_alone else machine)
    run = simulate(
        module,
        launch.entry,
        launch.grid,
        launch.block,
        launch.args,
        RunOptions(shared_bytes=launch.shared_bytes, observer=watch),
    )
    assert wrong(case, run.arrays) == []
    assert run.findings == []
    return watch


@pytest.mark.slow_cases("tile2d")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_right_without_findings(case: Case) -> None:
    assert predicted(case.name).total()


def test_what_was_counted_is_what_is_here() -> None:
    assert list(COUNTED) == [case.name for case in CASES]
    assert set(COUNTERS) == set(ROWS[0]["counters"])
    assert (ROWS[0]["kind"], ROWS[0]["environment"]["gpu"]) == ("hardware counters", "NVIDIA H200")
    assert {case for case, *_ in [*DIFFERENCES, *LINE_DIFFERENCES]} <= set(COUNTED)
    for case in CASES:
        known = {i.offset: (i.opcode, i.line) for i in code(case.source)[1][case.launch.entry] if i.memory}
        counted = COUNTED[case.name]["instructions"]
        assert {i["offset"] for i in counted} == set(known), case.name
        assert all(known[i["offset"]][0] in i["text"] and known[i["offset"]][1] == i["line"] for i in counted), (
            case.name
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_counter(case: Case) -> None:
    ours, theirs = predicted(case.name).total(), COUNTED[case.name]["counters"]
    found = {n: (ours.get(n, 0), theirs.get(n, 0)) for n in COUNTERS if ours.get(n, 0) != theirs.get(n, 0)}
    known = {name: (mine, its) for (who, name), (mine, its, _) in DIFFERENCES.items() if who == case.name}
    assert found == known


@pytest.mark.slow
def test_what_the_ptx_alone_would_say() -> None:
    """Where ptxas fuses, guards, pads, elects a lane or drops a result, the PTX as it stands is off, and nowhere else."""
    off = set()
    for case in CASES:
        by_ptx, by_binary = (predicted(case.name, by_ptx_alone=alone).total() for alone in (True, False))
        off |= {case.name} if by_ptx != by_binary else set()
    assert off == {
        *("broadcast", "mma_padded", "tiled", "tile2d", "vec"),  # fused, or guarded
        *("global_atomics", "shared_atomics", "async_copies"),
    }


def by_line(watch: Counters) -> dict[tuple[int, str], int]:
    """(source line, what) → count, where it is not 0."""
    sums: Counter[tuple[int, str]] = Counter()
    for tally in watch.tallies().values():
        for what, value in (("sectors", tally.sectors * (tally.space == "global")), ("wavefronts", tally.wavefronts)):
            sums[tally.line, what] += value
    return dict(+sums)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_line(case: Case) -> None:
    sums: Counter[tuple[int, str]] = Counter()
    for ins in COUNTED[case.name]["instructions"]:
        for what in ("sectors", "wavefronts"):
            sums[ins["line"], what] += ins.get(what, 0)
    ours, theirs = by_line(predicted(case.name)), dict(+sums)
    found = {key: (ours.get(key, 0), theirs.get(key, 0)) for key in sorted({*ours, *theirs})}
    different = {key: pair for key, pair in found.items() if pair[0] != pair[1]}
    known = {(line, what): (a, b) for (who, line, what), (a, b, _) in LINE_DIFFERENCES.items() if who == case.name}
    assert different == known


def figures(total: dict[str, int]) -> dict[str, Any]:
    """As ``five-kernels-h200.json`` has them."""
    moved = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
    found: dict[str, Any] = {
        "global": {
            "load_requests": total[moved.format("requests", "ld")],
            "load_sectors": total[moved.format("sectors", "ld")],
            "store_sectors": total[moved.format("sectors", "st")],
        }
    }
    for kind in ("ld", "st"):
        if f"smsp__inst_executed_op_shared_{kind}.sum" in total:
            found[f"shared_{kind}"] = {
                "instructions": total[f"smsp__inst_executed_op_shared_{kind}.sum"],
                "wavefronts": total[f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{kind}.sum"],
                "conflicts": total.get(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum", 0),
            }
    return found


@pytest.mark.parametrize("name", FIVE)
def test_five_kernels_end_to_end(name: str) -> None:
    """Every figure that an H200 counted for another compiler's binary of the same source."""
    assert figures(predicted(name).total()) == FIVE[name]
