"""Plans products that the CPU computes from arrays in the host's memory, and runs the plans."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..host.cached_property import cached_property
from ..host.limits import get_threads, why_threads
from ..host.machine import bytes_text
from ..kernels import Kernel
from ..product.operands import can_write, native, promoted
from ..product.plan import INVARIANT_ROW, Choice, Plan, Rows, rate_text
from ..product.precision import INVARIANT, asked_precision, bound_rows, check_words, is_error_goal
from ..product.problem import Problem, ProductShapes, Symmetry, combine_shapes
from .choice import choose_adding_cpu, choose_cpu, error_factor, for_many_threads
from .engine.numpy_product import numpy_product, product_by_numpy
from .prediction import BlockSizes, Prediction, predict
from .runtime import shared_products, small_products
from .runtime.facts import KERNEL, OF_SHORT_WAY
from .runtime.runner import Product, as_matrices, multiply_batch, run_in_slices, runner
from .runtime.shared_products import Sharing

#: The least multiply-adds of a product that threads share: two threads that stand by are faster than one from 90³ on.
WORK_SHARED = 700_000
#: The least multiply-adds, or bytes of operands, for each thread. A thread that stands by costs the caller a quarter of a
#: microsecond, in which it makes 15,000 multiply-adds. To wake a sleeping thread takes up to 0.1 ms on a virtual machine, in
#: which a core reads 4 MiB; but the other threads do not wait for it.
WORK_PER_THREAD = 130_000
#: The least multiply-adds of a product of a batch for each thread, and those that two threads lose if they share one: on
#: Zen 4, each with products of its own is faster up to about 350³.
WORK_TO_SHARE = 800_000
BYTES_PER_THREAD = 4 << 20
#: The least multiply-adds for each thread that sleeps in machine code and is woken: it begins 50 to 60 µs later (measured on
#: two virtual machines), and meanwhile the caller makes 30 to 60 a nanosecond.
WORK_PER_WAKING = 3_000_000
#: Multiply-adds from which it is worth waking a thread from Python for one product (400³: a millisecond on one thread).
WORK_WORTH_WAKING = 64_000_000
#: Multiply-adds that each thread computes without looking for an interrupt: some ten milliseconds, in slow dtypes a hundred.
MOST_WORK_OF_EACH = 1 << 29
#: The least multiply-adds of a batch for each thread. These are Python threads, which sleep and take up to 0.1 ms to wake.
WORK_PER_BAND = 8_000_000

#: Operands and the narrower dtype in which "fast" may multiply them.
_NARROWED = {("float64", "float32"), ("complex128", "complex64")}

#: A dtype and its type number. Two equal dtypes can differ in it: ``long`` and ``long long`` are both int64, and each has a
#: scalar type of its own.
DTypeKey = tuple[np.dtype, int]


@dataclass(frozen=True, eq=False, repr=False)
class HostPlan(Plan):
    """The plan of a product on the CPU.

    ``layout`` says how the shapes of the operands combine; ``dtype`` is the dtype of the result. ``threads`` threads
    share each product. If the products of a batch are too small to be shared, each of ``bands`` threads computes a part
    of the batch. With ``adds`` the product is added to C. ``finish`` is the formula of the epilogue, which is applied
    to the product.
    """

    problem: Problem
    choice: Choice[Kernel]
    layout: ProductShapes
    dtype: np.dtype
    threads: int = 1
    bands: int = 1
    adds: bool = False
    finish: str = ""

    # ---- what runs

    def run(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """Multiply arrays that have the planned shapes and ``working_dtype``, and write the product to ``c``, which has
        ``stored_dtype``."""
        plain = self.threads == 1 and not self.adds and self.working_dtype == self.stored_dtype
        plain = plain and self.problem.precision != INVARIANT and not self.problem.symmetry
        short = short_way(self.kernel, self.working_dtype) if plain else small_products.take_long_way
        a, b, c = as_matrices(self.layout, a, b, c)
        multiply_batch(short, self._product, self.bands, a, b, c)
        if self.problem.symmetry and (self.problem.symmetry != "gram" or self.working_dtype.kind == "c"):
            mirror_lower(c, self.problem.symmetry == "hermitian", near=True)

    def run_by(self, product: Product, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """Multiply as ``run`` does, but let the function ``product`` compute the products of the batch, one after the
        other."""
        multiply_batch(small_products.take_long_way, lambda: product, 1, *as_matrices(self.layout, a, b, c))

    def _product(self) -> Product:
        """The function that computes one product. Those of a batch follow each other, so threads that share one stand by for
        the next: that is shared in machine code, if it can be."""
        run = _runner(
            self.kernel, self.working_dtype, self.threads, self.adds, self.stored_dtype, self.problem.symmetry
        )
        how = self.sharing if self.threads > 1 and self.problem.batch > 1 else None
        if how is None:
            return run

        def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
            if shared_products.multiply_shared(how, a, b, c) is None:
                run(a, b, c)

        return product

    @cached_property
    def sharing(self) -> Sharing | None:
        """Return one product of the plan as a call of machine code; None if machine code cannot run the product."""
        problem, kernel, work = self.problem, self.kernel, self._work
        if problem.symmetry and self.working_dtype.kind == "c":
            return None  # ``run`` mirrors what is near the diagonal
        if self.adds or kernel.shared != "team" or kernel.over is not None or kernel.tunable:
            return None
        if work > MOST_WORK_OF_EACH * self.threads:
            return None
        others, shape = self.threads - 1, (problem.m, problem.n, problem.k)
        least = min(others, 1 if work < WORK_WORTH_WAKING else max(1, 3 * self.threads // 4))
        wakes = min(others, work // WORK_PER_WAKING)
        return shared_products.sharing(
            kernel, self.working_dtype, shape, self.threads, least, wakes, self.made_dtype, problem.symmetry
        )

    @property
    def _work(self) -> int:
        """Multiply-adds of one product."""
        return self.problem.flops // (2 * max(1, self.problem.batch))

    @cached_property
    def working_dtype(self) -> np.dtype:
        """``compute`` as a dtype."""
        return np.dtype(self.compute)

    @cached_property
    def stored_dtype(self) -> np.dtype:
        """The dtype that the kernel writes, which is ``working_dtype``, or the wider dtype of the kernel's sums if the
        product has that dtype."""
        return self.dtype if self.kernel.sums.get(self.compute) == self.dtype.name else self.working_dtype

    @cached_property
    def made_dtype(self) -> np.dtype:
        """The dtype of an array that is allocated for the product, which is ``dtype`` if the kernel writes that dtype,
        otherwise ``stored_dtype``.

        If ``dtype`` and ``stored_dtype`` are equal, the result is the object ``dtype``, because NumPy returns that
        object."""
        return self.dtype if self.dtype == self.stored_dtype else self.stored_dtype

    @property
    def narrows(self) -> bool:
        """Whether the product is computed in a narrower dtype than that of the operands. The magnitudes of the operands
        may not allow the narrower dtype."""
        return (self.problem.dtype, self.compute) in _NARROWED

    @property
    def unnarrowed(self) -> HostPlan:
        """The plan that is used for operands whose magnitudes do not allow a narrower dtype."""
        standard = replace(self.problem, precision="standard")
        return replace(self, problem=standard, choice=choose_cpu(standard))

    @cached_property
    def can_be_shared(self) -> bool:
        """Whether the product has enough work for two threads. The limit on the number of threads is read only for such
        a product."""
        return self.problem.flops >= 2 * WORK_SHARED or self.problem.bytes_least >= 2 * BYTES_PER_THREAD

    def within(self, limit: int) -> HostPlan:
        """Return this plan, changed to at most ``limit`` threads. The same limit always gives the same object."""
        return _within(self, limit)

    # ---- what it prints and predicts

    @property
    def device(self) -> str:
        """Always "cpu"."""
        return "cpu"

    @property
    def workspace_bytes(self) -> int:
        """The bytes of the workspace of all threads together. The workspace is cached for the next call."""
        shape = self.problem.m, self.problem.n, self.problem.k
        copies = self.threads if self.kernel.shared in ("rows", "tiles") and self.kernel.over is None else 1
        return self.kernel.workspace_bytes(*shape, self.compute, self.threads) * copies

    @property
    def converted_bytes(self) -> int:
        """The bytes of the copies of operands and result in the kernel's dtype; 0 if they already have that dtype."""
        if self.compute == self.problem.dtype or self.stored_dtype != self.working_dtype:
            return 0
        return self.problem.bytes_least // self.problem.itemsize * self._itemsize

    @property
    def prediction(self) -> Prediction | None:
        """The predicted time, from a simple model of this machine; None if the peak of the dtype is not measured."""
        if self.kernel is numpy_product:
            return None
        return predict(self.problem, self.kernel.params, self.compute, max(self.threads, self.bands))

    @property
    def predicted_s(self) -> float | None:
        prediction = self.prediction
        return None if prediction is None else prediction.seconds

    def rows(self) -> Rows:
        rows = [
            *self._blocks(),
            *self._triangle(),
            ("threads", self._threads()),
            ("workspace", str(bytes_text(self.workspace_bytes))),
        ]
        if self.stored_dtype != self.working_dtype:
            rows.append(
                ("computes", f"products of {self.compute}, which is not converted; sums are {self.stored_dtype}")
            )
        elif self.narrows:
            rows += [
                ("computes", f"in {self.compute}; converted copies take {bytes_text(self.converted_bytes)}"),
                ("otherwise", f"in {self.problem.dtype}, with an infinity or a NaN, or if products could underflow"),
            ]
        elif self.compute != self.problem.dtype:
            rounding = f"in {self.compute}, rounded once to {self.problem.dtype}"
            rows.append(("computes", f"{rounding}; converted copies take {bytes_text(self.converted_bytes)}"))
        if self.finish:
            rows.append(("result", f"{self.finish}, by NumPy after the product"))
        return [*rows, *self._error(), *self._predicted()]

    @property
    def _itemsize(self) -> int:
        return Problem(1, 1, 1, self.compute).itemsize

    def _threads(self) -> str:
        if self.kernel is numpy_product:
            return "as many as NumPy uses"
        each = ", each with products of its own" if self.bands > 1 else ""
        return f"{max(self.threads, self.bands)} of {get_threads()} ({why_threads()}){each}"

    def _triangle(self) -> Rows:
        """What becomes of a symmetric C."""
        if not self.problem.symmetry:
            return []
        conjugated = ", conjugated" if self.problem.symmetry == "hermitian" else ""
        return [
            ("triangle", f"tiles above the diagonal are not computed: finished ones below are copied there{conjugated}")
        ]

    def _blocks(self) -> Rows:
        params, shape = self.params, (self.problem.m, self.problem.n, self.problem.k)
        blocks = BlockSizes.of(params, self.kernel.space or self.compute, *shape)
        rows = []
        if "mr" in params:
            vectors = f" ({params['nv']} vectors of {params['vector_bits']} bits)" if blocks.nr > 1 else ""
            rows.append(("tile", f"{blocks.mr} × {blocks.nr} of C in registers{vectors}"))
        if blocks.packs:
            m, n, k = (min(block, size) for block, size in zip((blocks.mc, blocks.nc, blocks.kc), shape, strict=True))
            packing = f"{m} × {k} of A at a time for L2, {k} × {n} of B packed for the last cache"
            rows.append(("blocks", f"MC {blocks.mc}, KC {blocks.kc}, NC {blocks.nc}: {packing}"))
        return rows

    def _error(self) -> Rows:
        """The error bound, where it is not the classical one, and those of the paths that were not chosen."""
        if self.problem.precision == INVARIANT:
            return [INVARIANT_ROW]
        if is_error_goal(self.problem.precision):
            return bound_rows("cpu", self.problem.dtype, self.compute, self.problem.k)
        factor = error_factor(self.kernel, self.problem)
        return [] if factor is None else [("error", f"at most {factor:.3g} · u · max|A| · max|B|, u the unit roundoff")]

    def _predicted(self) -> Rows:
        if not self.problem.flops:
            return []
        prediction = self.prediction
        if prediction is None:
            unknown = "NumPy's rate" if self.kernel is numpy_product else f"the peak of {self.compute} arithmetic"
            return [("predicted", f"nothing: {unknown} is not measured")]
        limit = "" if self.kernel.error_bound is None else "at most "
        return [
            ("predicted", f"{limit}{rate_text(self.problem, prediction.seconds)}: bound by {prediction.bound}"),
            ("model", f"{prediction}; from this machine's measured rates and the bytes that blocks move"),
        ]


