"""Counting: every measured pattern exactly, sectors of the textbook accesses, and laws that any rule must obey."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import global_patterns, shared_patterns
from tilewright.simulator.assembly.ptxas import MachineAccesses, PtxAccess
from tilewright.simulator.counters import hardware_names, sectors
from tilewright.simulator.counters import tally as counters
from tilewright.simulator.counters.sectors import IDLE, global_sectors
from tilewright.simulator.counters.tally import Counters, shared_wavefronts

DATA = Path(__file__).parents[1] / "data"
LANES = np.arange(32)


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


MEASURED = read("shared-memory-wavefronts-h200.jsonl")
SHARED, GLOBAL = read("shared-memory-patterns-h200.jsonl"), read("global-memory-patterns-h200.jsonl")


def shared(addresses: Any, nbytes: int, kind: str = "ld") -> tuple[int, int]:
    """Wavefronts and conflicts of one warp."""
    wavefronts, passes = shared_wavefronts(np.asarray(addresses, dtype=np.int64)[None, :], nbytes, kind)
    return int(wavefronts[0]), int(wavefronts[0] - passes[0])


def only(addresses: Any, active: Any) -> np.ndarray:
    return np.where(active, addresses, IDLE)


@pytest.mark.parametrize("module", [hardware_names, counters, sectors])
def test_doctests(module: Any) -> None:
    done = doctest.testmod(module)
    assert done.attempted
    assert not done.failed


# ---- what an H200 counted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["ld4", "ld8", "ld16", "st4", "st8", "st16"])
def test_loads_and_stores_of_whole_warps(access: str) -> None:
    """360 patterns: wavefronts and conflicts, alone and all warps at once."""
    assert len(MEASURED) == 360
    rows = [row for row in MEASURED if row["access"] == access]
    table = 4 * np.array([row["word_offsets"] for row in rows])
    nbytes, kind = int(access[2:]), access[:2]
    wavefronts, passes = shared_wavefronts(table, nbytes, kind)
    assert wavefronts.tolist() == [row["wavefronts"] for row in rows]
    assert (wavefronts - passes).tolist() == [row["bank_conflicts"] for row in rows]
    for row, addresses in zip(rows, table, strict=True):
        assert shared(addresses, nbytes, kind) == (row["wavefronts"], row["bank_conflicts"]), row["pattern"]


#: Kernel of ``data/patterns.cu`` → the PTX of its access, as parts.
PTX = {
    **{f"{op}{n}": f"{op}.shared" for op in ("ld", "st") for n in (1, 2, 4, 8, 16)},
    "add4": "atom.shared.add.u32", "max4": "atom.shared.max.u32", "one4": "red.shared.add.u32",
    "cas4": "atom.shared.cas.b32", "cas8": "atom.shared.cas.b64", "exch8": "atom.shared.exch.b64",
    **{f"copy{n}": "cp.async.ca.shared.global" for n in (4, 8, 16)}, "bypass16": "cp.async.cg.shared.global",
    **{name: {"l": "ldmatrix", "s": "stmatrix"}[name[0]] for name in shared_patterns.MATRICES},
}  # fmt: skip
#: (access, pattern) → predicted, counted in each of 12 launches.
ODD = {("copy8", "random 0"): ((7, 5), (8, 6))}


def as_the_engine_says(row: dict[str, Any], watch: Counters) -> None:
    """Report the access of a one-warp pattern."""
    name, ptx = row["access"], PTX[row["access"]]
    kind = "cp.async" if ptx.startswith("cp") else ptx.split(".")[0]
    ins = SimpleNamespace(index=0, file="k.cu", line=1, parts=ptx.split("."))
    nbytes = 16 if kind.endswith("matrix") else shared_patterns.ACCESSES[name]
    offsets = np.array(row["byte_offsets"])
    active = 8 * int(name[4]) > LANES if kind.endswith("matrix") else offsets >= 0
    lanes = LANES[active]
    if kind == "cp.async":
        watch.on_access("global", kind, ins, 0 * lanes, lanes, 16 * lanes, nbytes)
    watch.on_access("shared", kind, ins, 0 * lanes, lanes, offsets[active], nbytes)


@pytest.mark.parametrize("access", PTX)
def test_every_access_to_shared_memory(access: str) -> None:
    """1017 patterns; those of ``one4`` as the machine does them, counting lanes in the bank."""
    assert [(r["access"], r["pattern"], r["byte_offsets"]) for r in SHARED] == [
        (access, name, offsets.tolist()) for access, name, offsets in shared_patterns.patterns()
    ]
    different = {}
    for row in SHARED:
        if row["access"] != access:
            continue
        watch = Counters(MachineAccesses(opcodes={0: "ATOMS.POPC.INC.32"}) if access == "one4" else None)
        as_the_engine_says(row, watch)
        tally = next(tally for tally in watch.tallies().values() if tally.space == "shared")
        found = (tally.wavefronts, tally.conflicts)
        counted = (row["wavefronts"], row["bank_conflicts"])
        if found != counted:
            different[access, row["pattern"]] = (found, counted)
    assert different == {key: pair for key, pair in ODD.items() if key[0] == access}


@pytest.mark.parametrize("access", [*global_patterns.ATOMICS, global_patterns.COPY])
def test_atomics_in_global_memory_and_copies_past_l1(access: str) -> None:
    """175 patterns: sectors."""
    assert [(r["access"], r["pattern"], r["byte_offsets"]) for r in GLOBAL] == [
        (access, name, offsets.tolist()) for access, name, offsets, _ in global_patterns.patterns()
    ]
    for row in GLOBAL:
        if row["access"] != access:
            continue
        copy = access == global_patterns.COPY
        ptx = "cp.async.cg.shared.global" if copy else f"{access[:4].rstrip('4f8')}.global"
        ins = SimpleNamespace(index=0, file="k.cu", line=1, parts=ptx.split("."))
        watch, offsets = Counters(), np.array(row["byte_offsets"])
        lanes = LANES[offsets >= 0]
        if copy:
            watch.on_access("global", "cp.async", ins, 0 * lanes, lanes, np.array(row["byte_sources"]), 16)
            watch.on_access("shared", "cp.async", ins, 0 * lanes, lanes, offsets, 16)
        else:
            nbytes = global_patterns.ATOMICS[access]
            watch.on_access("global", ins.parts[0], ins, 0 * lanes, lanes, offsets[lanes], nbytes)
        op = "ldgsts" if copy else ins.parts[0]
        names = (name for name in watch.total() if f"sectors_pipe_lsu_mem_global_op_{op}" in name)
        assert watch.total()[next(names)] == row["sectors"], row["pattern"]


def test_a_rule_that_is_wrong_is_found() -> None:
    """The rule before these patterns were measured, each half merging on its own, fails three of them; S0.3's sectors
    alone fail atomics."""
    rows = [row for row in SHARED if row["access"] == "ld16"]
    halves = [sum(shared(only(row["byte_offsets"], (LANES < 16) == first), 16)[0] for first in (True, False))
              for row in rows if min(row["byte_offsets"]) >= 0]  # fmt: skip
    counted = [row["wavefronts"] for row in rows if min(row["byte_offsets"]) >= 0]
    assert sum(a != b for a, b in zip(halves, counted, strict=True)) == 3
    plain = [row["sectors"] != int(global_sectors(np.array([row["byte_offsets"]]), 4)[0]) for row in GLOBAL
             if row["access"] == "atom4" and min(row["byte_offsets"]) >= 0]  # fmt: skip
    assert sum(plain) > 5


# ---- sums ------------------------------------------------------------------------------------------------------------


def instruction(index: int, line: int) -> Any:
    return SimpleNamespace(index=index, file="k.cu", line=line)


def test_counters_in_total_and_by_instruction() -> None:
    watch = Counters()
    warps, lanes = np.repeat([3, 8], 32), np.tile(LANES, 2)
    watch.on_access("global", "ld", instruction(5, 10), warps, lanes, 4 * lanes, 4)
    watch.on_access("global", "ld", instruction(5, 10), warps, lanes, 0 * lanes, 4)
    watch.on_access("global", "ld", instruction(6, 11), warps[:32], LANES, 128 * LANES, 4)
    watch.on_access("shared", "st", instruction(7, 11), warps, lanes, 128 * lanes, 4)
    watch.on_access("param", "ld", instruction(8, 12), warps, lanes, 0 * lanes, 4)
    sectors, requests = (f"l1tex__t_{x}_pipe_lsu_mem_global_op_ld.sum" for x in ("sectors", "requests"))
    assert (watch.total()[sectors], watch.total()[requests]) == (2 * 4 + 2 * 1 + 32, 5)
    lines = {(tally.line, tally.space): (tally.sectors, tally.conflicts) for tally in watch.tallies().values()}
    assert lines == {(10, "global"): (10, 0), (11, "global"): (32, 0), (11, "shared"): (0, 62)}
    assert watch.total()["l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"] == 62
    assert hardware_names.LABELS[sectors] == "global loads, sectors: 32 bytes moved each"
    assert set(watch.total()) <= set(hardware_names.LABELS)


def test_widths_learnt_from_the_binary() -> None:
    """Four neighbouring loads that the machine issues as one of 16 bytes: the first counts, the others do not."""
    watch = Counters(MachineAccesses(widths={0: 16, 1: 0, 2: 0, 3: 0}))
    for i in range(4):
        watch.on_access("shared", "ld", instruction(i, 1), 0 * LANES, LANES, 0 * LANES + 4 * i, 4)
    total = watch.total()
    assert total["smsp__inst_executed_op_shared_ld.sum"] == 1
    assert total["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 2
    assert sum(tally.bytes for tally in watch.tallies().values()) == 512


def test_guarded_access_is_issued_with_its_block() -> None:
    """Store 1 runs for one warp of two and store 2 for none; both are issued as often as store 0."""
    issues = {PtxAccess(i, "k.cu", 9, "shared", "st", (), 0, 16): 0 for i in (1, 2)}
    watch = Counters(MachineAccesses(issues=issues))
    warps, lanes = np.repeat([0, 1], 32), np.tile(LANES, 2)
    watch.on_access("shared", "st", instruction(0, 9), warps, lanes, 16 * lanes, 16)
    watch.on_access("shared", "st", instruction(1, 9), warps[:32], LANES, 16 * LANES, 16)
    total = watch.total()
    assert total["smsp__inst_executed_op_shared_st.sum"] == 6
    assert total["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == 12


def test_atomics_as_the_machine_does_them() -> None:
    """Of three by the same PTX: a reduction, one that a lane does for its warp, one that tries again."""
    watch = Counters(MachineAccesses(opcodes={0: "REDG.E.ADD", 1: "ATOMG.E.ADD", 2: "ATOMS.CAS"}, elected={1}))
    for index, space in enumerate(["global", "global", "shared"]):
        watch.on_access(space, "atom", instruction(index, 1), 0 * LANES, LANES, 0 * LANES, 4)
    moved = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
    total = watch.total()
    assert (total[moved.format("red")], total[moved.format("atom")]) == (32, 1)
    assert total["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum"] == 64
    assert total["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_atom.sum"] == 31


def test_copies_that_not_every_lane_makes() -> None:
    """The halves of a copy may differ in their warps and lanes: who copies no byte writes zeros."""
    ins = SimpleNamespace(index=0, file="k.cu", line=1, parts=["cp", "async", "ca"])
    watch = Counters()
    watch.on_access("global", "cp.async", ins, 0 * LANES + 1, LANES, 4 * LANES, 4)
    watch.on_access("shared", "cp.async", ins, np.repeat([0, 1, 2], 32), np.tile(LANES, 3), np.tile(4 * LANES, 3), 4)
    far, near = (watch.tallies()[0, space, "cp.async"] for space in ("global", "shared"))
    assert (far.requests, far.sectors) == (1, 4)
    assert (near.requests, near.wavefronts, near.conflicts) == (3, 3, 0)


@pytest.mark.parametrize("space", ["global", "shared"])
def test_regular_accesses_of_many_warps_are_counted_once(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 warps with the same pattern cost what one costs: the pattern is counted for one warp, and no warp in Python."""
    module, name = {"global": (sectors, "count_distinct"), "shared": (counters, "_pass_cost")}[space]
    counting, rows = getattr(module, name), []

    def spied(table: np.ndarray, *more: Any, **how: Any) -> np.ndarray:
        rows.append(len(table))
        return counting(table, *more, **how)

    def calls(warps: int) -> int:
        threads, watch, seen = np.arange(32 * warps), Counters(), []
        sys.setprofile(lambda frame, event, argument: seen.append(event))
        try:
            watch.on_access(space, "ld", instruction(0, 1), threads // 32, threads % 32, 4 * threads, 4)
        finally:
            sys.setprofile(None)
        (tally,) = watch.tallies().values()
        assert tally.requests == warps
        return len(seen)

    monkeypatch.setattr(module, name, spied)
    assert 0 < calls(2048) <= 2 * calls(1)
    assert rows == [1, 1]


@pytest.mark.parametrize("how", ["ca", "cg"])
def test_a_copy_that_fills_with_zeros_forgets_its_last_sources(how: str) -> None:
    """Every lane of source size 0: no global half, and no sources of the execution before."""
    ins = SimpleNamespace(index=3, file="k.cu", line=7, parts=["cp", "async", how, "shared", "global"])
    zeros = np.zeros(32, np.int64)

    def counted(sources: bool) -> dict[str, int]:
        counting = Counters()
        if sources:
            counting.on_access("global", "cp.async", ins, zeros, LANES, 16 * (LANES ^ 5) + 4096, 16)
            counting.on_access("shared", "cp.async", ins, zeros, LANES, 128 * LANES, 16)
        before = counting.total()
        counting.on_access("shared", "cp.async", ins, zeros, LANES, 128 * LANES, 16)
        return {name: n - before.get(name, 0) for name, n in counting.total().items() if n != before.get(name, 0)}

    assert counted(True) == counted(False)
