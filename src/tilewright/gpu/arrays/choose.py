"""Chooses how a product of arrays on a GPU is computed: it compares the predicted times of kernels, each with an order
of the operands. After this comparison, the module decides whether one kernel computes all of C, or whether one kernel
computes the whole tiles and others compute the borders.

The first product of a new shape waits for the choice of a kernel, so only the times that the choice needs are computed.
What a plan prints about the kernels that were not chosen is computed when the plan is printed.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import DTypeError
from ...host.machine import seconds_text
from ...kernels.cuda_kernel import BASE, Card, CudaKernel
from ...kernels.expression import Expression, Expressions
from ...product.plan import Choice
from ...product.precision import COMPLEX_RESIDUES, INVARIANT, RESIDUES, ROUNDED, SPLIT, takes_fastest
from ...product.problem import Problem, Symmetry, itemsize_of
from ...product.residues import RESIDUES_IN
from ..planning.choice import choose_gpu, engine_on_gpu, invariant_on_gpu, of_newest, tuned_card
from ..planning.ways import NAMED, EngineShape, Way, fastest_way, sums_dtype, timed_ways, totals, why_first
from ..runtime.device import Device
from ..runtime.engine_product import FinishForm
from ..runtime.layout import Matrix
from ..runtime.steps import WORKSPACE, A, B, BufferPlace, C
from .copies import copies_seconds, copy_of, finish_seconds, mirror_seconds
from .dtypes import made_dtype
from .gpu_array import GpuArray
from .layouts import RowMajor, given_by_strides, is_down, layouts_of, start_of_lines
from .order import Arrangement, Copied, Operands, Order, OrderedMatrix
from .plan import CHANGED, STRAIGHT, GpuPlan, PlanPiece, computes_triangle, is_mirrored
from .split import can_split, is_split_once, split_seconds

#: What is known of a product, and of a Gram matrix.
_SYMMETRIES: tuple[Symmetry, Symmetry] = "", "gram"
#: The dtype of the parts of operands, if they are split: with some of these no number is multiplied as it is.
_PARTED = {"float32": SPLIT, "float64": RESIDUES, "complex128": COMPLEX_RESIDUES, ROUNDED: ROUNDED} | {
    dtype: dtype for dtype in RESIDUES_IN
}
#: Multiply-adds of float64 for each of m·n·k, and those that a multiprocessor of an H200 does in a second.
_MULTIPLIES, _FLOAT64_RATE = {"float64": 1, "complex128": 4}, 2.1e11


class _Candidate(NamedTuple):
    """A kernel with an order of the operands, the product as the kernel sees it, and the seconds of all copies."""

    kernel: CudaKernel
    once: bool
    order: Order
    shape: EngineShape
    copied: float


def _why_fastest(tried: Sequence[_Candidate], gpu: Device, form: FinishForm | None) -> str:
    """The reason why the fastest of all ways was chosen, as text. The next fastest ways are computed only when this
    text is needed."""
    ranked: list[tuple[Way, float, tuple[str, ...]]] = []
    for each in tried:
        found = timed_ways(each.kernel, each.shape, gpu.card)
        times = totals(found, each.shape, gpu.card, each.copied)
        words = (
            CHANGED if each.order.swapped else STRAIGHT,
            "the lower triangle" if each.shape.triangle else "all of C",
            " and ".join(each.order.copies) or "no copies",
            ""
            if form is None
            else "the epilogue in the same kernel"
            if each.once
            else "the epilogue in another kernel",
        )
        fastest = np.lexsort((found.seconds, times))[:NAMED]
        ranked += [(found.way(number), float(times[number]), words) for number in fastest]
    return why_first(sorted(ranked, key=lambda each: each[1])[:NAMED])


def _shape_of(order: Order, form: FinishForm | None, at_once: bool, *, invariant: bool) -> EngineShape:
    """The product as a kernel sees it, which with ``at_once`` applies the epilogue; ``invariant`` as in ``EngineShape``."""
    p, q, c = order.p.used, order.q.used, order.c.used
    batch, of_p, of_q = math.prod(order.batch), given_by_strides(p), given_by_strides(q)
    p_vector, q_vector = _vector(order.p, of_p, across=of_p.down), _vector(order.q, of_q, across=not of_q.down)
    vectors = None if form is None or not at_once else (form.transposed if order.swapped else form).vectors
    m, n, k = order.mnk
    return EngineShape(
        order.compute,
        c.dtype,
        m,
        n,
        k,
        batch,
        start_of_lines(p),
        start_of_lines(q),
        of_p.down,
        not of_q.down,
        p_vector,
        q_vector,
        vectors,
        form is not None and form.blocks is not None,
        is_down(c),
        invariant,
    )


def _vector(place: OrderedMatrix, given: Matrix, *, across: bool) -> int:
    """The most bytes of an access to a factor. If contiguous elements run ``across`` k, an access cannot extend beyond
    the row, unless the factor is a copy."""
    x, most = place.used, given.vector_bytes
    if not across or place.is_copied:
        return most
    inner = x.rows if is_down(x) else x.columns
    return math.gcd(most, inner * itemsize_of(x.dtype))


def _copies_s(order: Order, form: FinishForm | None, at_once: bool, gpu: Device) -> float:
    """Seconds of the copies before and after, of all products, and of the launch that applies the epilogue."""
    if (form is None or at_once) and not (order.p.is_copied or order.q.is_copied or order.c.is_copied):
        return 0
    ratio = gpu.card.memory_ratio
    before, after = [[copy_of(order, x) for x in places if x.is_copied] for places in ((order.p, order.q), (order.c,))]
    if form is not None and not at_once:
        return copies_seconds(before, ratio) + finish_seconds(after[0], form, ratio)
    return copies_seconds(before, ratio) + copies_seconds(after, ratio)


def _slower_s(order: Order, compute: str, card: Card) -> float:
    """The additional seconds that float64 takes on this card, compared with the units of an H200, to which the costs of
    kernels were fitted. The value is the same for all kernels of the engine, because all use the same units. It is 0
    for a card with a cost table of its own."""
    products = _MULTIPLIES.get(compute, 0) * math.prod((*order.mnk, *order.batch)) * (card.table == BASE)
    return products * (Card().rates.float64_tensor / card.rates.float64_tensor - 1) / (card.sms * _FLOAT64_RATE)


def gpu_plan(
    operands: Operands,
    computes: Sequence[str],
    gpu: Device,
    form: FinishForm | None = None,
    splits: bool = False,
    precision: str | float = "standard",
) -> GpuPlan:
    """The plan of a product on a GPU, with an epilogue of this ``form``. The plan uses the kernel of the engine, with
    its parameters, for which the least total time is predicted, copies included. If no kernel of the engine can compute
    the product, the plan uses the highest rung of the ladder that multiplies the dtype.

    The dtype is the first of ``computes`` that has a kernel for the shape, or the fastest one if ``precision`` allows
    it. With ``splits`` float32 operands may be split into float16, and float64 and complex128 operands may be converted
    to residues in int8, if the classical error bound holds.

    Raises DTypeError if there is no kernel for the dtypes.
    """
    invariant = precision == INVARIANT
    by_engine = (_by_engine(operands, compute, gpu, form, splits, invariant) for compute in computes)
    able = (plan for plan in by_engine if plan is not None)
    found = (
        min(able, key=lambda plan: plan.predicted or 0, default=None) if takes_fastest(precision) else next(able, None)
    )
    if found is not None:
        return _for_precision(found, precision)
    if form is not None and form.blocks is not None:
        raise DTypeError(
            f"scale_a and scale_b are those of blocks: on a GPU they are for float8, precision 'standard' and compute "
            f"capability 9.0; this is {computes[0]} on {gpu.capability}"
        )
    for compute in () if invariant else computes:
        order = None if compute in _PARTED.values() else operands.arranged(compute, RowMajor(), None, at_once=False)
        if order is None:
            continue
        m, n, k = order.mnk
        with contextlib.suppress(*[DTypeError] * (compute != computes[-1])):
            choice = choose_gpu(compute, m, n, k, capability=gpu.capability, sms=gpu.sms, gpu=gpu.name)
            plan = replace(_plan(order, choice, gpu, form=form, is_gram=operands.is_gram), mirrored=operands.is_gram)
            return _for_precision(plan, precision)
    raise DTypeError(
        f"no kernel for compute capability {gpu.capability} stores products of {computes[0]} in this dtype"
    )


def _for_precision(plan: GpuPlan, precision: str | float) -> GpuPlan:
    if plan.problem.precision == precision:
        return plan
    return replace(plan, problem=replace(plan.problem, precision=precision))


def _by_engine(
    operands: Operands, compute: str, gpu: Device, form: FinishForm | None, splits: bool, invariant: bool
) -> GpuPlan | None:
    """The plan by the engine's kernels; None if no kernel of the engine suits the product. With ``invariant``, the bits
    of a row of C depend only on that row of A and on B."""
    tried, best, least = list[_Candidate](), None, math.inf
    parted = _PARTED.get(compute, "") if splits else ""
    splits_to = RESIDUES if parted in RESIDUES_IN else parted
    splitting = of_newest(engine_on_gpu(splits_to, gpu.capability)) if parted else ()
    engine = invariant_on_gpu if invariant else engine_on_gpu
    plain = () if compute == parted else engine(compute, gpu.capability)
    compute = made_dtype(compute) if compute == parted else compute
    # Of complex numbers Cᵀ = Bᵀ·Aᵀ adds the same terms in another order.
    straight = invariant and compute.startswith("complex")
    card = tuned_card(gpu.card)
    seen = dict[tuple[int, bool], tuple[float, EngineShape]]()
    for kernel, once, order in _tried((*plain, *splitting), operands, compute, form, straight=straight):
        if not min(*order.mnk, *order.batch):
            choice = Choice(kernel, compute, kernel.params, "there is nothing to multiply")
            return _plan(order, choice, gpu, form=form)
        if (key := (id(order), once)) not in seen:
            seen[key] = _copies_s(order, form, once, gpu), _shape_of(order, form, once, invariant=invariant)
        copied, shape = seen[key]
        if kernel in splitting:
            if not can_split(order, parted):
                continue
            shape = shape._replace(dtype=parted)
        else:
            copied += _slower_s(order, compute, gpu.card)
        for each in _symmetric(kernel, order, shape) if operands.is_gram else (shape,):
            others = copied
            if kernel in splitting:
                gram = operands.is_gram and is_split_once(order)
                others += split_seconds(order, parted, gpu.card, gram=gram, triangle=each.triangle)
            if operands.is_gram and is_mirrored(kernel, each):
                others += mirror_seconds(order.c.used, math.prod(order.batch), gpu.card.memory_ratio)
            tried.append(_Candidate(kernel, once, order, each, others))
            if others < least:  # else none can be faster
                found = fastest_way(kernel, tried[-1].shape, card, others)
                if found is not None and found.seconds < least:
                    least, best = found.seconds, (tried[-1], found)
    if best is None:
        return None
    (kernel, once, order, shape, _), way = best
    why = f"the engine's kernel for {compute} on compute capability {gpu.capability} with the least predicted time"
    choice = Choice(kernel, shape.dtype, way.params, why, functools.partial(_why_fastest, tried, gpu, form))
    plan = _plan(order, choice, gpu, way.parts, least, form=form, at_once=once, is_gram=operands.is_gram)
    if not operands.is_gram:
        return plan
    return replace(plan, triangle=shape.triangle, mirrored=is_mirrored(kernel, shape))


def _symmetric(kernel: CudaKernel, order: Order, shape: EngineShape) -> Iterator[EngineShape]:
    """The ways to make a Gram matrix equal to its transpose in every bit: all of C is computed and one triangle is
    copied over the other; or all elements are summed in the same order; or only one triangle is computed."""
    yield shape
    if kernel.invariant is not None:
        yield shape._replace(ordered=True)
    if computes_triangle(kernel, order):
        yield shape._replace(triangle=True)


class _Tries(NamedTuple):
    """Arrangements of the operands, and the kernels that are tried. Each kernel has a flag that says whether the kernel
    applies the epilogue, and the number of its arrangement."""

    arrangements: list[Arrangement]
    kernels: list[tuple[CudaKernel, bool, int]]


class _TriesOfKind(NamedTuple):
    """What is tried for products of a kind. ``compared`` has pairs of sets of copies; of each pair it must first be
    found which set copies fewer bytes. ``tries`` has what is tried for each combination of these answers."""

    compared: list[tuple[Copied, Copied]]
    tries: dict[tuple[bool, ...], _Tries]


#: By the kinds of products that were planned before, and the most of them. A key has all that the tries depend on.
_known: dict[Any, _TriesOfKind] = {}
_MOST_KNOWN = 1024


def _tried(
    kernels: tuple[CudaKernel, ...], operands: Operands, compute: str, form: FinishForm | None, *, straight: bool
) -> Iterator[tuple[CudaKernel, bool, Order]]:
    """Every kernel with the orders of operands that suit it, and whether the kernel then applies the epilogue. With
    ``straight``, only C = A·B is computed. The orders are found once for products of one kind."""
    suits, of_form, (m, n, *_) = _suits(kernels, operands), None, operands.sizes
    if form is not None:
        of_form = form.blocks is not None, form.beta != 0, bool(form.scale_a), m == form.rows, n == form.rows
    key = kernels, suits, compute, straight, of_form, operands.kind
    known = _known.get(key) if min(operands.sizes) else _TriesOfKind([], {})
    if known is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[key] = _TriesOfKind(_compared(kernels, operands, compute), {})
    answers = tuple([operands.copies_less(*copies) for copies in known.compared])
    found = known.tries.get(answers)
    if found is None:
        suiting = [(kernel, both) for kernel, *both in zip(kernels, *suits, strict=True)]
        found = known.tries[answers] = _tries(suiting, operands, compute, form, straight=straight)
    orders = [operands.order(how) for how in found.arrangements]
    for kernel, once, number in found.kernels:
        yield kernel, once, orders[number]


def _suits(kernels: tuple[CudaKernel, ...], operands: Operands) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """For each kernel, whether it is considered for C = A·B, and for Cᵀ = Bᵀ·Aᵀ."""
    m, n, k, batch = operands.sizes
    if not min(operands.sizes):
        return (True,) * len(kernels), (True,) * len(kernels)
    rules = _rules(kernels)
    values, swapped = {"m": m, "n": n, "k": k, "batch": batch}, {"m": n, "n": m, "k": k, "batch": batch}
    return rules.of(values), rules.of(swapped)


@functools.lru_cache(maxsize=256)  # their programs are compiled once
def _rules(kernels: tuple[CudaKernel, ...]) -> Expressions:
    """The tables ``suits`` of kernels."""
    return Expressions(kernel.suits or Expression.parse(1, ()) for kernel in kernels)


def _compared(kernels: Sequence[CudaKernel], operands: Operands, compute: str) -> list[tuple[Copied, Copied]]:
    """Copies whose bytes say whether C = A·B or Cᵀ = Bᵀ·Aᵀ copies less."""
    layouts = dict.fromkeys(each for kernel in kernels for each in layouts_of(kernel))
    found = (operands.copied(compute, each, at_once=once) for each in layouts for once in (False, True))
    return list(dict.fromkeys(each for each in found if each and not (each[0] <= each[1] or each[1] <= each[0])))


def _tries(
    suiting: Sequence[tuple[CudaKernel, Sequence[Any]]],
    operands: Operands,
    compute: str,
    form: FinishForm | None,
    *,
    straight: bool,
) -> _Tries:
    """The arrangements and kernels that are tried, for kernels that are given with whether each suits C = A·B and Cᵀ =
    Bᵀ·Aᵀ."""
    in_blocks, found = form is not None and form.blocks is not None, list[tuple[CudaKernel, bool, Arrangement]]()
    same = dict[Order, Arrangement]()
    # Layouts of many kernels are equal.
    arrange: Callable[..., Arrangement | None] = functools.cache(functools.partial(operands.arrangement, compute))
    order_of = functools.cache(operands.order)
    for kernel, both in suiting:
        suited = tuple(swapped for swapped in (False, True) if both[swapped])
        if not suited or (in_blocks and kernel.blocks is None):
            continue
        changes: tuple[bool | None, ...] = (None,)
        if in_blocks or straight:
            changes = (False,)
        elif kernel.strides and kernel.strides["c"] != "rows":
            changes = suited
        elif "c_down" in kernel.boxes:
            changes = (None, False, True)
        at_once = (False, True) if form is not None and kernel.finishes is not None else (False,)
        for once in at_once:
            orders = dict[Order, Arrangement]()
            for swapped in changes:
                for layouts in layouts_of(kernel):
                    how = arrange(layouts, swapped, at_once=once)
                    if how is not None:
                        orders.setdefault(order_of(how), how)
                    if how is not None and kernel.boxes and not any(how.copied[:2]):
                        break  # its layouts differ in how copies of factors lie
            able = [order for order in orders if not once or form is None or _finishes(order, form)]
            for order in able:
                # The first copies least. With boxes another one may have better tiles, but is not worth a copy of C.
                is_able = not kernel.boxes or order is able[0] or not (order.transposed or order.c.is_copied)
                if is_able and order.swapped in suited:
                    how = orders[order]
                    # Where nothing is copied all layouts lead to the same order.
                    found.append((kernel, once, how if any(how.copied) else same.setdefault(order, how)))
    arrangements = list(dict.fromkeys(how for *_, how in found))
    return _Tries(arrangements, [(kernel, once, arrangements.index(how)) for kernel, once, how in found])


def _finishes(order: Order, form: FinishForm) -> bool:
    """Whether a kernel that applies epilogues can apply the epilogue of this ``form``. The result must be rounded once,
    the kernel must be able to read the old C, and rows of a batch that became one product must not have scales of their
    own."""
    c = order.c
    rows = order.mnk[1] if order.swapped else order.mnk[0]
    return (
        c.used.dtype == c.original.dtype
        and sums_dtype(order.compute) in ("float32", "int32")
        and not (form.beta != 0 and c.is_copied)
        and (not form.scale_a or rows == form.rows)
    )


def _plan(
    order: Order,
    choice: Choice[CudaKernel],
    gpu: Device,
    parts: int = 1,
    predicted: float | None = None,
    *,
    form: FinishForm | None = None,
    at_once: bool = False,
    is_gram: bool = False,
) -> GpuPlan:
    shapes, symmetry = order.shapes, _SYMMETRIES[is_gram]
    problem = Problem(shapes.m, shapes.n, shapes.k, order.operands, math.prod(shapes.batch), symmetry=symmetry)
    return GpuPlan(problem, choice, order, gpu.name, gpu.ordinal, parts, predicted, form, at_once)


# ---- tiles and borders: C by several kernels -------------------------------------------------------------------------

#: The sides of the tiles of most kernels are multiples of this, and a border has so many rows or columns at most.
_TILE, _MOST = 64, 16
#: The most of k with which C of a kernel with boxes is parted, of operands of 16 bits.
_SHORT = 64
#: The share of the time of one kernel that the pieces may take at most: predictions are not better than that.
_GAINS = 0.98


def peeled_plan(
    whole: GpuPlan,
    x: GpuArray,
    y: GpuArray,
    out: GpuArray | None,
    planned: Callable[[GpuArray, GpuArray, GpuArray], GpuPlan],
) -> GpuPlan:
    """The plan in pieces, if it is predicted to take less time than ``whole``, the plan in one piece for the same
    arrays; otherwise ``whole``. ``planned`` is the function that plans a piece."""
    if len(x.shape) != 2 or len(y.shape) != 2 or whole.predicted is None or whole.finish is not None:
        return whole
    (m, k), n = x.shape, y.shape[1]
    if whole.kernel.boxes and itemsize_of(x.dtype) == 2 and k > _SHORT:
        # Tiles have any eight columns, so little of them is empty: borders gained nothing with thousands of random products.
        return whole
    rows, columns = _inner(m), _inner(n)
    if not rows * columns * k or (rows, columns) == (m, n):
        return whole
    if out is None:
        out = GpuArray(0, (m, n), (1, m) if whole.order.transposed else (n, 1), whole.order.dtype, x.device)
    pieces, seconds = list[PlanPiece](), 0.0
    for (top, bottom), (left, right) in _border_parts(rows, columns, m, n):
        cut = (
            _part_of(x, (top, bottom), (0, k)),
            _part_of(y, (0, k), (left, right)),
            _part_of(out, (top, bottom), (left, right)),
        )
        plan = planned(*cut)
        if plan.predicted is None:
            return whole
        to_a, to_b, to_c = (part.pointer - all_of.pointer for part, all_of in zip(cut, (x, y, out), strict=True))
        pieces.append(
            PlanPiece(plan, (BufferPlace(A, to_a), BufferPlace(B, to_b), BufferPlace(C, to_c), BufferPlace(WORKSPACE)))
        )
        seconds += plan.predicted
        if seconds > _GAINS * whole.predicted:
            return whole
    tiles = pieces[0].plan
    of_all = whole.order
    order = tiles.order._replace(shapes=of_all.shapes, shape=of_all.shape, transposed=of_all.transposed)
    borders = [
        f"{each.problem.m}×{each.problem.n} by {each.kernel.name}, {seconds_text(each.predicted or 0)}"
        for each, _ in pieces[1:]
    ]
    note = f"{'; '.join(borders)}; one kernel for all of C: {seconds_text(whole.predicted)}"
    return replace(
        tiles,
        problem=whole.problem,
        order=order,
        predicted=seconds,
        pieces=tuple(pieces),
        notes=(("borders", note),),
    )


def _inner(size: int) -> int:
    """The number of rows or columns of C in whole tiles; the number of all if the rest is not treated as a border.

    >>> _inner(4097), _inner(4096), _inner(4000), _inner(7)
    (4096, 4096, 4000, 0)
    """
    return size - size % _TILE if size % _TILE <= _MOST else size


#: The first row and the one after the last, or those of columns.
_Range = tuple[int, int]


def _border_parts(rows: int, columns: int, m: int, n: int) -> Iterator[tuple[_Range, _Range]]:
    """The rows and columns of each part of C; the corner belongs to the last columns."""
    yield (0, rows), (0, columns)
    if columns < n:
        yield (0, m), (columns, n)
    if rows < m:
        yield (rows, m), (0, columns)


def _part_of(x: GpuArray, rows: _Range, columns: _Range) -> GpuArray:
    first = (rows[0] * x.strides[0] + columns[0] * x.strides[1]) * itemsize_of(x.dtype)
    shape = rows[1] - rows[0], columns[1] - columns[0]
    return x._replace(pointer=x.pointer + first, shape=shape)
