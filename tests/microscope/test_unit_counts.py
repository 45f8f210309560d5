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
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.records.unit_counters import UNIT_LABELS
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.ptxas import MachineAccesses
from tilewright.simulator.counters.tally import Counters
from tilewright.simulator.counters.work import filled_sectors, touched_sectors, wgmma_work
from tilewright.simulator.ops.tensor_core import PACKED

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_gmma.sum"
CYCLES, INSTRUCTIONS = "sm__pipe_tensor_cycles_active.sum", "sm__inst_executed_pipe_tensor.sum"


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


@functools.cache
def forms_of_mma() -> tuple[int, list[dict[str, Any]]]:
    """How often each instruction was repeated, and what was counted of each form of mma.sync."""
    head, *rows = map(json.loads, (BENCHMARKS / "mma-h200.jsonl").read_text(encoding="utf-8").splitlines())
    return head["environment"]["repeats"], rows


FORMS = list(dict.fromkeys(row["form"] for row in forms_of_mma()[1]))
#: Constraint and C++ type of a register, by the type in it.
REGISTERS = {"f32": ("f", "float"), "f64": ("d", "double")}


def mma_kernel(name: str, form: str) -> str:
    """A kernel of one mma.sync."""
    shape, _, _, total, kind = form.split(".")[:5]
    m, k = (int(n) for n in shape[1:].split("n8k"))
    each = m * 8 // 32 // (2 if total == "f16" else 1), m * k // 32 // PACKED[kind], 8 * k // 32 // PACKED[kind]
    names = [", ".join(f"%{i}" for i in range(sum(each[:j]), sum(each[: j + 1]))) for j in range(3)]
    (letter, typed), operand = REGISTERS.get(total, ("r", "int")), "d" if kind == "f64" else "r"
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(each[0]))
    inputs = ", ".join(f'"{operand}"({"1." if operand == "d" else "1"})' for _ in range(each[1] + each[2]))
    line = f"mma.sync.aligned.{form} {{{names[0]}}}, {{{names[1]}}}, {{{names[2]}}}, {{{names[0]}}};"
    return f"""extern "C" __global__ void {name}(double* y) {{
        {typed} d[{each[0]}] = {{}}, sum = 0;
        asm volatile("{line}" : {outputs} : {inputs});
        for (int i = 0; i < {each[0]}; i++) sum += d[i];
        y[threadIdx.x] = sum;
    }}"""


def test_instructions_and_cycles_of_mma_are_those_of_the_gpu() -> None:
    repeats, rows = forms_of_mma()
    names = {form: f"k{i}" for i, form in enumerate(FORMS)}
    source = "\n".join(mma_kernel(name, form) for form, name in names.items())
    try:
        module = parse_ptx(compile_source(source, arch=ARCH).ptx)
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    for row in rows:
        watch = Counters()
        run = simulate(module, names[row["form"]], 1, 32, [np.zeros(32)], RunOptions(observer=watch))
        assert run.findings == []
        for name in (INSTRUCTIONS, CYCLES):
            assert repeats * watch.total()[name] == row["counters"][name], (row["form"], row["chains"], name)


def test_registers_that_tensor_cores_set_are_not_counted() -> None:
    """And the two counters are marked for that, also where a kernel has no product: an H200 counts the moves alone."""
    assert Counters(MachineAccesses()).approximate() == set()
    assert Counters(MachineAccesses(moves=[7])).approximate() == {INSTRUCTIONS, CYCLES}


def test_every_form_of_mma_was_counted() -> None:
    assert len(FORMS) == 38
    assert len(forms_of_mma()[1]) == 2 * len(FORMS)


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


#: How the copies of a small launch arrive, by hand: rounds and phases of a block, bytes of its first round and of a later.
ROUNDS = {
    "bulk copy": (1, 1, (8192 + 8192 + 3616) / 3, 8192),
    "ring": (2, 6, 4 * 4096, 4096 + 1536),  # 43 rows: five stages of 8 rows, one of 3; the consumers hold no stage
    "product bf16": (2, 5, 4 * 32768, 32768),  # five steps in four stages
    "store epilogue": (2, 5, 3 * 24576, 2 * 24576),
    "stmatrix": (0, 0, 0, 0),  # plain loads
}


@functools.cache
def recorded() -> dict[tuple[str, str], dict[str, Any]]:
    """What was counted of each asynchronous kernel, by its name and size."""
    _, *rows = map(json.loads, (BENCHMARKS / "asynchronous-h200.jsonl").read_text(encoding="utf-8").splitlines())
    return {(row["kernel"], row["size"]): row["counters"] for row in rows if "counters" in row}


@pytest.mark.slow_cases(
    "ring",
    "split k",
    "multicast",
    "product s8",
    "persistent",
    "product bf16",
    "product tf32",
    "product e4m3",
    "store epilogue",
    "swizzled copy 0",
    "swizzled copy 64",
    "swizzled copy 128",
)
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
    rounds = seen.run.rounds
    found = rounds.rounds, rounds.phases, rounds.first, rounds.under_way
    assert found == pytest.approx(ROUNDS.get(name, found))
    inside = sum(access.bytes for access in seen.accesses if access.kind == "tma load")
    assert inside <= rounds.blocks * rounds.bytes <= rounds.blocks * rounds.most  # of boxes, the filled part too
    # Instructions of the PTX stand for those of the binary; warps also execute waits in vain, most of all in "bulk copy".
    assert 0.68 < seen.run.warp_instructions / counted["smsp__inst_executed.sum"] < 1.1
    missed = {key for key, value in counted.items() if key in UNIT_LABELS and value and key not in ours}
    # It has HFMA2.MMA, by which the tensor core sets a register: one instruction and two cycles each.
    assert missed == ({CYCLES, INSTRUCTIONS} if name == "ring" else set())
