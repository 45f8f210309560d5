"""Complex products as real ones, whose kernels are faster: float32 from float16 parts, float64 from residues.

A row of complex A is in memory a row of twice as many reals, re and im in turn, and so is one of C. With each number of B as
the matrix [[re, im], [−im, re]], C = A·B is the product of these matrices of reals. It has the same multiply-adds, in the
same precision, and only B is written anew. Where columns of B follow each other in memory, Bᵀ and A change places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..host.machine import bytes_text, seconds_text
from ..planning.plan import Rows
from ..problem import itemsize_of
from ..runtime.gpu.device import Device
from .copies import compiled_pack
from .gpu_array import GpuArray, contiguous_strides
from .launches import Launches
from .peeled import PeeledLaunches, prepare_peeled
from .plan import GpuPlan

_REALS = {"complex64": "float32", "complex128": "float64"}
#: Elements of a row that a block writes at once, its threads, and the most blocks.
_CHUNK, _THREADS, _MOST_BLOCKS = 1024, 256, 1 << 16
#: Bytes of which the beginning of the other workspace is a multiple.
_ALIGNMENT = 1024
#: Bytes a second that writing pairs moves, and seconds of its launch. Of an H200.
_MOVED, _LAUNCH_S = 2.6e12, 2.5e-6
#: The share of the time of a complex kernel that the real product may take at most: predictions are not better than that.
_GAINS = 0.95


@dataclass(frozen=True)
class Pairs:
    """B as it is read: ``batch`` matrices of lines of numbers, in elements from line to line, number to number and matrix to
    matrix; ``by_columns`` where its columns are the lines."""

    real: str
    batch: int
    lines: int
    numbers: int
    line: int
    number: int
    next: int
    by_columns: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all pairs, up to where the other workspace begins."""
        nbytes = 4 * self.batch * self.lines * self.numbers * itemsize_of(self.real)
        return -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def seconds(self) -> float:
        """The predicted time of writing them."""
        return _LAUNCH_S + 1.5 * self.nbytes / _MOVED


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PairedPlan(GpuPlan):
    """The plan of a complex product that is computed as ``real``. What a plan says of a kernel, this says of the real one's.
    ``turned``: Cᵀ = Bᵀ·Aᵀ is computed, and A is written as ``pairs``."""

    real: GpuPlan
    pairs: Pairs
    turned: bool
    #: The prediction for a complex kernel.
    complex_s: float

    @property
    def workspace_bytes(self) -> int:
        """Bytes of B as reals, and of the real product's workspace behind it."""
        return self.pairs.nbytes + self.real.workspace_bytes

    def rows(self) -> Rows:
        operand = "a" if self.turned else "b"
        written = f"each number of {operand} is written as [[re, im], [−im, re]], {bytes_text(self.pairs.nbytes)}"
        return [*super().rows(), ("reals", f"{written}; a kernel of complex numbers: {seconds_text(self.complex_s)}")]