# ---- how it is made --------------------------------------------------------------------------------------------------


def host_plan(
    a: tuple[int, ...],
    b: tuple[int, ...],
    a_dtype: np.dtype,
    b_dtype: np.dtype,
    precision: str | float = "standard",
    algorithm: str = "classical",
    result: np.dtype | None = None,
    symmetry: Symmetry = "",
) -> HostPlan:
    """Return the plan for operands of these shapes and dtypes, for at most the number of threads that are allowed now.
    Plans are cached. ``result`` is the dtype of the product, if it is wider than that of the operands. ``symmetry``
    says whether the product is known to be symmetric or Hermitian, and why.

    Raises ShapeError, DTypeError and UsageError, as ``matmul`` does.
    """
    try:
        plan = plan_alone(a, b, (a_dtype, a_dtype.num), (b_dtype, b_dtype.num), precision, algorithm, result, symmetry)
    except TypeError:  # of what has no hash
        check_words(precision, algorithm)
        raise
    return plan.within(get_threads()) if plan.can_be_shared else plan


@functools.lru_cache(maxsize=1024)  # a plan depends on its arguments and the machine alone
def plan_alone(
    a: tuple[int, ...],
    b: tuple[int, ...],
    a_key: DTypeKey,
    b_key: DTypeKey,
    precision: str | float,
    algorithm: str,
    result: np.dtype | None,
    symmetry: Symmetry = "",
) -> HostPlan:
    """Return the plan for one thread. A kernel that cannot compute only a triangle computes all of C, even if C is
    known to be symmetric."""
    if algorithm == "classical":
        precision = asked_precision(precision)
    shapes, dtype = combine_shapes(a, b), promoted(a_key[0], b_key[0]) if result is None else result
    operands = a_key[0].name if a_key[0].name == b_key[0].name else ""
    problem = Problem(shapes.m, shapes.n, shapes.k, dtype.name, math.prod(shapes.batch), precision=precision)
    choice = choose_cpu(problem, algorithm, operands)
    if symmetry and choice.kernel.triangle and problem.precision != INVARIANT and problem.k:
        problem = replace(problem, symmetry=symmetry)
    return HostPlan(problem, choice, shapes, dtype)


