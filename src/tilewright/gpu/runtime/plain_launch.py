"""A launch of a kernel for one product of row-major operands without gaps: what the laboratory times, runs and explains.

A rung takes three operands, m, n and k. A kernel of the engine takes a structure instead of the sizes, and some operands
twice, as a tensor map and as an address; it is described here by the step that ``matmul`` takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...kernels.cuda_kernel import CudaKernel, Launch
from ...product.problem import itemsize_of
from .boxed_product import boxed_step
from .boxes import BoxedOperand, Mapped, check_box_rows, mapped_arguments
from .engine_product import EngineProduct
from .layout import row_major_matrix
from .memory import GRANULE
from .nvrtc import Compiled, compile_with
from .steps import KernelLaunch
from .strided_product import strided_step

#: How the arguments of a kernel refer to operands: the number of one, 0 (A), 1 (B) or 2 (C), and how it lies if the kernel
#: takes its tensor map.
Taken = tuple[int, BoxedOperand | None]


@dataclass(frozen=True)
class PlainLaunch:
    """A compiled kernel, the size of its launch, and its arguments: ``places`` are operands, ``rest`` follows them."""

    compiled: Compiled
    entry: str
    launch: Launch
    places: tuple[Taken, ...]
    rest: tuple[Any, ...]

    def arguments(self, operands: Sequence[Any]) -> list[Any]:
        """All arguments for these operands A, B and C; those that the kernel takes as tensor maps are ``Mapped``."""
        given = [operands[i] if how is None else Mapped(operands[i], how) for i, how in self.places]
        return [*given, *self.rest]

    @property
    def result(self) -> int:
        """The position of C among the arguments."""
        return next(position for position, (i, _) in enumerate(self.places) if i == 2)


def plain_launch(
    kernel: CudaKernel,
    shape: tuple[int, int, int],
    dtype: str,
    params: Mapping[str, int],
    *,
    arch: str,
    sms: int,
    defines: Mapping[str, object] | None = None,
    include: Sequence[str | Path] = (),
) -> PlainLaunch:
    """The launch of ``kernel`` for C[m×n] = A[m×k]·B[k×n] of ``dtype`` on a GPU of that architecture with ``sms``
    multiprocessors. ``params`` are those that differ from the defaults.

    Raises UsageError for sizes, parameters or options that the kernel does not take, and what ``compile_with`` raises.
    """
    if kernel.in_engine:
        if defines or include:
            raise UsageError(f"{kernel.name} is a kernel of the engine: it takes no macros and no folders of the user")
        return _of_engine(kernel, shape, dtype, params, arch, sms)
    launch = kernel.launch_on(sms, *shape, **params)
    check_box_rows(kernel, shape, itemsize_of(dtype))
    compiled = compile_with(kernel, params, arch, defines or {}, include)
    given = mapped_arguments(kernel, shape, dtype, kernel.checked(params), (0, 1, 2))
    places = tuple((i, each.operand if isinstance(each, Mapped) else None) for i, each in enumerate(given))
    return PlainLaunch(compiled, compiled.entry(kernel.entry), launch, places, shape)


def _of_engine(
    kernel: CudaKernel, shape: tuple[int, int, int], dtype: str, params: Mapping[str, int], arch: str, sms: int
) -> PlainLaunch:
    m, n, k = shape
    if not min(shape):
        raise UsageError(f"{kernel.name} at {m}x{n}x{k}: C or k is empty, so the engine launches no kernel")
    if kernel.suits is not None and not kernel.suits(m=m, n=n, k=k, batch=2):
        raise UsageError(f"{kernel.name} at {m}x{n}x{k}: it is for {kernel.suits.text}")
    a, b, c = (row_major_matrix(*each, dtype) for each in ((m, k), (k, n), (m, n)))
    if kernel.boxes:
        size = itemsize_of(dtype)
        if "b" not in kernel.boxes or size not in (2, 8):
            raise UsageError(f"{kernel.name} multiplies {dtype} only if the columns of B follow each other")
        if k * size % GRANULE or n * size % GRANULE:
            raise UsageError(
                f"{kernel.name} takes A and B as tensor maps, whose rows must be multiples of {GRANULE} bytes: "
                f"those of A have {k * size} bytes, those of B {n * size}"
            )
    make = boxed_step if kernel.boxes else strided_step
    step, places = make(sms, kernel, params, EngineProduct(dtype, a, b, c))
    assert isinstance(step, KernelLaunch)
    compiled, (blocks, threads, shared) = step.code.compiled(arch), step.size
    taken = itertools.zip_longest((at.buffer for at in places), step.maps)
    launch = Launch((blocks, 1, 1), (threads, 1, 1), shared)
    return PlainLaunch(compiled, compiled.entry(step.entry), launch, tuple(taken), (step.rest,))
