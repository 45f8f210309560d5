"""``einsum`` and what is like it: sums of products over labelled axes, as products of matrices.

A contraction goes through four stages: subscripts → a plan (``plan_einsum``), which is cached → the operands, each
read once → products of two at a time, by ``matmul``. ``product.contraction`` decides how two operands are multiplied,
and ``cpu.contraction`` does it; arrays of other libraries are permuted and reshaped by their library.
"""

from __future__ import annotations

import functools
import itertools
import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cpu.contraction import ELEMENTS_PER_THREAD, is_summed_by_parts, multiply_pair, read_operand
from ..cpu.permuted_copy import copy_permuted
from ..cpu.runtime.peaks import bandwidth_gbs
from ..errors import MemoryLimitError, OperandError, ShapeError, UsageError
from ..gpu.arrays.host_libraries import host_library
from ..gpu.arrays.libraries import is_of_a_library, is_on_gpu
from ..host.cached_property import cached_property
from ..host.limits import get_threads
from ..host.machine import bytes_text, seconds_text
from ..product.contraction import (
    COPY_BYTES,
    PairLayout,
    Reading,
    Subscripts,
    lay_out_pair,
    parse_sublists,
    parse_subscripts,
    reading_of,
    sizes_of,
)
from ..product.operands import NUMPY_ONLY_DTYPES, admit, admit_out, array_or_shape, promoted
from ..product.plan import Rows
from ..product.precision import COMPUTED_IN, WIDEST, check_words
from .matmul import matmul, plan

# ---- the public calls ------------------------------------------------------------------------------------------------


def einsum(
    *operands: Any, out: Any = None, precision: str | float = "standard", memory: float | str | None = None
) -> Any:
    """The sum of products that ``subscripts`` describe, with the semantics of ``numpy.einsum``.

    ``einsum("ij,jk->ik", a, b)``: each operand's axes are named by labels, of which those that the output lacks are
    summed. Without ``->`` the output has the labels that occur once, in alphabetical order. ``...`` stands for any
    axes, which broadcast; so does an axis of length 1. A label that an operand has twice takes its diagonal. Any
    characters are labels, and ``einsum(a, [0, 1], b, [1, 2], [0, 2])`` takes lists of them. The result never shares
    memory with an operand; its axes lie in whatever order takes the fewest copies, as those of NumPy's do.

    dtypes are those of ``matmul``, promoted over all operands; integers wrap around, bool is logical. Intermediate
    results of float16 and bfloat16 are float32. Objects and long double are left to NumPy. Arrays of other libraries,
    on the host or a GPU, are permuted by their library and multiplied by ``matmul``, with gradients where that has
    them.

    Three operands or more are multiplied two by two, in the order that ``opt_einsum`` finds where it is installed,
    and ``numpy.einsum_path`` elsewhere. Each such product is one of matrices, or a batch of them, which are read
    where they lie or copied in pieces of at most 32 MiB. ``plan_einsum`` says how.

    ``out`` receives the result, as that of ``matmul`` does: any strides, cast by the ``same_kind`` rule.
    ``precision`` is that of ``matmul``, for each product of two; with "highest" intermediate results have the wider
    dtype, too.

    ``memory`` ("2GiB", or bytes) bounds intermediate results and copies of NumPy's arrays together, beside the result
    and the workspace of kernels. To keep it, labels are cut into slices, whose sums are added in a fixed order, so
    bits do not depend on threads.

    Raises UsageError (subscripts, ``precision``), ShapeError, DTypeError, OperandError, MemoryLimitError (no slices
    are small enough).

    >>> import numpy as np, tilewright as tw
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 4))
    >>> tw.einsum("ij,jk->k", a, b)
    array([15., 15., 15., 15.])
    >>> tw.einsum("ii", np.eye(3))
    np.float64(3.0)
    """
    short = None
    if out is None and memory is None and precision == "standard" and operands and type(operands[0]) is str:
        short = _short_key(operands)
        if short is not None and (way := _short_ways.get(short)) is not None:
            return way(*operands[1:])
    subscripts, arrays = _parsed(operands)
    return _contract(subscripts, arrays, out, precision, memory, short)