def adding_plan(a: np.ndarray, b: np.ndarray) -> HostPlan | None:
    """Return the plan to add the product of two matrices to C in one pass. The result is None if no kernel can do so,
    or if it is faster to compute the product into another array and to add that array to C.

    Computing into another array is faster if C is no larger than the operands, or if the kernel for small products is
    planned."""
    plan = host_plan(a.shape, b.shape, a.dtype, b.dtype)
    m, n, k = plan.problem.m, plan.problem.n, plan.problem.k
    operands = a.dtype.name if a.dtype == b.dtype else ""
    few = plan.choice if plan.threads == 1 else choose_cpu(plan.problem, operands=operands)  # that of many may not add
    if few.kernel.adds:
        return replace(plan, choice=few, adds=True)
    if plan.kernel in (KERNEL, numpy_product) or m * n <= k * (m + n):
        return None
    choice = choose_adding_cpu(plan.compute)
    return None if choice is None else replace(plan, choice=choice, adds=True)


@functools.lru_cache(maxsize=1024)  # as ``plan_alone``
def _within(plan: HostPlan, limit: int) -> HostPlan:
    """The plan with threads in proportion to the work of each product; or with bands in proportion to that of a batch, if
    its products are too small to share or it takes less time that way."""
    problem, choice = plan.problem, plan.choice
    if choice.kernel is numpy_product:
        return plan
    work, bytes_least = plan._work, problem.bytes_least // max(1, problem.batch)
    each, least = (WORK_PER_THREAD, WORK_SHARED) if problem.batch == 1 else (WORK_TO_SHARE, 0)
    worth = max(work // each if work >= least else 1, bytes_least // BYTES_PER_THREAD)
    threads = 1 if worth < 2 or choice.kernel.shared == "serial" else min(worth, limit)
    bands = max(1, min(problem.batch, problem.flops // 2 // WORK_PER_BAND, limit))
    if bands > 1 and threads > 1:
        shared, apart = work / threads + WORK_TO_SHARE, work * math.ceil(problem.batch / bands)
        if apart * 1.03 < shared * problem.batch:  # if they are as fast, threads that share products need less memory
            threads = 1
        else:
            bands = 1
    return replace(plan, choice=for_many_threads(choice, problem, threads), threads=threads, bands=bands)


@functools.lru_cache(maxsize=256)  # a runner has no state of a product
def _runner(kernel: Kernel, dtype: np.dtype, threads: int, add: bool, result: np.dtype, symmetry: Symmetry) -> Product:
    return runner(kernel, dtype, threads=threads, add=add, result=result, symmetry=symmetry)


@functools.cache  # a dtype is learnt once
def short_way(kernel: Kernel, dtype: np.dtype) -> small_products.Short:
    """Return the fast path for products of a dtype. If the fast path can call the plan's kernel, the fast path computes
    products of this dtype from now on."""
    if kernel is numpy_product:
        return product_by_numpy
    if kernel in OF_SHORT_WAY:
        return small_products.learn_dtype(dtype, WORK_SHARED)
    return small_products.multiply


# ---- how a plan runs ------------------------------------------------------------------------------------------------------

#: ``run(plan, a, b, c)``: multiplies arrays of its ``working_dtype`` into ``c``.
Run = Callable[[HostPlan, np.ndarray, np.ndarray, np.ndarray], None]


def multiplied(
    plan: HostPlan, x: np.ndarray, y: np.ndarray, target: np.ndarray | None = None, run: Run | None = None
) -> np.ndarray:
    """Return the product of operands for which ``plan`` was made, in a new array, or cast into ``target``. ``run`` is
    the function that multiplies, by default the plan's."""
    run = run or HostPlan.run
    if plan.narrows:
        x, y = native(x, plan.dtype), native(y, plan.dtype)
        part = functools.partial(run, plan)
        narrow = multiply_narrowed(part, x, y, plan.working_dtype, plan.layout.result, target)
        if narrow is not None:
            return narrow
        plan = plan.unnarrowed
    x, y = native(x, plan.working_dtype), native(y, plan.working_dtype)
    direct = target is not None and plan.dtype == plan.stored_dtype and can_write(target, plan.stored_dtype, x, y)
    if direct and target is not None and plan.problem.precision == INVARIANT:
        # Cᵀ = Bᵀ·Aᵀ, as which other layouts are computed, adds the terms of complex products in another order.
        direct = target.strides[-1:] == (target.itemsize,)
    c = target if direct and target is not None else np.empty(plan.layout.result, plan.made_dtype)
    run(plan, x, y, c)
    if target is None:
        return _rounded(c, plan.dtype)
    if not direct:
        with np.errstate(all="ignore"):  # a narrower dtype may overflow to infinity
            np.copyto(target, _rounded(c, plan.dtype), casting="same_kind")
    return target


#: Rows that are mirrored at a time, and where only what is near the diagonal is: more than lie between the diagonal and what
#: is computed above it.
_MIRRORED, _NEAR = 768, 128


def mirror_lower(c: np.ndarray, hermitian: bool, *, near: bool = False) -> None:
    """Copy the lower triangle of each matrix (…, n, n) to the upper triangle.

    With ``near`` only elements near the diagonal are copied: they were computed on both sides of the diagonal, and may
    differ in their last bits. Elements farther from the diagonal are copies already."""
    hermitian = hermitian and c.dtype.kind == "c"
    step = _NEAR if near else _MIRRORED
    for top in range(0, c.shape[-1], step):
        rows, columns = slice(top, top + step), slice(top, top + 2 * step if near else None)
        below = c[..., columns, rows].swapaxes(-1, -2)
        above = ~np.tri(*below.shape[-2:], dtype=np.bool_)
        np.copyto(c[..., rows, columns], below.conj() if hermitian else below, where=above)
    if hermitian:
        make_diagonal_real(c)


def make_diagonal_real(c: np.ndarray) -> None:
    """Set the imaginary parts of the diagonals of complex matrices (…, n, n) to zero."""
    diagonal = np.arange(c.shape[-1])
    c.imag[..., diagonal, diagonal] = 0


def _rounded(c: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if c.dtype == dtype:
        return c
    if dtype.kind == "b":
        return c != 0
    with np.errstate(over="ignore"):  # a float16 product may overflow to infinity, as with NumPy
        return c.astype(dtype)


# ---- operands in a narrower dtype ------------------------------------------------------------------------------------

#: Elements of a piece that is converted while it is in the second cache, and the least elements for each thread.
_PIECE, _LEAST = 1 << 15, 1 << 18
_MAGNITUDE = np.uint64((1 << 63) - 1)
#: The exponents of the least normal number of float32, and of the power of two above its largest one.
_LOWEST, _HIGHEST = -126, 128


def multiply_narrowed(
    run: Product, a: np.ndarray, b: np.ndarray, dtype: np.dtype, shape: tuple[int, ...], target: np.ndarray | None
) -> np.ndarray | None:
    """Return the product of ``a`` and ``b``, of shape ``shape``, that ``run`` computes in the narrower ``dtype``. The
    product is written to ``target`` or a new array. If the magnitudes of the operands do not allow the narrower dtype,
    the result is None and nothing is written."""
    narrow = narrowed_operands(a, b, dtype)
    if narrow is None:
        return None
    x, y, exponent = narrow
    c = np.empty(shape, dtype)
    run(x, y, c)
    target = np.empty(shape, a.dtype) if target is None else target
    widened(c, exponent, target)
    return target


def narrowed_operands(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Return ``a`` and ``b`` of float64 (or complex128) in the narrower ``dtype``, and the exponent of the power of two
    by which their product must be multiplied. The result is None if the operands cannot be narrowed, for example
    because of an infinity or a NaN.

    >>> x, y, exponent = narrowed_operands(np.array([[2.0**500]]), np.array([[2.0**-490]]), np.dtype(np.float32))
    >>> float(np.ldexp(x @ y, exponent)[0, 0])
    1024.0
    >>> narrowed_operands(np.array([[1, 2.0**-100]]), np.array([[1], [2.0**-100]]), np.dtype(np.float32)) is None
    True
    """
    (x, *of_a), (y, *of_b) = _narrowed(a, dtype), _narrowed(b, dtype)
    (least_a, most_a), (least_b, most_b) = (_exponents(*each) for each in (of_a, of_b))
    if math.isinf(most_a) or math.isinf(most_b) or least_a - most_a + least_b - most_b < _LOWEST:
        return None
    of_sums = (2 * a.shape[-1]).bit_length()  # a part of a complex number has twice as many products
    in_range = min(least_a, least_b, least_a + least_b) >= _LOWEST
    if in_range and max(most_a, most_b, most_a + most_b + of_sums) < _HIGHEST:
        return x, y, 0
    return _scaled(a, -int(most_a), dtype), _scaled(b, -int(most_b), dtype), int(most_a + most_b)


def widened(c: np.ndarray, exponent: int, target: np.ndarray) -> None:
    """Write ``c``, multiplied by two to the power ``exponent``, to ``target``, which has any strides and dtype."""

    def convert(rows: slice) -> None:
        with np.errstate(all="ignore"):  # the result may overflow to infinity
            if not exponent:
                np.copyto(target[rows], c[rows], casting="unsafe")
                return
            wide = np.empty(c[rows].shape, np.result_type(c, np.float64))
            for source, part in zip(_parts(c[rows]), _parts(wide), strict=True):
                np.ldexp(source.astype(np.float64), exponent, out=part)
            np.copyto(target[rows], wide, casting="unsafe")

    _shared(convert, len(c), c.size)


def _narrowed(x: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, float, float]:
    """``x`` in the narrower dtype, and its least magnitude but zero and its largest: infinite with an infinity or a NaN, and
    infinite and zero without any number but zero."""
    if not x.flags.c_contiguous and x.ndim > 1 and x.swapaxes(-1, -2).flags.c_contiguous:
        narrow, least, most = _narrowed(x.swapaxes(-1, -2), dtype)
        return narrow.swapaxes(-1, -2), least, most
    narrow = np.empty(x.shape, dtype)
    source = np.ascontiguousarray(x).reshape(-1).view(np.float64)
    target = narrow.reshape(-1).view(np.float32)
    found: list[tuple[int, int]] = []

    def convert(part: slice) -> None:
        least, most = (1 << 64) - 1, 0
        bits = np.empty(_PIECE, np.uint64)
        with np.errstate(all="ignore"):
            for low in range(part.start, part.stop, _PIECE):
                piece = source[low : min(low + _PIECE, part.stop)]
                target[low : low + piece.size] = piece
                magnitude = np.bitwise_and(piece.view(np.uint64), _MAGNITUDE, out=bits[: piece.size])
                most = max(most, int(magnitude.max()))
                magnitude -= np.uint64(1)  # so that zero is larger than every other
                least = min(least, int(magnitude.min()))
        found.append((least, most))

    _shared(convert, source.size, source.size)
    most = max((high for _, high in found), default=0)
    least = min((low for low, _ in found), default=0) + 1
    return narrow, _as_float(least) if most else math.inf, _as_float(most)


def _as_float(bits: int) -> float:
    value = float(np.uint64(bits).view(np.float64))
    return math.inf if math.isnan(value) else value


def _exponents(least: float, most: float) -> tuple[float, float]:
    """Exponents of the powers of two that are at most the least magnitude, and above the largest one; both 0 without any."""
    if not most:
        return 0, 0
    if math.isinf(most):
        return 0, math.inf
    return math.frexp(least)[1] - 1, math.frexp(most)[1]


def _scaled(x: np.ndarray, exponent: int, dtype: np.dtype) -> np.ndarray:
    scaled = np.empty_like(x, dtype)
    for source, part in zip(_parts(x), _parts(scaled), strict=True):
        part[...] = np.ldexp(source, exponent)
    return scaled


def _parts(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Views of the real and the imaginary part."""
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def _shared(job: Callable[[slice], None], length: int, size: int) -> None:
    """Cut a ``length`` among the threads that pay for ``size`` elements."""
    run_in_slices(job, length, max(1, min(get_threads(), size // _LEAST)))
