"""Asynchronous kernels run right and silent in the microscope; each planted defect is found, with its line."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.asynchronous_defects import (
    DEFECTS,
    REGISTERS,
    SERIALISED,
    UNLAUNCHABLE,
    AsynchronousDefect,
)
from support.asynchronous_kernels import (
    ARCH,
    FOLDER,
    KERNELS,
    RANDOM,
    SMALL,
    WHOLE,
    AsynchronousKernel,
    Launch,
    TileMap,
    differences,
)
from tilewright.errors import UnavailableError, UsageError
from tilewright.gpu.runtime.nvrtc import Compiled, compile_source
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.findings import Finding

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")

#: What an H200 made of the RANDOM operands of the small size (``benchmarks/record_asynchronous.py``).
RECORDED = Path(__file__).parents[1] / "data" / "asynchronous-h200.npz"
RECORD = Path(__file__).parents[2] / "benchmarks" / "asynchronous-h200.jsonl"


def compiled(kernel: AsynchronousKernel, text: str) -> Compiled:
    try:
        return compile_source(text, name=str(kernel.path), arch=ARCH, defines=kernel.defines)
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")


def simulated(kernel: AsynchronousKernel, launch: Launch, text: str, shared_bytes: int | None = None) -> Run:
    args = [tensor_map(arg) if isinstance(arg, TileMap) else arg for arg in launch.args]
    options = RunOptions(
        shared_bytes=kernel.shared_bytes if shared_bytes is None else shared_bytes, outputs=list(launch.right)
    )
    return simulate(compiled(kernel, text).ptx, kernel.entry, launch.grid, kernel.block, args, options)


def tensor_map(tile: TileMap) -> tw.TensorMap:
    rows, cols = tile.array.shape
    steps = (cols * tile.array.itemsize, tile.array.itemsize)
    return tw.TensorMap(tile.array, tile.box, shape=(rows, tile.cols or cols), strides=steps, swizzle=tile.swizzle)


def places(finding: Finding, source: str) -> set[int]:
    """Lines of the kernel's own file: where it is, or, if that is in the header, from where this was called."""
    called = re.search(r"\(called from (?:line |.*:)(\d+)\)", finding.text)
    here = {finding.line} if PurePosixPath(finding.file).name == source else set()
    return here | ({int(called[1])} if called else set())


@functools.cache
def recorded() -> dict[str, Any]:
    """Arrays by "kernel.argument"."""
    with np.load(RECORDED) as file:
        return dict(file)


def test_every_kernel_is_recorded_as_it_is_launched() -> None:
    rows = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()[1:]]
    assert {(row["kernel"], row["size"]) for row in rows} == {(k.name, s) for k in KERNELS.values() for s in k.sizes}
    for row in rows:
        assert row["extents"] == list(KERNELS[row["kernel"]].sizes[row["size"]])
        assert (row["local_bytes"], row["log"]) == (0, "")
        if row["size"] == SMALL:
            arrays = {i: recorded()[f"{row['kernel']}.{i}"] for i in row["digests"]}
            assert {i: hashlib.sha256(a.tobytes()).hexdigest() for i, a in arrays.items()} == row["digests"]


@pytest.mark.slow_cases("persistent", "product e4m3-whole", "product s8-whole", "multicast-whole", "split k-whole")
@pytest.mark.parametrize("kind", [WHOLE, RANDOM])
@pytest.mark.parametrize("name", KERNELS)
def test_the_intact_kernel_is_right_and_silent(name: str, kind: str) -> None:
    kernel = KERNELS[name]
    launch = kernel.launch(SMALL, kind)
    run = simulated(kernel, launch, kernel.path.read_text(encoding="utf-8"))
    assert [str(finding) for finding in run.findings] == []
    assert run.complete
    arrays: dict[int, Any] = {i: run.arrays[i] for i in launch.right}
    assert differences(kernel, launch, arrays) == []
    if kind == RANDOM:
        for argument, array in arrays.items():
            assert array.tobytes() == recorded()[f"{name}.{argument}"].tobytes(), "other bits than those of an H200"