def plan_einsum(
    *operands: Any, out: Any = None, precision: str | float = "standard", memory: float | str | None = None
) -> ContractionPlan:
    """What ``einsum`` with these arguments runs: the same object. Its text has the order of products, and for each
    one its subscripts, its size as a product of matrices, which operands are copied, and the kernel. Nothing is
    multiplied.

    The operands are NumPy's arrays; a tuple of whole numbers is a shape, and stands for an array of float64.

    Raises what ``einsum`` raises before it multiplies.

    >>> import tilewright as tw
    >>> p = tw.plan_einsum("ij,jk,kl->il", (10, 20), (20, 5), (5, 300))
    >>> [str(step.subscripts) for step in p.steps], p.operations
    (['ij,jk->ik', 'ik,kl->il'], 32000)
    """
    subscripts, arrays = _parsed(tuple(_array_of_shape(x) for x in operands))
    if is_of_a_library(*arrays, out):
        raise OperandError("plan_einsum plans for NumPy's arrays: pass shapes, as tuples, for those of another library")
    return _plan_of(subscripts, [_admitted(x, number) for number, x in enumerate(arrays)], out, precision, memory)


def tensordot(a: Any, b: Any, axes: Any = 2, *, out: Any = None, precision: str | float = "standard") -> Any:
    """The sum of products over axes of ``a`` and ``b``, with the semantics of ``numpy.tensordot``.

    ``axes``: a number, of the last axes of ``a`` and the first of ``b``; or two lists of axes, or two axes, which are
    summed in pairs. With 0 it is the outer product. The result has the other axes of ``a``, then those of ``b``.
    dtypes, arrays, ``out`` and ``precision`` are as for ``einsum``.

    Raises ShapeError (axes of different lengths), UsageError (axes that are not there).

    >>> import numpy as np, tilewright as tw
    >>> tw.tensordot(np.ones((2, 3, 4)), np.ones((4, 3, 5)), axes=([1, 2], [1, 0])).shape
    (2, 5)
    """
    a, b = _axes_known(a, "a"), _axes_known(b, "b")
    of_a, of_b = _tensordot_axes(axes, a.ndim, b.ndim)
    for x, y in zip(of_a, of_b, strict=True):
        if a.shape[x] != b.shape[y]:
            raise ShapeError(
                f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: axis {x} of a and axis {y} of b are summed together, "
                "so they must be equally long"
            )
    first = list(range(a.ndim))
    second = [of_a[of_b.index(axis)] if axis in of_b else a.ndim + axis for axis in range(b.ndim)]
    rest = [label for label in [*first, *second] if label not in of_a]
    subscripts = _subscripts_of((tuple(first), tuple(second)), tuple(rest), (a.ndim, b.ndim))
    return _contract_two(subscripts, a, b, out, precision)


def vecdot(a: Any, b: Any, /, *, axis: int = -1, out: Any = None, precision: str | float = "standard") -> Any:
    """The dot products of vectors along an axis, those of ``a`` conjugated, as ``numpy.vecdot`` and the array API
    have them.

    ``a`` is (…, n), ``b`` is (…, n), with n at ``axis`` of each; the other axes broadcast. dtypes, arrays, ``out`` and
    ``precision`` are as for ``einsum``.

    Raises ShapeError (n or batch mismatch, a scalar), UsageError (no such axis).

    >>> import numpy as np, tilewright as tw
    >>> tw.vecdot(np.array([1j, 2]), np.array([1j, 1]))
    np.complex128(3+0j)
    """
    a, b = _axes_known(a, "a"), _axes_known(b, "b")
    labels = []
    for name, x in (("a", a), ("b", b)):
        core = _axis_of(axis, x, name)
        before = [("axis", place - x.ndim + (place < core)) for place in range(x.ndim) if place != core]
        labels.append([*before[:core], "core", *before[core:]])
    _check_core("n", (a, labels[0].index("core")), (b, labels[1].index("core")))
    batch = max(([label for label in each if label != "core"] for each in labels), key=len)
    subscripts = _subscripts_of(tuple(map(tuple, labels)), tuple(batch), (a.ndim, b.ndim))
    return _contract_two(subscripts, _conjugated(a), b, out, precision)


def matvec(a: Any, x: Any, /, *, out: Any = None, precision: str | float = "standard") -> Any:
    """The products of matrices and vectors, as ``numpy.matvec``: ``a`` is (…, m, n), ``x`` is (…, n), the result (…,
    m).

    Leading axes broadcast. dtypes, arrays, ``out`` and ``precision`` are as for ``einsum``.

    Raises ShapeError (n or batch mismatch, too few axes).

    >>> import numpy as np, tilewright as tw
    >>> tw.matvec(np.ones((5, 2, 3)), np.ones(3)).shape
    (5, 2)
    """
    a, x = _axes_known(a, "a", 2), _axes_known(x, "x")
    _check_core("n", (a, a.ndim - 1), (x, x.ndim - 1))
    return _contract_two(parse_subscripts("...mn,...n->...m", (a.ndim, x.ndim)), a, x, out, precision)


