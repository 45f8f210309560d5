"""How a GPU multiplies the blocks of a step: as they are, or from their float16 parts.

Each block is split once, by the first step that reads it, into memory beside its slot. So does every GPU that copies a block
from another one. The launches follow each other on the stream that multiplies: a slot is loaded again only after the last
step that reads it, and until then its parts stay.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from ....gpu.runtime.device import Device
from ....gpu.runtime.product import compile_ahead, prepare_gpu_product
from ....gpu.runtime.split_operand import split_of_rows
from ....gpu.runtime.split_product import parts_steps, split_step
from ....gpu.runtime.steps import A, B, BufferPlace, GpuStep, SubmitSteps, compile_steps, load
from ....kernels.cuda_kernel import CudaKernel
from ....product.plan import Choice
from ....product.precision import PLANES
from ..plan.schedule import Multiply


class Addresses(NamedTuple):
    """The slots of a step; with parts each operand's parts are behind its block."""

    a: int
    b: int
    c: int


class Steps(Protocol):
    """What multiplies a step's blocks into a tile of C."""

    def compile_ahead(self, shapes: Iterable[tuple[int, int, int]]) -> None:
        """Begin to compile what steps of these shapes (m, n, k) need, on threads of their own."""

    def __call__(self, step: Multiply, shape: tuple[int, int, int], at: Addresses, stream: Any) -> None:
        """Submit a step of ``shape`` (m, n, k) to the stream of that handle. The GPU must be the thread's current one."""


def steps_on(gpu: Device, choice: Choice[CudaKernel], dtype: str) -> Steps:
    """The steps by the kernel that was chosen."""
    return SplitSteps(gpu, choice) if choice.compute in PLANES else PlainSteps(gpu, choice, dtype)


class PlainSteps:
    """By a kernel that reads the blocks as they are."""

    def __init__(self, gpu: Device, choice: Choice[CudaKernel], dtype: str) -> None:
        self._gpu, self._choice, self._dtype = gpu, choice, dtype

    def compile_ahead(self, shapes: Iterable[tuple[int, int, int]]) -> None:
        """See ``Steps``."""
        compile_ahead(self._gpu, self._choice.kernel, self._choice.params, shapes)

    def __call__(self, step: Multiply, shape: tuple[int, int, int], at: Addresses, stream: Any) -> None:
        """See ``Steps``."""
        kernel, params = self._choice.kernel, self._choice.params
        product = prepare_gpu_product(self._gpu, kernel, self._dtype, *shape, add=not step.first, params=params)
        product(*at, stream)


class SplitSteps:
    """By a kernel that multiplies parts of float16."""

    def __init__(self, gpu: Device, choice: Choice[CudaKernel]) -> None:
        self._gpu, self._choice, self._planes = gpu, choice, PLANES[choice.compute]
        #: The load whose block the parts behind a slot are of.
        self._loads: dict[int, int] = {}
        self._submit = functools.cache(self._loaded)

    def compile_ahead(self, shapes: Iterable[tuple[int, int, int]]) -> None:
        """See ``Steps``."""
        for shape in shapes:
            for add in (False, True):
                compile_steps(self._gpu.arch, itertools.chain(*self._steps(shape, add)))

    def __call__(self, step: Multiply, shape: tuple[int, int, int], at: Addresses, stream: Any) -> None:
        """See ``Steps``."""
        *splits, multiply = self._submit(shape, not step.first)
        for split, slot, load_number in zip(splits, at, step.needs, strict=False):
            if self._loads.get(slot) != load_number:
                split(*at, 0, stream)
                self._loads[slot] = load_number
        multiply(*at, 0, stream)

    def _loaded(self, shape: tuple[int, int, int], add: bool) -> list[SubmitSteps]:
        return [load(self._gpu, steps) for steps in self._steps(shape, add)]

    def _steps(self, shape: tuple[int, int, int], add: bool) -> tuple[list[GpuStep], list[GpuStep], list[GpuStep]]:
        """The steps that split A, those that split B, and those that multiply, or add to C, if their parts are known."""
        product = split_of_rows(*shape, self._planes, add)
        a, b = ((x, BufferPlace(at), BufferPlace(at, x.own_bytes)) for x, at in ((product.a, A), (product.b, B)))
        parts = a[2], b[2]
        multiply = parts_steps(self._gpu.sms, self._choice.kernel, self._choice.params, product, parts)
        return [split_step(a)], [split_step(b)], multiply
