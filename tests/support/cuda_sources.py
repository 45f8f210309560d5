"""CUDA sources compiled and run in the microscope; the tests are skipped where there is no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.assembly.disassembly import MachineInstruction

HEAD = 'extern "C" __global__ void k'


def compiled(source: str, name: str = "test.cu") -> str:
    try:
        return compile_source(source, name=name, arch="sm_90").ptx
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")


def execute(source: str, args: Sequence[Any], grid: Any = 1, block: Any = 64, **options: Any) -> Run:
    return simulate(compiled(source), "k", grid, block, args, RunOptions(**options))


def made(opcode: str, offset: int = 0, guard: str = "", line: int = 7) -> MachineInstruction:
    return MachineInstruction(offset, opcode, "", guard, "k.cu", line, 0)
