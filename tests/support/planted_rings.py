"""The kernels in ``microscope/planted``, each with defects that a template parameter plants, and how they are launched.

A source has a function ``run<D, U>``: ``D`` is a defect, or a twin without one whose name begins with RIGHT, and ``U`` says
how often the loop over STEPS steps is unrolled. All variants of a source are kernels of one module, compiled once. A line
on which a defect must be found ends in ``// !! kind: NAME NAME; kind: NAME``.
"""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.async_sources import PRELUDE
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.assembly.instructions import Module
from tilewright.simulator.assembly.parser import parse_ptx

FOLDER = Path(__file__).parents[1] / "microscope" / "planted"
#: Steps of each loop: every stage is filled three times.
STEPS = 6
#: How often loops are unrolled: not at all, and in full.
UNROLLED = {"rolled": 1, "unrolled": STEPS}


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(0, 9, shape).astype(np.float32)


@dataclass(frozen=True)
class Ring:
    """A source, its launch, and what its right variants give."""

    source: str
    block: int
    args: list[Any]
    right: Any
    grid: int = 1
    params: str = "const float* x, float* y"
    options: dict[str, Any] = field(default_factory=dict)
    folder: Path = FOLDER
    header: str = ""
    arch: str = "sm_90a"
    steps: int = STEPS
    unrolled: bool = True
    #: Arguments and result of twins that have others.
    others: dict[str, tuple[list[Any], Any]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return (self.folder / self.source).read_text(encoding="utf-8")

    @functools.cached_property
    def marks(self) -> dict[str, set[tuple[int, str]]]:
        """By defect, where it must be found, and as what."""
        found: dict[str, set[tuple[int, str]]] = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            for mark in line.split("// !! ")[1].split("; ") if "// !! " in line else ():
                kind, names = mark.split(": ")
                for name in names.split():
                    found.setdefault(name, set()).add((number, kind))
        return found

    @property
    def twins(self) -> list[str]:
        """The variants without a defect."""
        return list(dict.fromkeys(["RIGHT", *re.findall(r"\bD == (RIGHT_\w+)", self.text)]))

    @functools.cached_property
    def module(self) -> Module:
        names = [*self.twins, *self.marks]
        given = ", ".join(param.split()[-1] for param in self.params.split(","))
        kernels = "".join(
            f'extern "C" __global__ void {name}_{how}({self.params}) {{ run<{name}{f", {times}" * self.unrolled}>({given}); }}\n'
            for name in names
            for how, times in (UNROLLED if self.unrolled else {"rolled": 1}).items()
        )
        text = f"{PRELUDE}{self.header}enum {{ {', '.join(names)} }};\nconstexpr int STEPS = {self.steps};\n"
        text += f'#line 1 "{self.source}"\n'
        try:
            compiled = compile_source(text + self.text + kernels, name=self.source, arch=self.arch)
        except UnavailableError as error:
            pytest.skip(f"no CUDA compiler: {error}")
        return parse_ptx(compiled.ptx)

    def run(self, name: str, how: str) -> Run:
        """The run of a variant, ``rolled`` or ``unrolled``."""
        options = RunOptions(max_steps=100_000, **self.options)
        args = self.others[name][0] if name in self.others else self.args
        return simulate(self.module, f"{name}_{how}", self.grid, self.block, args, options)

    def right_of(self, name: str) -> Any:
        """The result of a twin."""
        return self.others[name][1] if name in self.others else self.right


def _bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _core_matrices(tile: np.ndarray[Any, Any]) -> bytes:
    """Rows of 16 numbers as matrices of 8 rows of 16 bytes, those of the same rows one after the other."""
    rows = len(tile) // 8
    return bytes(_bf16(tile).reshape(rows, 8, 2, 8).transpose(0, 2, 1, 3).tobytes())


def _products() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The slabs of ``wgmma_ring.cu``, and the sums of their products."""
    a, b = _floats(STEPS, 128, 16), _floats(STEPS, 8, 16)
    slabs = b"".join(_core_matrices(a[i]) + _core_matrices(b[i]) for i in range(STEPS))
    return np.frombuffer(slabs, np.uint8).copy(), np.einsum("imk,ink->mn", a, b)


def _rings() -> dict[str, Ring]:
    x, wide, rows = _floats(STEPS, 64), _floats(STEPS, 128), _floats(STEPS, 48)
    padded = np.pad(rows, ((0, 0), (0, 16)))
    slabs, product = _products()
    y = functools.partial(np.zeros, dtype=np.float32)
    rings = [
        Ring("async_groups.cu", 64, [x, y(64)], np.roll(x.sum(axis=0), 32)),
        Ring("bulk_ring.cu", 96, [wide, y(64)], wide.reshape(STEPS, 2, 64).sum(axis=(0, 1))),
        Ring("bulk_stores.cu", 64, [x, y((STEPS + 1) * 64)], 2 * x.ravel()),
        Ring("multicast_ring.cu", 64, [tw.TensorMap(rows, (1, 32)), y((2, 32))], np.tile(padded.reshape(STEPS, 2, 32).sum(axis=(0, 1)), 2),
             grid=2, params="MAP map, float* y", options={"cluster": 2}),
        Ring("wgmma_ring.cu", 288, [slabs, y((128, 8))], product.ravel(), params="const char* x, float* y"),
        Ring("warps.cu", 64, [x, y((STEPS, 2))], x.reshape(STEPS, 2, 32).sum(axis=2).ravel()),
    ]  # fmt: skip
    return {ring.source.removesuffix(".cu"): ring for ring in rings}


RINGS = _rings()


def variants(names: Callable[[Ring], Any]) -> list[Any]:
    """Source, variant and unrolling of each variant that ``names`` gives for a ring."""
    return [
        pytest.param(source, name, how, id=f"{source}-{name}-{how}")
        for source, ring in RINGS.items()
        for name in names(ring)
        for how in UNROLLED
    ]