def vecmat(x: Any, a: Any, /, *, out: Any = None, precision: str | float = "standard") -> Any:
    """The products of vectors, which are conjugated, and matrices, as ``numpy.vecmat``: ``x`` is (…, n), ``a`` is (…,
    n, m), the result (…, m).

    Leading axes broadcast. dtypes, arrays, ``out`` and ``precision`` are as for ``einsum``.

    Raises ShapeError (n or batch mismatch, too few axes).

    >>> import numpy as np, tilewright as tw
    >>> tw.vecmat(np.array([1j]), np.array([[1.0, 2.0]]))
    array([0.-1.j, 0.-2.j])
    """
    x, a = _axes_known(x, "x"), _axes_known(a, "a", 2)
    _check_core("n", (x, x.ndim - 1), (a, a.ndim - 2))
    return _contract_two(parse_subscripts("...n,...nm->...m", (x.ndim, a.ndim)), _conjugated(x), a, out, precision)


def multi_dot(arrays: Sequence[Any], *, out: Any = None, precision: str | float = "standard") -> Any:
    """The product of a chain of matrices, in the order that takes the fewest operations, as ``numpy.linalg.multi_dot``.

    The first and the last of ``arrays``, two or more, may be vectors: a row and a column. The order is found by dynamic
    programming. dtypes, arrays, ``out`` and ``precision`` are those of ``matmul``.

    Raises ShapeError (a mismatch of two neighbours, other axes), UsageError (fewer than two arrays).

    >>> import numpy as np, tilewright as tw
    >>> tw.multi_dot([np.ones((10, 100)), np.ones((100, 5)), np.ones((5, 50))]).shape
    (10, 50)
    """
    chain = [_axes_known(x, f"arrays[{number}]") for number, x in enumerate(arrays)]
    if len(chain) < 2:
        raise UsageError(f"multi_dot takes two arrays or more, got {len(chain)}")
    for number, x in enumerate(chain):
        most = (1, 2) if number in (0, len(chain) - 1) else (2,)
        if x.ndim not in most:
            rule = "a matrix or a vector" if 1 in most else "a matrix: only the first and the last may be vectors"
            raise ShapeError(f"arrays[{number}] is {tuple(x.shape)}: it must be {rule}")
    for number, (x, y) in enumerate(itertools.pairwise(chain)):
        if x.shape[-1] != y.shape[0]:
            raise ShapeError(
                f"arrays[{number}] is {tuple(x.shape)}, arrays[{number + 1}] is {tuple(y.shape)}: the columns of the one "
                "must be as many as the rows of the other"
            )
    sides = [chain[0].shape[0] if chain[0].ndim == 2 else 1, *(x.shape[0] for x in chain[1:])]
    sides.append(chain[-1].shape[-1] if chain[-1].ndim == 2 else 1)
    best = chain_order(tuple(sides))

    def product(first: int, last: int, into: Any = None) -> Any:
        if first == last:
            return chain[first]
        cut = best[first, last]
        return matmul(product(first, cut), product(cut + 1, last), into, precision=precision)

    return product(0, len(chain) - 1, out)


