"""Loops that ptxas unrolls again: which rounds one wide access serves, read from the loop's shape in PTX and binary.

An H200 counted 14 such kernels (``benchmarks/unrolled-counters-h200.jsonl``); PTX and disassembly of their binary are in
``data/counted``.
"""

from __future__ import annotations

import doctest
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.twelve_kernels import ARCH, DATA, Case, wrong
from support.unrolled_kernels import CASES, SOURCE, TEXT
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly import disassembly, program
from tilewright.simulator.assembly.disassembly import MachineInstruction
from tilewright.simulator.assembly.instructions import Module
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.ptxas import MachineAccesses, PtxAccess, match_accesses, ptx_accesses
from tilewright.simulator.counters import tally
from tilewright.simulator.counters.tally import Counters

LOADS = "smsp__inst_executed_op_shared_ld.sum"
RECORD = Path(__file__).parents[2] / "benchmarks" / "unrolled-counters-h200.jsonl"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"

#: A loop of rounds of 8 bytes; what stands in the place of START, STEP, TEST and BASE changes its shape.
LOOP = """.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .b32 %r<9>;
  .reg .pred %p<2>;
  .shared .align 16 .b8 tile[1024];
  mov.u32 %r1, tile;
  add.s32 %r2, %r1, 128;
  mov.u32 %r3, START;
  mov.u32 %r4, %r2;
$L1:
  BASE
  ld.shared.u32 %r5, [%r6+-128];
  ld.shared.u32 %r7, [%r6+-124];
  add.s32 %r4, %r4, 8;
  add.s32 %r3, %r3, STEP;
  setp.TEST;
  @%p1 bra $L1;
  ret;
}
"""
SHAPES = {"START": "256", "STEP": "512", "TEST": "ne.s32 %p1, %r3, 2304", "BASE": "mov.u32 %r6, %r4;"}


def loads(**shapes: str) -> list[PtxAccess]:
    text = LOOP
    for word, code in (SHAPES | shapes).items():
        text = text.replace(word, code)
    return ptx_accesses(program.link(parse_ptx(text), "k"))


def wide(*widths: str) -> list[MachineInstruction]:
    return [MachineInstruction(16 * i, f"LDS{width}", "R0, [R1]", "", "", 0, 0) for i, width in enumerate(widths)]


@pytest.mark.parametrize(
    ("shapes", "rounds", "start", "step"),
    [
        ({}, 4, 128, 8),
        ({"START": "0", "STEP": "1", "TEST": "lt.s32 %p1, %r3, 3"}, 3, 128, 8),
        ({"START": "0", "STEP": "1", "TEST": "le.u32 %p1, %r3, 3"}, 4, 128, 8),
        ({"START": "8", "STEP": "-2", "TEST": "gt.s32 %p1, %r3, 0"}, 4, 128, 8),
        ({"BASE": "add.s32 %r6, %r4, 64;"}, 4, 192, 8),
        ({"BASE": "add.s32 %r6, %r2, %r3;"}, 4, 384, 512),
    ],
)
def test_the_shape_of_a_loop(shapes: dict[str, str], rounds: int, start: int, step: int) -> None:
    for access in loads(**shapes):
        assert access.stride is not None
        assert (access.stride.rounds, access.stride.start, access.stride.step) == (rounds, start, step)


@pytest.mark.parametrize(
    "shapes",
    [
        {"TEST": "ne.s32 %p1, %r3, %r8"},  # a bound that is not constant
        {"START": "%r8"},
        {"BASE": "xor.b32 %r6, %r4, 4;"},
        {"BASE": "mov.u32 %r6, %r4; @%p1 add.s32 %r6, %r6, 4;"},
        {"TEST": "ne.s32 %p1, %r3, 2305"},  # never ends
    ],
)
def test_loops_of_another_shape(shapes: dict[str, str]) -> None:
    assert all(access.stride is None for access in loads(**shapes))


