"""How a GPU multiplies the blocks of a step: as they are, or from their float16 parts.

Each block is split once, by the first step that reads it, into memory beside its slot. So does every GPU that copies a block
from another one. The launches follow each other on the stream that multiplies: a slot is loaded again only after the last
step that reads it, and until then its parts stay.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from ...kernels.cuda_kernel import CudaKernel
from ...planning.choice import PLANES, Choice
from ...runtime.gpu.device import Device
from ...runtime.gpu.product import compile_ahead, prepare_gpu_product
from ...runtime.gpu.split_operand import SplitProduct, split_of_rows
from ...runtime.gpu.split_product import PartsLaunches, compile_parts_ahead, prepare_product_of_parts, prepare_split
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
        self._split = functools.cache(functools.partial(prepare_split, gpu))
        self._product = functools.cache(self._prepared)

    def compile_ahead(self, shapes: Iterable[tuple[int, int, int]]) -> None:
        """See ``Steps``."""
        for shape in shapes:
            for add in (False, True):
                product = product_of_rows(*shape, add, self._planes)
                compile_parts_ahead(self._gpu, self._choice.kernel, product, self._choice.params)

    def __call__(self, step: Multiply, shape: tuple[int, int, int], at: Addresses, stream: Any) -> None:
        """See ``Steps``."""
        operands = split_of_rows(*shape, self._planes)
        parts_a, parts_b = (slot + x.own_bytes for slot, x in zip(at[:2], operands, strict=True))
        for x, slot, parts, load in zip(operands, at[:2], (parts_a, parts_b), step.needs, strict=True):
            if self._loads.get(slot) != load:
                self._split(x)(slot, parts, stream)
                self._loads[slot] = load
        self._product(shape, not step.first)(at.a, at.b, at.c, parts_a, parts_b, stream)

    def _prepared(self, shape: tuple[int, int, int], add: bool) -> PartsLaunches:
        product = product_of_rows(*shape, add, self._planes)
        return prepare_product_of_parts(self._gpu, self._choice.kernel, product, self._choice.params)


def product_of_rows(m: int, n: int, k: int, add: bool, planes: int = 2) -> SplitProduct:
    """C[m×n] = A[m×k]·B[k×n], or C += A·B, of matrices that lie row by row, without gaps."""
    return SplitProduct(*split_of_rows(m, n, k, planes), n, 0, 1, add=add)