@functools.lru_cache(maxsize=256)
def chain_order(sides: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Of each stretch of a chain of matrices, sides[i]×sides[i + 1] each, the last matrix of the first factor of its
    product, with the fewest multiply-adds in all (Cormen et al., Introduction to Algorithms, 4th ed., 14.2).

    >>> chain_order((10, 100, 5, 50))[0, 2], chain_order((100, 5, 50, 10))[0, 2]
    (1, 0)
    """
    count = len(sides) - 1
    cost = {(i, i): 0 for i in range(count)}
    best = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], best[i, j] = min(
                (cost[i, cut] + cost[cut + 1, j] + sides[i] * sides[cut + 1] * sides[j + 1], cut) for cut in range(i, j)
            )
    return best


# ---- arguments -------------------------------------------------------------------------------------------------------


def _parsed(operands: tuple[Any, ...]) -> tuple[Subscripts, tuple[Any, ...]]:
    """The subscripts and the arrays of a call of either form."""
    if not operands:
        raise UsageError("einsum needs subscripts and arrays, such as einsum('ij,jk', a, b)")
    if isinstance(operands[0], str):
        arrays = tuple(map(_with_axes, operands[1:]))
        if not arrays:
            raise UsageError(f"subscripts {operands[0]!r} are of one operand or more, given is none")
        # torch.compile warns of cached functions.
        parse = parse_subscripts.__wrapped__ if is_of_a_library(*arrays) else parse_subscripts
        return parse(operands[0], tuple(x.ndim for x in arrays)), arrays
    arrays = tuple(map(_with_axes, operands[: len(operands) // 2 * 2 : 2]))
    if not arrays:
        raise UsageError("einsum needs subscripts: a text first, or a list of labels after each array")
    output = operands[-1] if len(operands) % 2 else None
    return parse_sublists(operands[1::2], output, tuple(x.ndim for x in arrays)), arrays


@functools.lru_cache(maxsize=1024)
def _subscripts_of(sublists: tuple[Any, ...], output: tuple[Any, ...], axes: tuple[int, ...]) -> Subscripts:
    """``parse_sublists``, cached."""
    return parse_sublists(sublists, output, axes)


def _contract_two(subscripts: Subscripts, a: Any, b: Any, out: Any, precision: str | float) -> Any:
    """The contraction of two arrays, by the short way where there is one."""
    if out is not None or precision != "standard":
        return _contract(subscripts, (a, b), out, precision)
    short = _short_key((subscripts, a, b))
    way = None if short is None else _short_ways.get(short)
    return _contract(subscripts, (a, b), None, precision, None, short) if way is None else way(a, b)


def _with_axes(x: Any) -> Any:
    """``x``, or an array of what has no axes of its own, such as a list or a number."""
    return x if hasattr(x, "ndim") and hasattr(x, "shape") else np.asarray(x)


def _array_of_shape(x: Any) -> Any:
    """An array of float64 of a shape, with the strides of a row-major one, whose elements are never read; anything
    else as it is."""
    if not (isinstance(x, tuple) and all(isinstance(size, int) for size in x)):
        return x
    shape = array_or_shape(x, "an operand").shape  # raises for sizes that no array has
    strides = _row_major(
        "".join(map(chr, range(len(shape)))), dict(zip(map(chr, range(len(shape))), shape, strict=True)), 8
    )
    return np.lib.stride_tricks.as_strided(np.zeros(1), shape, tuple(strides.values())[::-1], writeable=False)


def _admitted(x: Any, number: int) -> np.ndarray:
    """An operand as a plain array of a numeric dtype. Raises OperandError and DTypeError."""
    name = f"operand {number}"
    return admit(x, name, by_numpy=True) if x.ndim else admit(np.asarray(x)[None], name, by_numpy=True)[0, ...]


def _axes_known(x: Any, name: str, least: int = 1) -> Any:
    """The argument ``name`` with axes of its own. Raises ShapeError for fewer than ``least``."""
    x = _with_axes(x)
    if x.ndim < least and name[:6] != "arrays":
        raise ShapeError(f"{name} is {tuple(x.shape)}: it must have {least} {'axis' if least == 1 else 'axes'} or more")
    return x


def _axis_of(axis: int, x: Any, name: str) -> int:
    if not isinstance(axis, int | np.integer) or not -x.ndim <= axis < x.ndim:
        raise UsageError(f"axis {axis!r}: {name} is {tuple(x.shape)}, which has no such axis")
    return int(axis) % x.ndim


def _check_core(size: str, one: tuple[Any, int], other: tuple[Any, int]) -> None:
    """Raises ShapeError unless the vectors are equally long: they do not broadcast."""
    (a, i), (b, j) = one, other
    if a.shape[i] != b.shape[j]:
        raise ShapeError(
            f"{size} mismatch: the operands are {tuple(a.shape)} and {tuple(b.shape)}: axis {i} of the first must be "
            f"as long as axis {j} of the second"
        )


def _conjugated(x: Any) -> Any:
    """The complex conjugate; itself where it is real."""
    if not is_of_a_library(x):
        return np.conjugate(x) if x.dtype.kind in "cO" else x
    return x.conj() if "complex" in str(x.dtype) else x


def _tensordot_axes(axes: Any, of_a: int, of_b: int) -> tuple[list[int], list[int]]:
    """The axes of each operand that are summed in pairs. Raises UsageError."""
    if isinstance(axes, int | np.integer):
        if not 0 <= axes <= min(of_a, of_b):
            raise UsageError(
                f"axes is {axes}: a has {of_a} axes and b has {of_b}; it must be from 0 to {min(of_a, of_b)}"
            )
        return list(range(of_a - int(axes), of_a)), list(range(int(axes)))
    try:
        pair = [[axis] if isinstance(axis, int | np.integer) else list(axis) for axis in axes]
        first, second = pair
    except (TypeError, ValueError):
        raise UsageError(f"axes is {axes!r:.80}: it must be a number of axes, or two lists of axes") from None
    found = []
    for name, chosen, ndim in (("a", first, of_a), ("b", second, of_b)):
        if any(not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim for axis in chosen):
            raise UsageError(f"axes of {name} are {chosen}: {name} has {ndim} axes")
        found.append([int(axis) % ndim for axis in chosen])
        if len(set(found[-1])) < len(chosen):
            raise UsageError(f"axes of {name} are {chosen}: each may occur once")
    if len(first) != len(second):
        raise UsageError(f"axes are {first} of a and {second} of b: they must be as many")
    return found[0], found[1]


# ---- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ContractionStep:
    """One product of two operands, ``left`` and ``right`` in the list of those that are left; the result is appended
    to it. ``dtype``: that of the result. ``plain``: both operands have it, too, and the result is a new array."""

    left: int
    right: int
    layout: PairLayout
    dtype: np.dtype
    plain: bool

    @property
    def subscripts(self) -> Subscripts:
        """What it computes."""
        return Subscripts((self.layout.x, self.layout.y), self.layout.output)

    @cached_property
    def way(self) -> Callable[[np.ndarray, np.ndarray], Any] | None:
        """The function that multiplies into a new array where nothing is copied, or so little that NumPy copies it at
        once."""
        layout = self.layout
        m, n, k, batch = layout.shape
        if layout.is_elementwise:
            few = m * n * batch < 2 * ELEMENTS_PER_THREAD
            return _way_of_elements(layout) if self.plain and few else None
        copies = bool(layout.looped_m or layout.looped_n or layout.cuts or self.is_inner)
        copies |= bool(layout.x_copied) and m * k * batch > MOST_AT_ONCE
        copies |= bool(layout.y_copied) and n * k * batch > MOST_AT_ONCE
        return None if copies or not self.plain or not m * n * k * batch else _way_of_product(layout)

    @property
    def is_inner(self) -> bool:
        """Whether it is the product of two vectors that is summed by parts."""
        return is_summed_by_parts(self.layout)

    def bytes_moved(self, alone: bool) -> int:
        """Bytes that are read and written by copies; ``alone``: and by the product, if it is none of matrices."""
        m, n, k, batch = self.layout.shape
        x, y, c = batch * m * k, batch * n * k, batch * m * n
        copied = (self.layout.x_copied, x), (self.layout.y_copied, y), (self.layout.c_copied, c)
        elements = sum(2 * size for copies, size in copied if copies) + (x + y + c if alone else 0)
        return elements * self.dtype.itemsize

    @property
    def operations(self) -> int:
        """Multiplications and additions; where nothing is summed, multiplications alone."""
        m, n, k, batch = self.layout.shape
        return m * n * k * batch * (2 if self.layout.k else 1)


@dataclass(frozen=True, eq=False, repr=False)
class ContractionPlan:
    """A contraction, as it will run; ``str()`` prints it.

    ``readings`` say how each operand is read, and ``steps`` are the products of two. ``slices`` are the labels that
    are cut to bound memory, with the indices of a slice; ``steps`` are then those of one slice. ``dtype`` is the
    result's, ``inner`` that of intermediate results, ``multiplied`` that of copies of operands.
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
        """Operations of all steps, of all slices."""
        return sum(step.operations for step in self.steps) * self.count_of_slices

    @property
    def count_of_slices(self) -> int:
        """How often the steps run."""
        return math.prod(-(-self.sizes[label] // block) for label, block in self.slices)

    @cached_property
    def largest_intermediate(self) -> int:
        """Bytes of the largest result but the last; 0 without any."""
        sizes = {**self.sizes, **dict(self.slices)}
        found = [_elements(step.layout.output, sizes) * step.dtype.itemsize for step in self.steps[:-1]]
        return max(found, default=0)

    @property
    def predicted_s(self) -> float | None:
        """Predicted seconds: of the products of matrices, and of the bytes that copies, products of elements and inner
        products move, by the measured bandwidth; None if the rate of a product is not measured."""
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
        """The contraction of arrays like those that it was planned for, into ``out`` or a new array."""
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
        result = np.empty(shape, self.dtype) if out is None else out
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
    c = np.empty(tuple(layout.sizes[label] for label in layout.result), step.dtype)
    return c.transpose([layout.result.index(label) for label in layout.output])


def _multiply(precision: str | float, x: np.ndarray, y: np.ndarray, out: np.ndarray | None, out_dtype: Any) -> Any:
    if precision == "standard" and out_dtype is None:
        return matmul(x, y, out)
    return matmul(x, y, out, precision=precision, out_dtype=out_dtype)


def _copied_dtype(plan_: ContractionPlan, x: np.ndarray, y: np.ndarray) -> np.dtype:
    """The dtype of copies: that of the intermediate results where an operand is one."""
    return plan_.inner if plan_.inner in (x.dtype, y.dtype) else plan_.dtype


# ---- how a plan is made ----------------------------------------------------------------------------------------------

#: The most combinations of all indices for which NumPy's one loop over them is faster than sums and products one by
#: one.
MOST_BY_NUMPY = 1024

#: The most elements of an operand that is copied at once, by NumPy.
MOST_AT_ONCE = 1 << 13

#: What a plan depends on of an array: shape, strides and dtype.
ArrayKey = tuple[tuple[int, ...], tuple[int, ...], np.dtype]


def _key(x: np.ndarray) -> ArrayKey:
    return x.shape, x.strides, x.dtype


def _plan_of(
    subscripts: Subscripts, arrays: Sequence[np.ndarray], out: Any, precision: str | float, memory: float | str | None
) -> ContractionPlan:
    limit = None
    if memory is not None:
        from ..large.streaming.places.places import parse_bytes  # imported only here: few contractions are limited

        limit = parse_bytes("memory", memory)
    check_words(precision, "classical")
    of_out = None if out is None or not isinstance(out, np.ndarray) else _key(out)
    return _planned(subscripts, tuple(map(_key, arrays)), of_out, precision, limit)


@functools.lru_cache(maxsize=1024)
def _planned(
    subscripts: Subscripts, keys: tuple[ArrayKey, ...], out: ArrayKey | None, precision: str | float, memory: int | None
) -> ContractionPlan:
    """The plan for arrays of these shapes, strides and dtypes."""
    shapes = tuple(shape for shape, _, _ in keys)
    sizes = sizes_of(subscripts, shapes)
    dtype = functools.reduce(promoted, (dtype for _, _, dtype in keys))
    if not dtype.isnative:
        dtype = np.dtype(dtype.type)
    inner = _inner_dtype(dtype, precision)
    path, path_by = _path(subscripts, shapes)
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
    readings = _readings(subscripts, tuple(shape for shape, _, _ in keys), sizes)
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
        swapped = of_c is None and output and output[-1] in x and output[-1] not in y
        if swapped:
            i, j, x, y, of_x, of_y, x_converts, y_converts = j, i, y, x, of_y, of_x, y_converts, x_converts
        layout = lay_out_pair(
            *(x, y, output, sizes, of_x, of_y, of_c, kind.itemsize), converts=(x_converts, y_converts), limit=limit
        )
        plain = kind == dtype == inner and not (x_converts or y_converts) and of_c is None
        steps.append(ContractionStep(i, j, layout, kind, plain))
        left.append((output, _row_major(layout.result, sizes, kind.itemsize), False))
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


def _readings(
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
    return _row_major(reading.result, lengths, dtype.itemsize)


def _row_major(labels: str, sizes: dict[str, int], itemsize: int) -> dict[str, int]:
    strides = {}
    for label in reversed(labels):
        strides[label] = itemsize
        itemsize *= sizes[label]
    return strides


# ---- the order of products -------------------------------------------------------------------------------------------


def _path(subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[tuple[int, int], ...], str]:
    """Which two operands are multiplied first, then, and so on, and what found it. The result of each product is put
    behind the operands that are left."""
    if len(shapes) <= 2:
        return ((0, 1),) * (len(shapes) - 1), "none: there is one order"
    return _path_of_many(subscripts, shapes)


@functools.lru_cache(maxsize=1024)
def _path_of_many(
    subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, int], ...], str]:
    """The same for three operands or more."""
    sizes = sizes_of(subscripts, shapes)
    labels = [reading.result for reading in _readings(subscripts, shapes, sizes)]
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


def _pairs(path: Sequence[tuple[int, ...]], count: int) -> tuple[tuple[int, int], ...]:
    """The same path of products of two at a time."""
    pairs = []
    for group in path:
        chosen = sorted(group)
        while len(chosen) > 1:
            pairs.append((chosen[0], chosen[1]))
            count -= 1
            rest = [position - 2 for position in chosen[2:]]
            chosen = sorted([*rest, count - 1])
    while count > 1:
        pairs.append((0, 1))
        count -= 1
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
    readings = _readings(subscripts, shapes, sizes)

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
    return ["".join(dict.fromkeys(x + y)) for x, y, _ in _walk(subscripts, readings, path)]


def _walk(
    subscripts: Subscripts, readings: tuple[Reading, ...], path: tuple[tuple[int, int], ...]
) -> list[tuple[str, str, str]]:
    """The labels of both operands and of the result of each product."""
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
    for number, ((i, j), (_, _, output)) in enumerate(zip(path, _walk(subscripts, readings, path), strict=True)):
        last = number == len(path) - 1
        made = 0 if last and not sums_slices else _elements(output, sizes) * (2 if last else 1)
        most = max(most, sum(alive) + made)
        alive = [*(size for position, size in enumerate(alive) if position not in (i, j)), made]
    return most


# ---- how a call runs -------------------------------------------------------------------------------------------------

#: The function for arrays of known subscripts, shapes, strides and dtypes.
_short_ways: dict[tuple[Any, ...], Callable[..., Any]] = {}
#: The most of them.
MOST_SHORT_WAYS = 4096
#: The characters that NumPy's subscripts have.
_OF_NUMPY = set(string.ascii_letters + ",->. ")


def _contract(
    subscripts: Subscripts,
    arrays: Sequence[Any],
    out: Any,
    precision: str | float,
    memory: float | str | None = None,
    short: tuple[Any, ...] | None = None,
) -> Any:
    """The contraction of checked arguments; ``short`` is the key of the short way for later calls like this one."""
    if is_of_a_library(*arrays, out):
        return _contract_of_library(subscripts, arrays, out, precision, memory)
    operands = [_admitted(x, number) for number, x in enumerate(arrays)]
    if any(x.dtype.name in NUMPY_ONLY_DTYPES for x in operands):
        result = einsum_by_numpy(subscripts, operands, out)
        views = out is None and isinstance(result, np.ndarray) and np.may_share_memory(result, operands[0])
        return result.copy() if views else result
    plan_ = _plan_of(subscripts, operands, out, precision, memory)
    if out is None:
        if short is not None:
            _remember(short, plan_)
        result = plan_.run(operands)
        return result if result.ndim else result[()]
    shape = tuple(plan_.sizes[label] for label in subscripts.output)
    target = admit_out(out, shape, plan_.dtype)
    direct = target.dtype == plan_.dtype and target.dtype.isnative and target.flags.aligned
    if direct and not any(np.may_share_memory(target, x) for x in operands):
        plan_.run(operands, target)
    else:
        with np.errstate(all="ignore"):
            np.copyto(
                target, _plan_of(subscripts, operands, None, precision, memory).run(operands), casting="same_kind"
            )
    return out


def einsum_by_numpy(subscripts: Subscripts, operands: Sequence[np.ndarray], out: Any) -> Any:
    """What NumPy computes, in one loop over all labels."""
    number = {label: place for place, label in enumerate(dict.fromkeys("".join(subscripts.inputs)))}
    arguments: list[Any] = []
    for x, labels in zip(operands, subscripts.inputs, strict=True):
        arguments += [x, [number[label] for label in labels]]
    return np.einsum(*arguments, [number[label] for label in subscripts.output], out=out)


def _short_key(operands: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The text, and what a plan depends on of each array; None if one of them is not a plain array."""
    if len(operands) == 3:
        text, a, b = operands
        if type(a) is not np.ndarray or type(b) is not np.ndarray:
            return None
        return (text, a.shape, b.shape, a.strides, b.strides, a.dtype, b.dtype)
    key: list[Any] = [operands[0]]
    for x in operands[1:]:
        if type(x) is not np.ndarray:
            return None
        key += (x.shape, x.strides, x.dtype)
    return tuple(key)


def _remember(key: tuple[Any, ...], plan_: ContractionPlan) -> None:
    """Have later calls with such arrays go the short way, past all that depends on the plan alone."""
    if len(_short_ways) >= MOST_SHORT_WAYS:
        _short_ways.clear()
    text = str(key[0])
    if plan_.by_numpy:
        if set(text) <= _OF_NUMPY:
            copies = len(plan_.readings) == 1 and not plan_.readings[0].summed  # NumPy would return a view
            _short_ways[key] = functools.partial(_copied_by_numpy if copies else np.einsum, text)
    elif len(plan_.steps) == 1 and all(each.is_whole for each in plan_.readings) and plan_.steps[0].way is not None:
        way = plan_.steps[0].way
        _short_ways[key] = way if plan_.steps[0].left == 0 else lambda a, b: way(b, a)
    else:
        _short_ways[key] = lambda *operands: _as_scalar(plan_.run(operands))


def _copied_by_numpy(text: str, x: np.ndarray) -> Any:
    """A permutation or diagonal as a new array, where NumPy gives a view."""
    return np.einsum(text, x).copy()


def _as_scalar(x: np.ndarray) -> Any:
    return x if x.ndim else x[()]


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


# ---- arrays of other libraries ---------------------------------------------------------------------------------------


def _contract_of_library(
    subscripts: Subscripts, arrays: Sequence[Any], out: Any, precision: str | float, memory: Any
) -> Any:
    """The contraction by the library's own views, and ``matmul`` of its arrays."""
    if memory is not None:
        raise UsageError("memory bounds intermediate results of NumPy's arrays: pass numpy.asarray of the operands")
    check_words(precision, "classical")
    if out is not None and not is_on_gpu(out) and (library := host_library(out)) is not None:
        library.target(out, "out")  # raises for arrays that cannot be written
    shapes = tuple(tuple(map(int, x.shape)) for x in arrays)
    sizes = sizes_of.__wrapped__(subscripts, shapes)
    readings = _readings(subscripts, shapes, sizes)
    path, _ = _path(subscripts, shapes)
    left = [(_read_by_library(x, each), each.result) for x, each in zip(arrays, readings, strict=True)]
    for (i, j), (_, _, output) in zip(path, _walk(subscripts, readings, path), strict=True):
        pair = left[i], left[j]
        left = [one for position, one in enumerate(left) if position not in (i, j)]
        left.append((_multiply_by_library(*pair, output, sizes, precision), output))
    result, labels = left[0]
    result = _permuted(result, [labels.index(label) for label in subscripts.output])
    if out is None:
        return result.clone() if not path and hasattr(result, "clone") else result
    if tuple(out.shape) != tuple(result.shape):
        raise ShapeError(
            f"out is {tuple(out.shape)}, the result is {tuple(result.shape)}: out must have exactly this shape"
        )
    if hasattr(out, "copy_"):
        out.copy_(result)
    else:
        try:
            out[...] = result
        except TypeError as error:
            raise OperandError(f"out is of {type(out).__name__}, which cannot be written: use the result") from error
    return out


def _read_by_library(x: Any, reading: Reading) -> Any:
    """The operand with each label once."""
    for axis in sorted(reading.dropped, reverse=True):
        x = x[(slice(None),) * axis + (0,)]
    labels = reading.labels
    for label in reading.kept:
        while labels.count(label) > 1:  # the diagonal becomes the last axis
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = x.diagonal(0, first, second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + label
    axes = tuple(labels.index(label) for label in reading.summed)
    if axes:
        x = _sum_by_library(x, axes)
        labels = "".join(label for label in labels if label not in reading.summed)
    return _permuted(x, [labels.index(label) for label in reading.result])


def _sum_by_library(x: Any, axes: tuple[int, ...]) -> Any:
    """Sums in the dtype of the array; logical ones of bool."""
    if "bool" in str(x.dtype):
        for axis in sorted(axes, reverse=True):
            x = x.any(axis)
        return x
    return x.sum(axes, dtype=x.dtype)


def _permuted(x: Any, order: list[int]) -> Any:
    if order == list(range(len(order))):
        return x
    if hasattr(x, "permute"):
        return x.permute(order)
    return x.transpose(order) if hasattr(x, "transpose") else x.__array_namespace__().permute_dims(x, tuple(order))


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    return x.reshape(shape) if hasattr(x, "reshape") else x.__array_namespace__().reshape(x, shape)


def _multiply_by_library(
    one: tuple[Any, str], other: tuple[Any, str], output: str, sizes: dict[str, int], precision: str | float
) -> Any:
    """The product of two arrays with the axes of ``output``."""
    (x, of_x), (y, of_y) = one, other
    batch = "".join(label for label in of_x if label in of_y and label in output)
    m = "".join(label for label in of_x if label not in of_y)
    n = "".join(label for label in of_y if label not in of_x)
    k = "".join(label for label in of_x if label in of_y and label not in output)
    groups = {
        name: tuple(sizes[label] for label in group) for name, group in zip("bmnk", (batch, m, n, k), strict=True)
    }
    b, rows, columns, depth = (math.prod(groups[name]) for name in "bmnk")
    x = _permuted(x, [of_x.index(label) for label in batch + m + k])
    y = _permuted(y, [of_y.index(label) for label in batch + k + n])
    outer = (b,) if batch else ()
    x, y = _reshaped(x, (*outer, rows, depth)), _reshaped(y, (*outer, depth, columns))
    c = matmul(x, y, precision=precision) if k else x * y
    c = _reshaped(c, groups["b"] + groups["m"] + groups["n"])
    return _permuted(c, [(batch + m + n).index(label) for label in output])
