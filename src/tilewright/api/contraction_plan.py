"""Plans of contractions: how each operand is read, the order of the products, how each product is computed, and the
slices that bound memory. ``einsum`` runs a plan of this module, and ``print`` shows the plan.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cpu.contraction import ELEMENTS_PER_THREAD, is_summed_by_parts, multiply_pair, read_operand
from ..cpu.permuted_copy import copy_permuted
from ..cpu.runtime.peaks import bandwidth_gbs
from ..cpu.runtime.runner import LEAST_RECYCLED, recycled_empty
from ..errors import MemoryLimitError, UsageError
from ..host.cached_property import cached_property
from ..host.limits import get_threads
from ..host.machine import bytes_text, seconds_text
from ..product.contraction import (
    COPY_BYTES,
    PairLayout,
    Reading,
    Subscripts,
    is_better_swapped,
    lay_out_pair,
    reading_of,
    sizes_of,
)
from ..product.operands import admit_out, promoted
from ..product.plan import Rows
from ..product.precision import COMPUTED_IN, WIDEST, check_words
from .matmul import matmul, plan

# ---- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ContractionStep:
    """One product of two operands. ``left`` and ``right`` are the indices of the two operands in the list of remaining
    operands, to which the result is appended. ``dtype`` is the dtype of the result. If ``plain``, both operands have
    the dtype of the result, and the result is a new array."""

    left: int
    right: int
    layout: PairLayout
    dtype: np.dtype
    plain: bool

    @property
    def subscripts(self) -> Subscripts:
        """The subscripts of this product."""
        return Subscripts((self.layout.x, self.layout.y), self.layout.output)

    @cached_property
    def way(self) -> Callable[[np.ndarray, np.ndarray], Any] | None:
        """The function that multiplies into a new array; None if the product needs copies, unless they are so small
        that NumPy makes them in one piece."""
        layout = self.layout
        m, n, k, batch = layout.shape
        if layout.is_elementwise:
            few = m * n * batch < 2 * ELEMENTS_PER_THREAD
            return _way_of_elements(layout) if self.plain and few else None
        copies = bool(layout.looped_m or layout.looped_n or layout.cuts or self.is_inner)
        copies |= m * n * batch * self.dtype.itemsize >= LEAST_RECYCLED  # a result of ``matmul`` is not recycled
        copies |= bool(layout.x_copied) and m * k * batch > MOST_AT_ONCE
        copies |= bool(layout.y_copied) and n * k * batch > MOST_AT_ONCE
        return None if copies or not self.plain or not m * n * k * batch else _way_of_product(layout)

    @property
    def is_inner(self) -> bool:
        """Whether this step is an inner product of two vectors that is summed in parts."""
        return is_summed_by_parts(self.layout)

    def bytes_moved(self, alone: bool) -> int:
        """Return the number of bytes that the copies of this step read and write. With ``alone``, add the bytes that
        the product itself reads and writes, for a product that is not a product of matrices."""
        m, n, k, batch = self.layout.shape
        x, y, c = batch * m * k, batch * n * k, batch * m * n
        copied = (self.layout.x_copied, x), (self.layout.y_copied, y), (self.layout.c_copied, c)
        elements = sum(2 * size for copies, size in copied if copies) + (x + y + c if alone else 0)
        return elements * self.dtype.itemsize

    @property
    def operations(self) -> int:
        """The number of multiplications and additions of this step; if nothing is summed, the number of multiplications
        alone."""
        m, n, k, batch = self.layout.shape
        return m * n * k * batch * (2 if self.layout.k else 1)


@dataclass(frozen=True, eq=False, repr=False)
class ContractionPlan:
    """The plan of one contraction; ``print`` shows it.

    Attributes
    ----------
    subscripts : Subscripts
        The labels of the axes.
    sizes : dict of str to int
        The length of each label's axis.
    dtype : dtype
        The dtype of the result.
    inner : dtype
        The dtype of intermediate results.
    readings : tuple of Reading
        How each operand is read.
    steps : tuple of ContractionStep
        The products of two operands. If there are ``slices``, ``steps`` are the products of one slice.
    path : tuple of pairs of int
        The order of the products, as ``numpy.einsum_path`` gives it.
    precision : str or float
        The guaranteed error bound.
    slices : tuple of (str, int)
        The labels whose axes are cut to bound memory, each with the length of a slice.
    memory : int or None
        The bound of the memory, in bytes.
    path_by : str
        The function or library that found the order of the products.
    copy_limit : int
        The most bytes that are copied at once.
    by_numpy : bool
        Whether NumPy computes the contraction in a single loop, because it is small.

    See Also
    --------
    plan_einsum : Returns a ContractionPlan.
    tilewright.product.plan.Plan : The plan of a matrix product.
    """

    subscripts: Subscripts
    sizes: dict[str, int]
    dtype: np.dtype
    inner: np.dtype
    readings: tuple[Reading, ...]
    steps: tuple[ContractionStep, ...]
    path: tuple[tuple[int, int], ...]
    precision: str | float
    slices: tuple[tuple[str, int], ...] = ()
    memory: int | None = None
    path_by: str = ""
    copy_limit: int = COPY_BYTES
    by_numpy: bool = False

    @property
    def operations(self) -> int:
        """The number of operations of all steps, for all slices together."""
        return sum(step.operations for step in self.steps) * self.count_of_slices

    @property
    def count_of_slices(self) -> int:
        """The number of times that the steps run, which is the number of slices."""
        return math.prod(-(-self.sizes[label] // block) for label, block in self.slices)

    @cached_property
    def largest_intermediate(self) -> int:
        """The bytes of the largest intermediate result; 0 if there is no intermediate result."""
        sizes = {**self.sizes, **dict(self.slices)}
        found = [_elements(step.layout.output, sizes) * step.dtype.itemsize for step in self.steps[:-1]]
        return max(found, default=0)

    @property
    def predicted_s(self) -> float | None:
        """The predicted time of the contraction in seconds; None if the rate of one of its products has not been
        measured. The prediction adds the times of the products of matrices and the time to move the bytes of copies,
        elementwise products and inner products at the measured bandwidth."""
        total, moved = 0.0, 0
        for step in self.steps:
            step_plan = self._plan_of_step(step)
            moved += step.bytes_moved(step_plan is None)
            if step_plan is not None:
                seconds = step_plan.predicted_s
                if seconds is None:
                    return None
                total += seconds
        return (total + (moved / bandwidth_gbs(threads=get_threads()) / 1e9 if moved else 0.0)) * self.count_of_slices

    def _plan_of_step(self, step: ContractionStep) -> Any:
        """The plan of the products of matrices of a step, pieces and loops apart; None for a product of elements."""
        if step.layout.is_elementwise or (step.is_inner and self.precision == "standard"):
            return None
        m, n, k, batch = step.layout.each
        wide = self.inner if step.dtype != self.dtype or self.inner == self.dtype else self.dtype
        shape = (batch,) if batch != 1 else ()
        x, y = (np.broadcast_to(np.zeros((), wide), (*shape, *each)) for each in ((m, k), (k, n)))
        return plan(x, y, precision=self.precision)

    def __repr__(self) -> str:
        return f"<ContractionPlan: {self.subscripts}, {len(self.steps)} products; print it for the whole>"

    def __str__(self) -> str:
        sizes = ", ".join(f"{label} {size}" for label, size in self.sizes.items())
        rows: Rows = [("labels", sizes or "none"), ("dtype", self._dtypes())]
        if len(self.steps) > 1:
            rows.append(("path", f"{', '.join(map(str, self.path))}, by {self.path_by}"))
        for number, reading in enumerate(self.readings):
            if not reading.is_whole:
                rows.append((f"operand {number}", self._reading(reading)))
        if self.by_numpy:
            rows.append(("kernel", f"numpy.einsum: one loop, for at most {MOST_BY_NUMPY} combinations of all indices"))
        for number, step in enumerate(() if self.by_numpy else self.steps):
            rows += [(f"step {number}", f"{step.subscripts}"), *self._step(step)]
        if self.slices:
            cut = ", ".join(f"{label} by {block}" for label, block in self.slices)
            rows.append(
                ("slices", f"{self.count_of_slices}, in a fixed order: {cut}, for {bytes_text(self.memory)} of memory")
            )
        rows.append(("operations", f"{self.operations:.4g}"))
        if len(self.steps) > 1:
            rows.append(("largest", f"intermediate result {bytes_text(self.largest_intermediate)}"))
        seconds = self.predicted_s
        if self.steps:
            known = "nothing: a rate is not measured" if seconds is None else seconds_text(seconds)
            rows.append(("predicted", known))
        return "\n".join([f"einsum {self.subscripts} {self.dtype}", *(f"  {label:<10} {text}" for label, text in rows)])

    def _dtypes(self) -> str:
        inner = "" if self.inner == self.dtype or len(self.steps) < 2 else f"; intermediate results are {self.inner}"
        return f"{self.dtype}{inner}"

    def _reading(self, reading: Reading) -> str:
        parts = []
        if reading.dropped:
            parts.append(f"axes {', '.join(map(str, reading.dropped))} of length 1 broadcast")
        if reading.labels != reading.kept:
            parts.append(f"the diagonal {reading.labels}->{reading.kept}")
        if reading.summed:
            parts.append(f"summed over {', '.join(reading.summed)}")
        return "; ".join(parts)

    def _step(self, step: ContractionStep) -> Rows:
        layout = step.layout
        m, n, k, batch = layout.shape
        if layout.is_elementwise:
            return [("product", f"of elements, {batch} × {m} × {n}, by numpy.multiply")]
        product = f"{m} × {n} × {k} (m × n × k)" + (f", {batch} of them" if batch != 1 else "")
        looped = layout.m[: layout.looped_m] + layout.n[: layout.looped_n]
        loops = f"; one for each index of {', '.join(looped)}" if looped else ""
        groups = f"batch {layout.batch or '-'}, m {layout.m or '-'}, n {layout.n or '-'}, k {layout.k or '-'}"
        rows = [("product", f"{product}{loops}; {groups}")]
        sizes = {**layout.sizes, **dict(layout.cuts)}
        for name, copied, labels in (
            (layout.x, layout.x_copied, layout.batch + layout.m + layout.k),
            (layout.y, layout.y_copied, layout.batch + layout.n + layout.k),
            (layout.output or "result", layout.c_copied, layout.axes),
        ):
            size = bytes_text(_elements(labels, sizes) * step.dtype.itemsize)
            pieces = math.prod(-(-layout.sizes[label] // block) for label, block in layout.cuts if label in labels)
            how = f"copied as {labels}, {pieces} × {size}" if copied else "where it lies"
            rows.append((name, how))
        step_plan = self._plan_of_step(step)
        if step_plan is None:
            parts = "of parts that are in a cache, copied where neighbours are none, and added in order"
            return [rows[0], ("kernel", f"numpy.vecdot or numpy.dot {parts}")]
        kernel = step_plan.choice.kernel
        return [*rows, ("kernel", f"{kernel.name}: {kernel.idea}")]

    # ---- what runs

    def run(self, operands: Sequence[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
        """Compute the contraction of arrays with the planned shapes and dtypes, into ``out`` or a new array."""
        if self.slices:
            return self._run_slices(operands, out)
        if self.by_numpy:
            return self._run_by_numpy(operands, out)
        with np.errstate(all="ignore"):
            left = [read_operand(x, each, self.inner) for x, each in zip(operands, self.readings, strict=True)]
        multiply = functools.partial(_multiply, self.precision)
        sums = self.inner if self.precision == "standard" else None
        for step in self.steps:
            x, y = left[step.left], left[step.right]
            for position in sorted((step.left, step.right), reverse=True):
                del left[position]
            last = step is self.steps[-1]
            if step.way is not None and self.precision == "standard":
                left.append(step.way(x, y))
                continue
            c = out if last and out is not None else _empty_result(step)
            multiply_pair(step.layout, x, y, c, _copied_dtype(self, x, y), multiply, sums)
            del x, y
            left.append(c)
        return left[0] if self.steps else self._single(left[0], out)

    def _run_by_numpy(self, operands: Sequence[np.ndarray], out: np.ndarray | None) -> np.ndarray:
        """The contraction by one loop of NumPy's."""
        result = np.asarray(einsum_by_numpy(self.subscripts, operands, out))
        copies = out is None and len(operands) == 1 and np.may_share_memory(result, operands[0])
        return result.copy() if copies else result

    def _single(self, x: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """The only operand with the axes of the output."""
        reading = self.readings[0]
        labels = reading.result
        x = x.transpose([labels.index(label) for label in self.subscripts.output])
        if out is None and x.dtype == self.dtype and reading.summed:
            return x
        result = np.empty_like(x, self.dtype) if out is None else out
        with np.errstate(all="ignore"):
            copy_permuted(result, x)
        return result

    def _run_slices(self, operands: Sequence[np.ndarray], out: np.ndarray | None) -> np.ndarray:
        """The contraction slice by slice; those of summed labels innermost, in their order."""
        shape = tuple(self.sizes[label] for label in self.subscripts.output)
        result = recycled_empty(shape, self.dtype) if out is None else out
        outer = [(label, block) for label, block in self.slices if label in self.subscripts.output]
        summed = [(label, block) for label, block in self.slices if label not in self.subscripts.output]
        for place in _slices(outer, self.sizes):
            part = _sliced(result, self.subscripts.output, place)
            total = part if self.inner == self.dtype or not summed else np.empty(part.shape, self.inner)
            for number, more in enumerate(_slices(summed, self.sizes)):
                where = place | more
                parts = [_sliced(x, labels, where) for x, labels in zip(operands, self.subscripts.inputs, strict=True)]
                target = total if not number else None
                each = _plan_slice(self, parts, target)
                value = each.run(parts, target)
                if number:
                    with np.errstate(all="ignore"):
                        np.add(total, value, out=total)
            if total is not part:
                with np.errstate(all="ignore"):
                    np.copyto(part, total, casting="same_kind")
        return result


def _elements(labels: str, sizes: dict[str, int]) -> int:
    return math.prod(sizes[label] for label in labels)


def _slices(cut: list[tuple[str, int]], sizes: dict[str, int]) -> Any:
    """The indices of each cut label, slice by slice."""
    ranges = [
        [slice(low, min(low + block, sizes[label])) for low in range(0, sizes[label], block)] for label, block in cut
    ]
    return (dict(zip((label for label, _ in cut), parts, strict=True)) for parts in itertools.product(*ranges))


def _sliced(x: np.ndarray, labels: str, where: dict[str, slice]) -> np.ndarray:
    """The slice of an array; an axis of length 1 broadcasts."""
    chosen = (where.get(label, slice(None)) if x.shape[axis] != 1 else slice(None) for axis, label in enumerate(labels))
    return x[tuple(chosen)] if labels else x


def _empty_result(step: ContractionStep) -> np.ndarray:
    """A new array for the result of a step, which lies in the order of its layout."""
    layout = step.layout
    c = recycled_empty(tuple(layout.sizes[label] for label in layout.result), step.dtype)
    return c.transpose([layout.result.index(label) for label in layout.output])


def _multiply(precision: str | float, x: np.ndarray, y: np.ndarray, out: np.ndarray | None, out_dtype: Any) -> Any:
    if precision == "standard" and out_dtype is None:
        return matmul(x, y, out)
    return matmul(x, y, out, precision=precision, out_dtype=out_dtype)


def _copied_dtype(plan_: ContractionPlan, x: np.ndarray, y: np.ndarray) -> np.dtype:
    """The dtype of copies: that of the intermediate results where an operand is one."""
    return plan_.inner if plan_.inner in (x.dtype, y.dtype) else plan_.dtype


# ---- how a plan is made ----------------------------------------------------------------------------------------------

#: The most combinations of all indices for which NumPy's single loop over them is faster than separate sums and products.
MOST_BY_NUMPY = 1024

#: The most elements of an operand that NumPy copies in one call. Copying them takes less than 0.1 ms, the time of the
#: Python code that copies in parts.
MOST_AT_ONCE = 1 << 15

#: The properties of an array on which a plan depends: shape, strides and dtype.
ArrayKey = tuple[tuple[int, ...], tuple[int, ...], np.dtype]


def _key(x: np.ndarray) -> ArrayKey:
    return x.shape, x.strides, x.dtype


def plan_of_arrays(
    subscripts: Subscripts,
    arrays: Sequence[np.ndarray],
    out: Any,
    precision: str | float,
    memory: float | str | None,
    optimize: Any = True,
) -> ContractionPlan:
    """Return the plan of the contraction of these arrays, into ``out`` if it is an array. Raises any error that
    ``einsum`` raises before it multiplies."""
    limit = None
    if memory is not None:
        from ..large.streaming.places.places import parse_bytes  # imported only here: few contractions are limited

        limit = parse_bytes("memory", memory)
    check_words(precision, "classical")
    keys, of_out = tuple(map(_key, arrays)), None
    if out is not None:
        sizes = sizes_of(subscripts, tuple(x.shape for x in arrays))
        of_out = _key(admit_out(out, tuple(sizes[label] for label in subscripts.output), _result_dtype(keys)))
    return _planned(subscripts, keys, of_out, precision, limit, path_given(optimize, len(arrays)))


def path_given(optimize: Any, count: int) -> tuple[tuple[int, int], ...] | None:
    """Return the path in the argument ``optimize`` as products of two operands at a time; None if ``optimize`` leaves
    the order to the plan. Raises UsageError.

    >>> path_given(["einsum_path", (0, 2), (0, 1)], 3), path_given("greedy", 3)
    (((0, 2), (0, 1)), None)
    """
    if optimize is None or isinstance(optimize, (bool, str)):
        return None
    try:
        found = list(optimize)
        found = found[found[:1] == ["einsum_path"] :]
        if len(found) == 2 and isinstance(found[0], str):
            return None  # an optimiser, and a limit of memory
        return _pairs([tuple(map(operator.index, group)) for group in found], count)
    except TypeError:
        rule = "a bool, the name of an optimiser, or a path: a list of tuples of the operands that are multiplied next"
        raise UsageError(f"optimize is {optimize!r:.80}: it must be {rule}") from None


def _result_dtype(keys: tuple[ArrayKey, ...]) -> np.dtype:
    """The dtype of the result, in the machine's byte order."""
    dtype: np.dtype = functools.reduce(promoted, (dtype for _, _, dtype in keys))
    return dtype if dtype.isnative else np.dtype(dtype.type)


@functools.lru_cache(maxsize=1024)
def _planned(
    subscripts: Subscripts,
    keys: tuple[ArrayKey, ...],
    out: ArrayKey | None,
    precision: str | float,
    memory: int | None,
    given: tuple[tuple[int, int], ...] | None,
) -> ContractionPlan:
    """The plan for arrays of these shapes, strides and dtypes, in the order that was ``given`` if there is one."""
    shapes = tuple(shape for shape, _, _ in keys)
    sizes = sizes_of(subscripts, shapes)
    dtype = _result_dtype(keys)
    inner = _inner_dtype(dtype, precision)
    path, path_by = order_of_products(subscripts, shapes) if given is None else (given, "the argument optimize")
    if memory is None:
        return _with_path(subscripts, keys, out, precision, path, path_by, dtype, inner, COPY_BYTES)
    limit = max(1, min(COPY_BYTES, memory // 8))
    slices = _slices_within(subscripts, shapes, sizes, path, inner, memory - 3 * limit, memory)
    cut = dict(slices)
    parts = tuple(
        (tuple(min(size, cut.get(label, size)) for size, label in zip(shape, labels, strict=True)), strides, of)
        for (shape, strides, of), labels in zip(keys, subscripts.inputs, strict=True)
    )
    of_out = None if slices else out
    one = _with_path(subscripts, parts, of_out, precision, path, path_by, dtype, inner, limit)
    return ContractionPlan(
        subscripts, sizes, one.dtype, inner, one.readings, one.steps, path, precision, slices, memory, path_by, limit
    )


def _plan_slice(whole: ContractionPlan, parts: list[np.ndarray], target: np.ndarray | None) -> ContractionPlan:
    """The plan of one slice."""
    of_target = None if target is None else _key(target)
    return _with_path(
        whole.subscripts,
        tuple(map(_key, parts)),
        of_target,
        whole.precision,
        whole.path,
        whole.path_by,
        whole.inner
        if whole.inner != whole.dtype and any(x not in whole.subscripts.output for x, _ in whole.slices)
        else whole.dtype,
        whole.inner,
        whole.copy_limit,
    )


def _inner_dtype(dtype: np.dtype, precision: str | float) -> np.dtype:
    """The dtype of intermediate results."""
    name = WIDEST.get(dtype.name) if precision == "highest" else None
    if name is None and dtype.kind != "b":
        name = COMPUTED_IN.get(dtype.name)
    return dtype if name is None else np.dtype(name)


@functools.lru_cache(maxsize=1024)
def _with_path(
    subscripts: Subscripts,
    keys: tuple[ArrayKey, ...],
    out: ArrayKey | None,
    precision: str | float,
    path: tuple[tuple[int, int], ...],
    path_by: str,
    dtype: np.dtype,
    inner: np.dtype,
    limit: int,
) -> ContractionPlan:
    """The plan with this order of products."""
    sizes = sizes_of(subscripts, tuple(shape for shape, _, _ in keys))
    readings = readings_of(subscripts, tuple(shape for shape, _, _ in keys), sizes)
    left = []
    for (shape, strides, of), labels, reading in zip(keys, subscripts.inputs, readings, strict=True):
        plain = of in (dtype, inner) and of.isnative and all(stride % of.itemsize == 0 for stride in strides)
        left.append(
            (reading.result, _strides_read(labels, shape, strides, reading, inner), not plain and not reading.summed)
        )
    steps = []
    for number, (i, j) in enumerate(path):
        (x, of_x, x_converts), (y, of_y, y_converts) = left[i], left[j]
        left = [one for position, one in enumerate(left) if position not in (i, j)]
        last = number == len(path) - 1
        needed = set("".join(labels for labels, _, _ in left)) | set(subscripts.output)
        output = subscripts.output
        if not last:
            made = "".join(dict.fromkeys(label for label in x + y if label in needed))
            output = _order_for_next(made, [labels for labels, _, _ in left], path[number + 1 :], subscripts.output)
        kind = dtype if last else inner
        of_c = None
        if last and out is not None:
            of_c = dict(zip(output, out[1], strict=True))
        layout = lay_out_pair(
            *(x, y, output, sizes, of_x, of_y, of_c, kind.itemsize), converts=(x_converts, y_converts), limit=limit
        )
        if of_c is None:
            swapped = lay_out_pair(
                *(y, x, output, sizes, of_y, of_x, None, kind.itemsize), converts=(y_converts, x_converts), limit=limit
            )
            if is_better_swapped(layout, swapped):
                i, j, layout = j, i, swapped
        plain = kind == dtype == inner and not (x_converts or y_converts) and of_c is None
        steps.append(ContractionStep(i, j, layout, kind, plain))
        left.append((output, row_major_strides(layout.result, sizes, kind.itemsize), False))
    products = len(steps) == 1 and not steps[0].layout.is_elementwise and all(each.is_whole for each in readings)
    few = math.prod(sizes.values()) <= MOST_BY_NUMPY and precision == "standard" and not products and len(sizes) <= 32
    few = few and all(of.isnative for _, _, of in keys)
    return ContractionPlan(
        subscripts, sizes, dtype, inner, readings, tuple(steps), path, precision, (), None, path_by, limit, few
    )


def _order_for_next(made: str, others: list[str], path: tuple[tuple[int, int], ...], final: str) -> str:
    """The labels of an intermediate result in the order in which the product that takes it would like to read them: those
    of its batch, those that it keeps, those that it sums in the order of the other operand. ``others`` are the operands
    that are left, ``path`` the products that follow.

    >>> _order_for_next("cdef", ["fdec"], ((0, 1),), "")
    'fdec'
    """
    left, place = [*others, made], len(others)
    for i, j in path:
        x, y = left[i], left[j]
        left = [labels for position, labels in enumerate(left) if position not in (i, j)]
        needed = {*"".join(left), *final}
        if place in (i, j):
            shared = [label for label in (y if place == i else x) if label in made]
            batch, k = ([label for label in shared if (label in needed) == kept] for kept in (True, False))
            return "".join([*batch, *(label for label in made if label not in shared), *k])
        place -= (i < place) + (j < place)
        left.append("".join(label for label in dict.fromkeys(x + y) if label in needed))
    return made


def readings_of(
    subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...], sizes: dict[str, int]
) -> tuple[Reading, ...]:
    """How each operand is read."""
    whole = []
    for labels, shape in zip(subscripts.inputs, shapes, strict=True):
        whole.append(reading_of(labels, shape, sizes, frozenset(labels)).kept)
    readings = []
    for number, (labels, shape) in enumerate(zip(subscripts.inputs, shapes, strict=True)):
        others = "".join(kept for position, kept in enumerate(whole) if position != number)
        readings.append(reading_of(labels, shape, sizes, frozenset(others + subscripts.output)))
    return tuple(readings)


def _strides_read(
    labels: str, shape: tuple[int, ...], strides: tuple[int, ...], reading: Reading, dtype: np.dtype
) -> dict[str, int]:
    """The strides of what is read of an operand."""
    found: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for axis, label in enumerate(labels):
        if axis not in reading.dropped:
            found[label] = found.get(label, 0) + strides[axis]
            lengths[label] = shape[axis]
    if not reading.summed:
        return found
    return row_major_strides(reading.result, lengths, dtype.itemsize)


def row_major_strides(labels: str, sizes: dict[str, int], itemsize: int) -> dict[str, int]:
    """Return the stride in bytes of each label's axis in a C-ordered array."""
    strides = {}
    for label in reversed(labels):
        strides[label] = itemsize
        itemsize *= sizes[label]
    return strides


# ---- the order of products -------------------------------------------------------------------------------------------


def order_of_products(
    subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the order in which pairs of operands are multiplied, and the name of the function or library that found
    it. The result of each product is appended to the remaining operands."""
    if len(shapes) <= 2:
        return ((0, 1),) * (len(shapes) - 1), "none: there is one order"
    return _path_of_many(subscripts, shapes)


@functools.lru_cache(maxsize=1024)
def _path_of_many(
    subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, int], ...], str]:
    """The same for three operands or more."""
    sizes = sizes_of(subscripts, shapes)
    labels = [reading.result for reading in readings_of(subscripts, shapes, sizes)]
    of_label = {label: chr(192 + place) for place, label in enumerate(sizes)}
    try:
        from opt_einsum import contract_path

        text = ",".join("".join(map(of_label.__getitem__, each)) for each in labels)
        text += "->" + "".join(map(of_label.__getitem__, subscripts.output))
        found = contract_path(text, *([sizes[label] for label in each] for each in labels), shapes=True)[0]
        return _pairs(found, len(labels)), "opt_einsum"
    except ImportError:
        pass
    if len(sizes) > 52:
        return ((0, 1),) * (len(labels) - 1), "their order: numpy.einsum_path takes 52 labels"
    number = {label: place for place, label in enumerate(sizes)}
    arguments: list[Any] = []
    for each in labels:
        arguments += [np.broadcast_to(0.0, [sizes[label] for label in each]), [number[label] for label in each]]
    arguments.append([number[label] for label in subscripts.output])
    how = "optimal" if len(labels) < 6 else "greedy"
    found = np.einsum_path(*arguments, optimize=(how, 2**62))[0][1:]
    return _pairs(found, len(labels)), f"numpy.einsum_path ({how})"


def _pairs(path: Sequence[Sequence[int]], count: int) -> tuple[tuple[int, int], ...]:
    """The same path of products of two at a time. Raises UsageError for one that names operands that are not there, or
    leaves more than one.

    >>> _pairs([(1,), (0, 1)], 2), _pairs([(0, 1, 2, 3)], 4)
    (((0, 1),), ((0, 1), (0, 1), (0, 1)))
    """
    given, left, pairs = list(range(count)), list(range(count)), []
    for group in path:
        if any(place not in range(len(given)) for place in group) or len(set(group)) < len(group):
            raise UsageError(f"optimize has {tuple(group)} in its path: {len(given)} operands are left there")
        chosen = [given[place] for place in sorted(group)]
        given = [each for each in given if each not in chosen]
        while len(chosen) > 1:
            one, other, *rest = chosen
            pairs.append((min(places := (left.index(one), left.index(other))), max(places)))
            left = [each for each in left if each not in (one, other)]
            left.append(count)
            chosen = [*rest, count]
            count += 1
        given += chosen
    if len(left) > 1:
        raise UsageError(f"optimize has a path that leaves {len(left)} operands: add {tuple(range(len(left)))}")
    return tuple(pairs)


# ---- slices, which bound memory --------------------------------------------------------------------------------------


def _slices_within(
    subscripts: Subscripts,
    shapes: tuple[tuple[int, ...], ...],
    sizes: dict[str, int],
    path: tuple[tuple[int, int], ...],
    inner: np.dtype,
    limit: int,
    memory: int,
) -> tuple[tuple[str, int], ...]:
    """The labels that are cut so that intermediate results take at most ``limit`` bytes at any time. Each time that
    label is cut that adds the fewest operations; the last one into the fewest slices. Raises MemoryLimitError."""
    readings = readings_of(subscripts, shapes, sizes)

    def needed(blocks: dict[str, int]) -> int:
        cut = {**sizes, **blocks}
        return (
            _peak(subscripts, readings, path, cut, any(label not in subscripts.output for label in blocks))
            * inner.itemsize
        )

    def operations(blocks: dict[str, int]) -> int:
        cut = {**sizes, **blocks}
        return slices_in(blocks) * sum(_elements(labels, cut) for labels in _step_labels(subscripts, readings, path))

    def slices_in(blocks: dict[str, int]) -> int:
        return math.prod(-(-sizes[label] // block) for label, block in blocks.items())

    def largest_block(blocks: dict[str, int], label: str) -> int:
        low, high = 1, sizes[label]
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needed(blocks | {label: middle}) <= limit else (low, middle)
        return low

    blocks: dict[str, int] = {}
    while needed(blocks) > limit:
        left = [label for label in sizes if label not in blocks and sizes[label] > 1]
        if not left:
            raise MemoryLimitError(
                f"memory is {memory:,} bytes, and slices of one index of each label need {needed(blocks):,} in intermediate "
                f"results: allow {needed(blocks) * 8 // 5 + 8:,}"
            )
        enough = [label for label in left if needed(blocks | {label: 1}) <= limit]
        if not enough:
            label = min(left, key=lambda each: (needed(blocks | {each: 1}), operations(blocks | {each: 1})))
            blocks[label] = 1
            continue
        last = [blocks | {label: largest_block(blocks, label)} for label in enough]
        blocks = min(last, key=lambda each: (operations(each), slices_in(each)))
    return tuple(sorted(blocks.items(), key=lambda one: list(sizes).index(one[0])))


def _step_labels(subscripts: Subscripts, readings: tuple[Reading, ...], path: tuple[tuple[int, int], ...]) -> list[str]:
    """All labels of each product."""
    return ["".join(dict.fromkeys(x + y)) for x, y, _ in labels_of_products(subscripts, readings, path)]


def labels_of_products(
    subscripts: Subscripts, readings: tuple[Reading, ...], path: tuple[tuple[int, int], ...]
) -> list[tuple[str, str, str]]:
    """Return, for each product of the path, the labels of both operands and of the result."""
    left = [reading.result for reading in readings]
    found = []
    for i, j in path:
        x, y = left[i], left[j]
        left = [labels for position, labels in enumerate(left) if position not in (i, j)]
        needed = {*"".join(left), *subscripts.output}
        left.append("".join(label for label in dict.fromkeys(x + y) if label in needed))
        found.append((x, y, left[-1]))
    return found


def _peak(
    subscripts: Subscripts,
    readings: tuple[Reading, ...],
    path: tuple[tuple[int, int], ...],
    sizes: dict[str, int],
    sums_slices: bool,
) -> int:
    """The most elements of intermediate results at any time; the last result is none, unless it is added to that of
    other slices."""
    alive = [_elements(reading.result, sizes) if reading.summed else 0 for reading in readings]
    most = sum(alive)
    for number, ((i, j), (_, _, output)) in enumerate(
        zip(path, labels_of_products(subscripts, readings, path), strict=True)
    ):
        last = number == len(path) - 1
        made = 0 if last and not sums_slices else _elements(output, sizes) * (2 if last else 1)
        most = max(most, sum(alive) + made)
        alive = [*(size for position, size in enumerate(alive) if position not in (i, j)), made]
    return most


# ---- the function of a step ------------------------------------------------------------------------------------------


def einsum_by_numpy(subscripts: Subscripts, operands: Sequence[np.ndarray], out: Any) -> Any:
    """Return the contraction of the operands, which NumPy computes in one loop over all labels."""
    number = {label: place for place, label in enumerate(dict.fromkeys("".join(subscripts.inputs)))}
    arguments: list[Any] = []
    for x, labels in zip(operands, subscripts.inputs, strict=True):
        arguments += [x, [number[label] for label in labels]]
    return np.einsum(*arguments, [number[label] for label in subscripts.output], out=out)


def _way_of_product(layout: PairLayout) -> Callable[[np.ndarray, np.ndarray], Any]:
    """The function that multiplies two arrays of one dtype by ``matmul`` of views of them, into a new array."""
    m, n, k, _ = layout.shape
    batch = tuple(layout.sizes[label] for label in layout.batch)
    as_row, as_column = not layout.m and not batch, not layout.n and not batch
    first = _view(layout.x, layout.batch + layout.m + layout.k, (*batch, *(() if as_row else (m,)), k), layout.sizes)
    last = (k,) if as_column else (k, n)
    second = _view(layout.y, layout.batch + layout.k + layout.n, (*batch, *last), layout.sizes)
    made = (*batch, *(() if as_row else (m,)), *(() if as_column else (n,)))
    shape = tuple(layout.sizes[label] for label in layout.result)
    order = [layout.result.index(label) for label in layout.output]
    if first is None and second is None and made == shape and order == sorted(order):
        return matmul

    def way(x: np.ndarray, y: np.ndarray) -> Any:
        c = matmul(x if first is None else first(x), y if second is None else second(y))
        return c.reshape(shape).transpose(order) if shape else c

    return way


def _way_of_elements(layout: PairLayout) -> Callable[[np.ndarray, np.ndarray], Any]:
    """The function that multiplies the elements of two arrays of one dtype into a new array."""
    sizes, order = layout.sizes, [layout.axes.index(label) for label in layout.output]
    of_x, of_y = layout.batch + layout.m, layout.batch + layout.n
    first = _view(layout.x, of_x, (*(sizes[label] for label in of_x), *(1,) * len(layout.n)), sizes)
    batch = [sizes[label] for label in layout.batch]
    second = _view(layout.y, of_y, (*batch, *(1,) * len(layout.m), *(sizes[label] for label in layout.n)), sizes)

    def way(x: np.ndarray, y: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            c = np.multiply(x if first is None else first(x), y if second is None else second(y))
        return c.transpose(order) if order else c

    return way


def _view(labels: str, wanted: str, shape: tuple[int, ...], sizes: Any) -> Callable[[np.ndarray], np.ndarray] | None:
    """The function that permutes and reshapes an array; None if there is nothing to do."""
    order = [labels.index(label) for label in wanted]
    if tuple(sizes[label] for label in wanted) == shape:
        if order == sorted(order):
            return None
        return lambda x: x.transpose(order)
    return lambda x: x.transpose(order).reshape(shape)