def test_a_tile_may_begin_inside_a_pattern_if_copy_and_product_agree() -> None:
    """Both swizzle by the address, so 128 bytes before all tiles change nothing."""
    kernel = KERNELS["product bf16"]
    launch = kernel.launch(SMALL, WHOLE)
    text = kernel.path.read_text(encoding="utf-8").replace("*(Shared*)memory", "*(Shared*)(memory + 128)")
    run = simulated(kernel, launch, text, kernel.shared_bytes + 128)
    assert [str(finding) for finding in run.findings] == []
    assert differences(kernel, launch, {i: run.arrays[i] for i in launch.right}) == []


@pytest.mark.slow_cases(
    "multicast: no wgmma.fence",
    "product bf16: no wgmma.fence",
    "persistent: a block ends early",
    "persistent: waits for all but one",
    "product bf16: takes 240 registers",
    "persistent: the parity never turns",
    "multicast: gives too few registers",
    "multicast: reads the sums after no wait",
    "multicast: the barriers are not published",
    "product bf16: reads the sums after no wait",
    "multicast: expects its own half of B alone",
    "multicast: multiplies before the bytes arrive",
    "multicast: the slabs of B are half as far apart",
    "product tf32: multiplies before the bytes arrive",
    "persistent: the last stage of a tile is not given back",
    "product bf16: sums start as numbers of other instructions",
)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_planted_defect_is_found_at_its_line(defect: AsynchronousDefect) -> None:
    launch = defect.intact.launch()
    launch = defect.launch(launch) if defect.launch else launch
    if defect.category == UNLAUNCHABLE:
        with pytest.raises(UsageError, match="no GPU"):
            simulated(defect.intact, launch, defect.source, defect.shared_bytes)
        return
    findings = found_in(defect, launch)
    found = [finding for finding in findings if finding.kind in defect.kinds]
    assert found, [str(finding) for finding in findings]
    lines = {line for finding in found for line in places(finding, defect.intact.source)}
    assert lines & set(defect.numbers()), [str(finding) for finding in found]


def found_in(defect: AsynchronousDefect, launch: Launch) -> list[Finding]:
    """By the public call where the compiler's messages and the registers that it gave the kernel are needed."""
    if defect.category not in (REGISTERS, SERIALISED):
        return simulated(defect.intact, launch, defect.source, defect.shared_bytes).findings
    kernel = defect.intact
    compiled(kernel, defect.source)  # without a compiler, the test is skipped
    args = [tensor_map(arg) if isinstance(arg, TileMap) else arg for arg in launch.args]
    seen = tw.microscope(
        defect.source, kernel.entry, launch.grid, kernel.block, args,
        defines=kernel.defines, include=[FOLDER], shared_bytes=kernel.shared_bytes,
    )  # fmt: skip
    return [replace(f, file=kernel.source) if f.file == "kernel.cu" else f for f in seen.findings]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_defect_can_be_planted(defect: AsynchronousDefect) -> None:
    assert defect.numbers() or not defect.lines
    assert defect.changes or defect.launch or defect.shared_bytes


def test_enough_is_planted() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 40
    assert len({defect.category for defect in DEFECTS}) >= 10
    assert {defect.kernel for defect in DEFECTS} <= set(KERNELS)


def test_every_source_is_launched() -> None:
    assert {path.name for path in FOLDER.glob("*.cu")} == {kernel.source for kernel in KERNELS.values()}


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_spills(name: str) -> None:
    """And the compiler has nothing to say, such as that it waits for each wgmma."""
    kernel = KERNELS[name]
    binary = compiled(kernel, kernel.path.read_text(encoding="utf-8"))
    assert binary.resources[kernel.entry].local_bytes == 0
    assert binary.log == ""


def test_the_test_of_a_defect_can_fail() -> None:
    sound = AsynchronousDefect("none", "", "stmatrix", [], ["race"], ["__syncthreads"])
    with pytest.raises(AssertionError):
        test_the_planted_defect_is_found_at_its_line(sound)