def test_rounds_that_one_wide_access_serves() -> None:
    """Four rounds of two words: two accesses of 16 bytes, each in the place of four words of two rounds."""
    first, second = loads()
    machine = match_accesses([first, second], wide(".128", ".128"))
    assert not machine.notes
    assert machine.rounds == {first.index: (16, 0), second.index: (0, 0)}, "the same in each half of the loop"
    assert match_accesses([first, second], wide(".64")).widths == {first.index: 8, second.index: 0}
    assert match_accesses([first, second], wide(".64", ".64", ".64", ".64")).rounds == {}
    (note,) = match_accesses([first, second], wide(".128", ".64")).notes
    assert note.endswith("the PTX has 2 of 4 bytes, the machine 1 of 8 bytes + 1 of 16 bytes, so it may make as few as 1/4 "
                         "of these requests")  # fmt: skip
    apart = loads(BASE="add.s32 %r6, %r2, %r3;")
    assert match_accesses(apart, wide(".128", ".128")).notes, "rounds that are 512 bytes apart are not neighbours"


def test_rounds_are_counted_by_thread() -> None:
    assert doctest.testmod(tally).failed == 0
    (access, _) = loads()
    watch = Counters(MachineAccesses(rounds={access.index: (16, 0)}))
    lane = np.arange(32)
    for number in range(4):
        half = lane[:16] if number % 2 else lane
        watch.on_access("shared", "ld", access, half * 0, half, 16 * half, 4)
        if number % 2:
            watch.on_access("shared", "ld", access, half * 0, half + 16, 16 * (half + 16), 4)
    assert watch.total()[LOADS] == 2, "whether a warp makes a round at once or in two halves"
    assert watch.total()[WAVEFRONTS] == 8


def counted(
    module: Module, binary: dict[str, list[MachineInstruction]] | None, case: Case
) -> tuple[Counters, list[str]]:
    """What the microscope counts of a launch, and its notes; without a binary the counts of the PTX."""
    launch, machine = case.launch, MachineAccesses()
    if binary is not None:
        machine = match_accesses(ptx_accesses(program.link(module, launch.entry)), binary[launch.entry])
    watch = Counters(machine)
    run = simulate(module, launch.entry, launch.grid, launch.block, launch.args, RunOptions(observer=watch))
    assert wrong(case, run.arrays) == []
    assert run.findings == []
    return watch, machine.notes


HEAD, *ROWS = map(json.loads, RECORD.read_text(encoding="utf-8").splitlines())


@functools.cache
def code() -> tuple[Module, dict[str, list[MachineInstruction]]]:
    at = DATA / "counted" / SOURCE
    return parse_ptx(at.with_suffix(".ptx").read_text()), disassembly.parse_sass(at.with_suffix(".sass").read_text())


@pytest.mark.parametrize(("case", "row"), list(zip(CASES, ROWS, strict=True)), ids=[case.name for case in CASES])
def test_counts_are_those_of_an_h200(case: Case, row: dict[str, Any]) -> None:
    watch, notes = counted(*code(), case)
    ours = watch.total()
    assert notes == []
    assert row["case"] == case.name
    assert {name: ours[name] for name in HEAD["counters"] if ours.get(name)} == row["counters"]


def test_the_ptx_alone_would_be_far_off() -> None:
    times = {case.name: counted(code()[0], None, case)[0].total()[LOADS] / row["counters"][LOADS]
             for case, row in zip(CASES[:2], ROWS[:2], strict=True)}  # fmt: skip
    assert times == {"column_8_8": 3, "column_16_8": 3}


@pytest.mark.slow
def test_a_thread_tile_along_one_axis_live() -> None:
    """Each thread has eight results of a column: the PTX has three times the loads of the machine, which are every word of
    the column once and, in accesses of 16 bytes, every word of the rows once."""
    if disassembly.find_tool() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    try:
        compiled = compile_source(TEXT, name=SOURCE, arch=ARCH)
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    module, binary = parse_ptx(compiled.ptx), disassembly.parse_sass(disassembly.disassemble(compiled.cubin))
    case = next(case for case in CASES if case.name == "column_8_8")
    watch, notes = counted(module, binary, case)
    warps, steps = 512 // 32, 16
    assert notes == []
    assert watch.total()[LOADS] == warps * steps * (1 + 8 // 4) == 768
    assert counted(module, None, case)[0].total()[LOADS] == warps * steps * (1 + 8) == 2304