@dataclass(frozen=True)
class PairedLaunches:
    """All launches of such a plan, loaded."""

    plan: PairedPlan
    write: Callable[[int, int, int], None]
    real: Launches | PeeledLaunches

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace."""
        return self.plan.workspace_bytes

    def submit(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """Submit all of it to ``stream``, for operands and workspace at these addresses. The GPU must be the current one."""
        p, q = (b, a) if self.plan.turned else (a, b)
        self.write(q, workspace, stream)
        self.real.submit(p, workspace, c, workspace + self.plan.pairs.nbytes, stream)


def paired_plan(
    whole: GpuPlan,
    x: GpuArray,
    y: GpuArray,
    out: GpuArray | None,
    planned: Callable[[GpuArray, GpuArray, GpuArray], GpuPlan],
    *,
    views: bool,
) -> GpuPlan:
    """The plan by reals of a product of complex numbers, if that is predicted to take less time than ``whole``, the plan for
    the same arrays; else that one. ``planned`` plans the product of reals. ``views``: the result may be a transposed
    view."""
    real = _REALS.get(x.dtype)
    if real is None or y.dtype != x.dtype or whole.order.dtype != x.dtype or not whole.predicted or whole.finish:
        return whole
    if min(len(x.shape), len(y.shape)) < 2:
        return whole
    found, least = whole, _GAINS * whole.predicted
    shapes = whole.order.shapes
    for swapped in (False, True):
        p, q = (_transposed(y), _transposed(x)) if swapped else (x, y)
        shape = (*shapes.result[:-2], shapes.n, shapes.m) if swapped else shapes.result
        c = GpuArray(0, shape, contiguous_strides(shape), x.dtype, x.device)
        if out is not None:
            c = _transposed(out) if swapped else out
        elif swapped and not views:
            continue
        if len(q.shape) > 3 or {p.strides[-1], c.strides[-1]} != {1}:
            continue
        pairs = _pairs(q, real)
        plan = planned(_by_columns(p, real), _as_reals(q, pairs), _by_columns(c, real))
        if plan.predicted is None or (seconds := plan.predicted + pairs.seconds) > least:
            continue
        order = plan.order._replace(shapes=shapes, shape=shape, dtype=x.dtype, operands=x.dtype, transposed=swapped)
        given: Any = {field.name: getattr(plan, field.name) for field in fields(GpuPlan)}
        given |= {"problem": whole.problem, "order": order, "predicted": seconds}
        found = PairedPlan(**given, real=plan, pairs=pairs, turned=swapped, complex_s=whole.predicted)
        least = seconds
    return found


#: All launches of any plan, loaded.
AnyLaunches = Launches | PeeledLaunches | PairedLaunches


def prepare_paired(plan: GpuPlan, gpu: Device) -> AnyLaunches:
    """The launches of a plan, by reals, in pieces or neither. Raises what ``prepare_launches`` does."""
    if not isinstance(plan, PairedPlan):
        return prepare_peeled(plan, gpu)
    with gpu:
        write = _prepare_write(gpu, plan.pairs)
    return PairedLaunches(plan, write, prepare_peeled(plan.real, gpu))


def _prepare_write(gpu: Device, pairs: Pairs) -> Callable[[int, int, int], None]:
    compiled = compiled_pack(
        "write_pairs", gpu.arch, DOUBLE=int(pairs.real == "float64"), BY_COLUMNS=int(pairs.by_columns)
    )
    jobs = pairs.batch * pairs.lines * -(-pairs.numbers // _CHUNK)
    launch = gpu.launcher(compiled, "write_pairs", min(jobs, _MOST_BLOCKS), _THREADS)
    sizes = tuple(map(np.int64, (pairs.lines, pairs.numbers, pairs.line, pairs.number, pairs.next)))

    def write(b: int, reals: int, stream: int) -> None:
        launch(stream, b, reals, *sizes, np.int32(pairs.batch))

    return write


def _pairs(y: GpuArray, real: str) -> Pairs:
    """How B is read: along its columns if their elements follow each other in memory."""
    k, n = y.shape[-2:]
    row, column = y.strides[-2:]
    batch, following = (y.shape[0], y.strides[0]) if len(y.shape) == 3 and y.strides[0] else (1, 0)
    if row == 1 and column != 1:
        return Pairs(real, batch, n, k, column, row, following, True)
    return Pairs(real, batch, k, n, row, column, following, False)


def _as_reals(y: GpuArray, pairs: Pairs) -> GpuArray:
    """B as it is written, at the beginning of the workspace."""
    k, n = 2 * y.shape[-2], 2 * y.shape[-1]
    strides: tuple[int, ...] = (1, k) if pairs.by_columns else (n, 1)
    if len(y.shape) == 3:
        strides = (k * n if y.strides[0] else 0, *strides)
    return GpuArray(0, (*y.shape[:-2], k, n), strides, pairs.real, y.device)


def _by_columns(x: GpuArray, real: str) -> GpuArray:
    """The same memory as reals, re and im in columns that follow each other."""
    strides = (*(2 * stride for stride in x.strides[:-1]), 1)
    return x._replace(shape=(*x.shape[:-1], 2 * x.shape[-1]), strides=strides, dtype=real)


def _transposed(x: GpuArray) -> GpuArray:
    *batch, rows, columns = x.shape
    *steps, row, column = x.strides
    return x._replace(shape=(*batch, columns, rows), strides=(*steps, column, row))
