"""Describes a contraction of ``einsum`` before it is computed: the labels of axes, how each operand is read, and how
the product of two operands becomes a product of matrices.

A *label* is one character that names an axis. In the product of two operands each label belongs to one of four groups:
*batch* (both operands and the result have it), *m* (the first operand and the result), *n* (the second operand and the
result) and *k* (both operands, but not the result). If the axes of each group in an operand can be merged into one
strided axis, ``matmul`` reads this operand without a copy. The order of the labels in each group is chosen such that
as few elements as possible are copied.
"""

from __future__ import annotations

import functools
import itertools
import math
import numbers
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ShapeError, UsageError
from .problem import merged_stride

Sizes = Mapping[str, int]
#: The strides of an operand in bytes, by label.
Strides = Mapping[str, int]

#: The most bytes of a copied part of an operand, if the caller sets no limit.
COPY_BYTES = 32 << 20
#: An operand can be read in parts, one for each index of an outer label, instead of being copied. This is done only for
#: products with at least this many rows, columns and steps of k, because each of them packs the other operand again.
LEAST_LOOPED = 256
#: The same limit for products that are so small that nothing is packed.
LEAST_LOOPED_UNPACKED = 64
#: If the last axis of a result is not the last of the output, each element of the result counts as this many copied
#: elements.
RESULT_COPY = 2.0
#: FEW_ROWS and LONG_ROWS are for results with at most FEW_ROWS rows and more columns than that, because their tiles lie on
#: many pages. Each element of such a result counts as LONG_ROWS copied elements: a batch of 57 × 1518 × 36 of float64 took
#: 32 ms, and 11 ms with rows and columns exchanged.
FEW_ROWS, LONG_ROWS = 64, 3.0
#: The most elements of operands and result, together, of a product of matrices that is not packed.
MOST_UNPACKED = 100_000
#: If two vectors have at least this length, their outer product is computed as a product of matrices with k = 1. This
#: writes C by whole vectors, up to four times as fast as loops over short axes that broadcast.
LEAST_OUTER = 8

# ---- subscripts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subscripts:
    """The labels of each operand and of the result of a contraction. The labels of the axes that an ellipsis stands
    for are also in ``dots``."""

    inputs: tuple[str, ...]
    output: str
    dots: str = ""

    def __str__(self) -> str:
        return f"{','.join(self.inputs)}->{self.output}"


@functools.lru_cache(maxsize=1024)
def parse_subscripts(text: str, axes: tuple[int, ...]) -> Subscripts:
    """Return the subscripts that ``text`` describes, for operands with these numbers of ``axes``. Raises UsageError
    and ShapeError.

    >>> str(parse_subscripts("ij, jk", (2, 2))), str(parse_subscripts("...ii->...i", (4,)))
    ('ij,jk->ik', 'ABii->ABi')
    """
    plain = "".join(text.split())
    before, arrow, after = plain.partition("->")
    terms = [tuple(_symbols(term, text)) for term in before.split(",")]
    output = tuple(_symbols(after, text)) if arrow else None
    return _resolved(terms, output, axes, repr(text))


def _symbols(term: str, text: str) -> Iterator[Hashable]:
    """The labels of one operand; an ellipsis is ``Ellipsis``."""
    before, dots, after = term.partition("...")
    for symbol in before:
        yield _checked_symbol(symbol, text)
    if dots:
        yield Ellipsis
    for symbol in after:
        yield _checked_symbol(symbol, text)


def _checked_symbol(symbol: str, text: str) -> str:
    if symbol in ".->,":
        rule = "an ellipsis is three points, once in each operand" if symbol == "." else "one -> may precede the output"
        raise UsageError(f"subscripts {text!r}: {symbol!r} cannot be a label: {rule}")
    return symbol


def parse_sublists(
    sublists: Sequence[Sequence[Hashable]], output: Sequence[Hashable] | None, axes: tuple[int, ...]
) -> Subscripts:
    """Return the subscripts that lists of labels describe, for operands with these numbers of ``axes``. Labels may be
    numbers, and ``Ellipsis`` stands for "...". Raises UsageError and ShapeError.

    >>> str(parse_sublists([[0, 1], [1, 2]], [2, 0], (2, 2)))
    'AB,BC->CA'
    """
    try:
        terms = [tuple(sublist) for sublist in sublists]
        result = None if output is None else tuple(output)
        for label in itertools.chain(*terms, result or ()):
            hash(label)
    except TypeError:
        raise UsageError("sublists: each operand must be followed by a list of labels, such as [0, 1]") from None
    return _resolved(terms, result, axes, "the sublists")


def _resolved(
    terms: list[tuple[Hashable, ...]], output: tuple[Hashable, ...] | None, axes: tuple[int, ...], given: str
) -> Subscripts:
    """Subscripts of one character for each axis."""
    if len(terms) != len(axes):
        raise UsageError(f"subscripts {given} are of {len(terms)} operands, got {len(axes)}: pass one for each")
    counts = []
    for number, (term, ndim) in enumerate(zip(terms, axes, strict=True)):
        named, has_dots = len([label for label in term if label is not Ellipsis]), term.count(Ellipsis)
        if has_dots > 1:
            raise UsageError(f"subscripts {given}: operand {number} has {has_dots} ellipses; it may have one")
        if named > ndim or (named < ndim and not has_dots):
            step = "add '...' for the others" if named < ndim else "remove labels"
            raise ShapeError(
                f"subscripts {given}: operand {number} has {named} labels, and {ndim} axes: each axis needs one; {step}"
            )
        counts.append(ndim - named)
    names = _names(terms, output or ())
    dots = "".join(names[Ellipsis, place] for place in range(max(counts)))

    def text(term: tuple[Hashable, ...], count: int) -> str:
        parts = (dots[len(dots) - count :] if label is Ellipsis else names[label, 0] for label in term)
        return "".join(parts)

    inputs = tuple(text(term, count) for term, count in zip(terms, counts, strict=True))
    if output is None:
        every = [label for term in terms for label in term if label is not Ellipsis]
        once = [label for label in every if every.count(label) == 1]
        return Subscripts(inputs, dots + "".join(names[label, 0] for label in _in_order(once)), dots)
    if output.count(Ellipsis) > 1 or (dots and Ellipsis not in output):
        rule = "needs '...', as its operands have axes of an ellipsis" if dots else "has more than one ellipsis"
        raise UsageError(f"subscripts {given}: the output {rule}")
    result, known = text(output, len(dots)), set("".join(inputs))
    for label in output:
        if label is not Ellipsis and (names[label, 0] not in known or output.count(label) > 1):
            rule = "occurs in no operand" if names[label, 0] not in known else "occurs twice in the output"
            raise UsageError(f"subscripts {given}: the label {label!r} of the output {rule}")
    return Subscripts(inputs, result, dots)


def _in_order(labels: list[Hashable]) -> list[Hashable]:
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        raise UsageError(f"the labels {labels!r:.80} have no order: pass the labels of the output, too") from None


def _names(terms: list[tuple[Hashable, ...]], output: tuple[Hashable, ...]) -> dict[tuple[Hashable, int], str]:
    """A character for each label, itself where it is one, and for each axis that an ellipsis may stand for."""
    labels = dict.fromkeys(label for term in [*terms, output] for label in term if label is not Ellipsis)
    own = {label for label in labels if isinstance(label, str) and len(label) == 1}
    free = (chr(code) for code in itertools.count(ord("A")) if chr(code).isalpha() and chr(code) not in own)
    names: dict[tuple[Hashable, int], str] = {
        (label, 0): label if isinstance(label, str) and label in own else next(free) for label in labels
    }
    return names | {(Ellipsis, place): next(free) for place in range(64)}


def tensordot_axes(axes: Any, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the axes of two operands of shapes ``a`` and ``b`` that are summed in pairs. As in ``numpy.tensordot``,
    ``axes`` is two lists, or a number N for the last N axes of the first operand and the first N of the second. The
    function raises UsageError if ``axes`` is not valid, and ShapeError if the axes of a pair differ in length.

    >>> tensordot_axes(1, (2, 3), (3, 4)), tensordot_axes(([0, -1], [1, 0]), (2, 3, 4), (4, 2))
    (([1], [0]), ([0, 2], [1, 0]))
    """
    of_a, of_b = len(a), len(b)
    if isinstance(axes, numbers.Integral):
        axes = int(axes)
        if not 0 <= axes <= min(of_a, of_b):
            raise UsageError(
                f"axes is {axes}: a has {of_a} axes and b has {of_b}; it must be from 0 to {min(of_a, of_b)}"
            )
        axes = range(of_a - axes, of_a), range(axes)
    try:
        pair = [[axis] if isinstance(axis, numbers.Integral) else list(axis) for axis in axes]
        first, second = pair
    except (TypeError, ValueError):
        raise UsageError(f"axes is {axes!r:.80}: it must be a number of axes, or two lists of axes") from None
    found = []
    for name, chosen, ndim in (("a", first, of_a), ("b", second, of_b)):
        if any(not isinstance(axis, numbers.Integral) or not -ndim <= int(axis) < ndim for axis in chosen):
            raise UsageError(f"axes of {name} are {chosen}: {name} has {ndim} axes")
        found.append([int(axis) % ndim for axis in chosen])
        if len(set(found[-1])) < len(chosen):
            raise UsageError(f"axes of {name} are {chosen}: each may occur once")
    if len(first) != len(second):
        raise UsageError(f"axes are {first} of a and {second} of b: give the same number of axes of both")
    for x, y in zip(*found, strict=True):
        if a[x] != b[y]:
            raise ShapeError(
                f"a is {a}, b is {b}: axis {x} of a and axis {y} of b are summed together, so they must be equally long"
            )
    return found[0], found[1]


@functools.lru_cache(maxsize=1024)
def sizes_of(subscripts: Subscripts, shapes: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    """Return the size of each label. An axis of length 1 is broadcast. The function raises ShapeError if the sizes of
    a label do not match.

    >>> sizes_of(Subscripts(("ij", "jk"), "ik"), ((2, 3), (1, 4)))
    {'i': 2, 'j': 3, 'k': 4}
    """
    sizes: dict[str, int] = {}
    found: dict[str, int] = {}
    for number, (labels, shape) in enumerate(zip(subscripts.inputs, shapes, strict=True)):
        for label, size in zip(labels, shape, strict=True):
            own = shape[labels.index(label)]
            if size != own:
                raise ShapeError(
                    f"operand {number} is {shape}: its axes with the label {label!r}, which has a diagonal, are {own} and "
                    f"{size} long; they must be equally long"
                )
            if sizes.get(label, 1) == 1:
                sizes[label], found[label] = size, number
            elif size not in (1, sizes[label]):
                where = f"{sizes[label]} in operand {found[label]}, {shapes[found[label]]}"
                name = "an axis of '...'" if label in subscripts.dots else f"the label {label!r}"
                raise ShapeError(
                    f"{name} is {where}, and {size} in operand {number}, {shape}: they must be equal, or 1"
                )
    return sizes


# ---- one operand -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Describes how an operand is reduced to an array that has each needed label exactly once.

    The axes ``dropped`` of the operand have length 1 and broadcast. ``labels`` are the labels of the other axes. For a
    repeated label the diagonal is taken, and ``kept`` are the labels of the array of diagonals. Finally the axes of
    the labels ``summed`` are summed, which neither the result nor another operand has.
    """

    dropped: tuple[int, ...]
    labels: str
    kept: str
    summed: str

    @property
    def result(self) -> str:
        """The labels of the array that the operand is reduced to."""
        return "".join(label for label in self.kept if label not in self.summed)

    @property
    def is_whole(self) -> bool:
        """Whether the operand is read unchanged."""
        return not self.dropped and self.labels == self.kept and not self.summed


def reading_of(labels: str, shape: tuple[int, ...], sizes: Sizes, needed: frozenset[str]) -> Reading:
    """Return how an operand is reduced to an array that has only the labels ``needed``.

    >>> reading_of("iji", (2, 1, 2), {"i": 2, "j": 5}, frozenset("ij"))
    Reading(dropped=(1,), labels='ii', kept='i', summed='')
    """
    dropped = tuple(axis for axis, label in enumerate(labels) if shape[axis] == 1 != sizes[label])
    rest = "".join(label for axis, label in enumerate(labels) if axis not in dropped)
    kept = "".join(dict.fromkeys(rest))
    return Reading(dropped, rest, kept, "".join(label for label in kept if label not in needed))


# ---- a product of two operands ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairLayout:
    """Describes the product of two operands as products of matrices.

    ``batch``, ``m``, ``n`` and ``k`` are the labels of the four groups, in order. ``looped_m`` and ``looped_n`` are
    numbers of labels: so many first labels of m and of n become axes of the batch, although only one operand has them.
    If ``x_copied``, ``y_copied`` or ``c_copied`` is not empty, this operand or the result is copied in pieces, and the
    text is the order of the groups in the copy. ``cuts`` has each label that is cut, with the number of indices in a
    piece. ``result`` is the order of the result's labels in memory, if the result may have any strides. ``cost`` is a
    weighted number of the elements that are copied and packed.
    """

    x: str
    y: str
    output: str
    batch: str
    m: str
    n: str
    k: str
    looped_m: int = 0
    looped_n: int = 0
    x_copied: str = ""
    y_copied: str = ""
    c_copied: str = ""
    cuts: tuple[tuple[str, int], ...] = ()
    result: str = ""
    sizes: Sizes = field(default_factory=dict, compare=False)
    cost: float = field(default=0.0, compare=False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes m, n and k and the number of products, without counting looped labels in the batch."""
        m, n, k, batch = (
            math.prod(self.sizes[label] for label in group) for group in (self.m, self.n, self.k, self.batch)
        )
        return m, n, k, batch

    @property
    def each(self) -> tuple[int, int, int, int]:
        """The sizes m, n and k and the number of products, with the looped labels counted in the batch."""
        looped = self.m[: self.looped_m], self.n[: self.looped_n]
        outer_m, outer_n = (math.prod(self.sizes[label] for label in labels) for labels in looped)
        m, n, k, batch = self.shape
        return m // max(1, outer_m), n // max(1, outer_n), k, batch * outer_m * outer_n

    @property
    def axes(self) -> str:
        """The labels of the result, group by group."""
        return self.batch + self.m + self.n

    @property
    def is_elementwise(self) -> bool:
        """Whether the product is elementwise, with operands that broadcast. An elementwise product sums nothing, and
        is not an outer product of long vectors, which is computed as a product of matrices with k = 1."""
        return not self.k and min(self.shape[:2]) < LEAST_OUTER


def lay_out_pair(
    x: str,
    y: str,
    output: str,
    sizes: Sizes,
    of_x: Strides,
    of_y: Strides,
    of_c: Strides | None,
    itemsize: int,
    *,
    converts: tuple[bool, bool] = (False, False),
    limit: int = COPY_BYTES,
) -> PairLayout:
    """Return the layout of a product of two operands that copies and packs the fewest elements.

    ``of_c`` has the strides of the result; None if any strides are allowed. ``converts`` says which operand has
    another dtype and must be copied. ``limit`` is the most bytes of a copied piece.

    >>> sizes, row_major = {"i": 400, "j": 3, "k": 300, "l": 300}, {"i": 7200, "j": 2400, "k": 8}
    >>> lay_out_pair("ijk", "kjl", "il", sizes, row_major, {"k": 7200, "j": 2400, "l": 8}, None, 8).y_copied
    'kn'
    """
    batch = _by_stride("".join(label for label in x if label in y and label in output), of_c or of_x)
    groups = [label for label in x if label not in y], [label for label in y if label not in x]
    m, n = ("".join(group) for group in groups)
    k = "".join(label for label in x if label in y and label not in output)
    wanted = {label: len(output) - place for place, label in enumerate(output)}
    of_result = of_c or wanted

    if not k and min(_size(m, sizes), _size(n, sizes)) < LEAST_OUTER:
        order = _elementwise_order(output, batch, m, n, sizes, of_x, of_y, of_c, itemsize)
        return PairLayout(x, y, output, batch, m, n, k, result=order, sizes=sizes)

    def choice(orders: tuple[str, str, str]) -> tuple[float, PairLayout]:
        cost, found = _cheapest(x, y, output, batch, orders, sizes, of_x, of_y, of_c, itemsize, converts)
        in_order = sum(output.index(label) != place for place, label in enumerate(found.result))
        return cost + 1e-6 * in_order, found

    every = itertools.product(
        _orders(m, sizes, of_x, of_result), _orders(n, sizes, of_y, of_result), _orders(k, sizes, of_x, of_y)
    )
    cost, best = min(map(choice, every), key=lambda one: one[0])
    return _with_cuts(replace(best, cost=cost), itemsize, limit)


def is_better_swapped(layout: PairLayout, swapped: PairLayout) -> bool:
    """Return whether the second operand should provide the rows of a result that may have any strides. The two layouts
    are compared by their costs. The cost of copying the result is added to that of a layout that stores the result with
    another last axis than the output has."""

    def cost(one: PairLayout) -> float:
        last, (m, n, _, _) = one.output[-1:], one.each
        of_result = RESULT_COPY if last and last in one.m else 0.0
        elements = _size(one.output, one.sizes)
        of_result += LONG_ROWS if one.k and m <= FEW_ROWS < n and elements > MOST_UNPACKED else 0.0
        return one.cost + of_result * elements

    return cost(swapped) < cost(layout)


#: Nanoseconds of a loop of ``numpy.multiply`` along the last axes, and for each element of an operand that is no neighbour
#: of the one before. They decide between orders of loops.
_LOOP_NS, _STRIDED_NS = 70.0, 0.7


def _elementwise_order(
    output: str,
    batch: str,
    m: str,
    n: str,
    sizes: Sizes,
    of_x: Strides,
    of_y: Strides,
    of_c: Strides | None,
    itemsize: int,
) -> str:
    """The order of the labels of a product of elements, the innermost last."""
    orders = [output, batch + m + n, batch + n + m, m + _by_stride(batch + n, of_y), n + _by_stride(batch + m, of_x)]
    orders += [output.replace(label, "") + label for label in output]
    if of_c is not None:
        return _by_stride(output, of_c)

    def cost(order: str) -> float:
        long = _long(order, sizes) or order
        run, last = 1, long[-1:]
        for place in range(len(long) - 1, -1, -1):
            label, inner = long[place], long[place + 1 : place + 2]
            if inner and any(of.get(label, 0) != of.get(inner, 0) * sizes[inner] for of in (of_x, of_y)):
                break
            run *= sizes[label]
        strided = _STRIDED_NS * sum(abs(of.get(last, 0)) not in (0, itemsize) for of in (of_x, of_y))
        return _LOOP_NS / max(1, run) + strided

    return min(orders, key=cost)


def _by_stride(group: str, strides: Strides) -> str:
    return "".join(sorted(group, key=lambda label: -abs(strides.get(label, 0))))


def _orders(group: str, sizes: Sizes, *layouts: Strides) -> list[str]:
    """The orders of a group that are tried: of each of two operands, and also with the fastest label of one at the
    end of the order of the other."""
    by = [_by_stride(group, strides) for strides in layouts]
    long = [[label for label in order if sizes[label] > 1] for order in by]
    found = list(by)
    for order, other in itertools.permutations(range(len(by)), 2):
        if long[other]:
            last = long[other][-1]
            found.append(by[order].replace(last, "") + last)
    return list(dict.fromkeys(found))


def _cheapest(
    x: str,
    y: str,
    output: str,
    batch: str,
    orders: tuple[str, str, str],
    sizes: Sizes,
    of_x: Strides,
    of_y: Strides,
    of_c: Strides | None,
    itemsize: int,
    converts: tuple[bool, bool],
) -> tuple[float, PairLayout]:
    """The layout with these orders of m, n and k, and its cost: elements that are copied, weighed."""
    m, n, k = orders
    cost = {}
    loops = {"x": 0, "y": 0}
    for name, strides, rows, others in (("x", of_x, m, n), ("y", of_y, n, m)):
        groups = (rows, k)
        copied = _copied(groups, strides, sizes, "mk" if name == "x" else "nk")
        cost[name] = _copy_cost(groups, batch, strides, sizes), copied
        if converts[name == "y"]:
            continue
        if _lies(rows, strides, sizes) and _lies(k, strides, sizes):
            cost[name] = min(cost[name], (_strided_cost(groups, batch, strides, sizes, itemsize), ""))
        elif _lies(k, strides, sizes):
            for length in range(1, len(rows)):
                inner = rows[length:]
                lies = _lies(inner, strides, sizes) and (of_c is None or _lies(inner, of_c, sizes))
                # not over the axis of neighbours: each product would read the cache lines of all
                lies = lies and _fastest(rows + k, strides, sizes) not in rows[:length]
                if lies and _pays_to_loop(_size(inner, sizes), _size(others, sizes), _size(k, sizes)):
                    loops[name], cost[name] = length, (0.1 * _size(batch + rows + k, sizes), "")
                    break
    c_cost, c_copied = 0.0, ""
    if of_c is not None:
        if _lies(m[loops["x"] :], of_c, sizes) and _lies(n[loops["y"] :], of_c, sizes):
            c_cost = _strided_cost((m, n), batch, of_c, sizes, itemsize)
        if not (_lies(m[loops["x"] :], of_c, sizes) and _lies(n[loops["y"] :], of_c, sizes)) or c_cost > 3 * _size(
            output, sizes
        ):
            c_cost, c_copied = _copy_cost((m, n), batch, of_c, sizes), _copied((m, n), of_c, sizes, "mn")
    layout = PairLayout(
        x,
        y,
        output,
        batch,
        m,
        n,
        k,
        loops["x"],
        loops["y"],
        cost["x"][1],
        cost["y"][1],
        c_copied,
        (),
        batch + m + n,
        sizes=sizes,
    )
    return cost["x"][0] + cost["y"][0] + c_cost + _packing_cost(layout, of_x, of_y), layout


def _packing_cost(layout: PairLayout, of_x: Strides, of_y: Strides) -> float:
    """The cost of packing. Rows of A whose elements are neighbours are read where they lie. All of B is packed before it is
    multiplied, and its packing costs more where neighbours lie along k. Small matrices are not packed, but such a B is
    copied."""
    sizes, m, n, k = layout.sizes, layout.m, layout.n, layout.k
    if not k:
        return 0.0
    rows, columns, depth, count = layout.each
    along_k = layout.x_copied == "mk" if layout.x_copied else _fastest(m + k, of_x, sizes) in k
    along_n = layout.y_copied == "kn" if layout.y_copied else _fastest(n + k, of_y, sizes) in n
    of_a, of_b = rows * depth * count, columns * depth * count
    if _is_unpacked(rows, columns, depth):
        return 0.0 if along_n else 1.5 * of_b
    return (0.0 if along_k else 1.0) * of_a + (1.5 if along_n else 3.0) * of_b


def _is_unpacked(m: int, n: int, k: int) -> bool:
    return m * k + k * n + m * n <= MOST_UNPACKED


def _pays_to_loop(m: int, n: int, k: int) -> bool:
    """Whether such products, one for each index of an outer label, take less time than a copy of the operand."""
    return min(m, n, k) >= (LEAST_LOOPED_UNPACKED if _is_unpacked(m, n, k) else LEAST_LOOPED)


def merged(group: str, strides: Strides, sizes: Sizes) -> int | None:
    """Return the stride of a group of axes that are merged into one axis; None if the axes cannot be merged."""
    return merged_stride(tuple(sizes[label] for label in group), tuple(strides[label] for label in group))


def _lies(group: str, strides: Strides, sizes: Sizes) -> bool:
    return merged(group, strides, sizes) is not None


def _size(group: str, sizes: Sizes) -> int:
    return math.prod(sizes[label] for label in group)


def _fastest(labels: str, strides: Strides, sizes: Sizes) -> str:
    """The label of the axis along which neighbours lie."""
    long = [label for label in labels if sizes[label] > 1]
    return min(long, key=lambda label: abs(strides[label]), default="")


def _copy_cost(groups: tuple[str, str], batch: str, strides: Strides, sizes: Sizes) -> float:
    """Elements that are copied, three times as many if neighbours of the operand are no neighbours of the copy."""
    labels = batch + groups[0] + groups[1]
    fastest = _fastest(labels, strides, sizes)
    last = {group[-1:] for group in (_long(groups[0], sizes), _long(groups[1], sizes))}
    return _size(labels, sizes) * (1.0 if fastest in last else 3.0)


def _long(group: str, sizes: Sizes) -> str:
    return "".join(label for label in group if sizes[label] > 1)


def _strided_cost(groups: tuple[str, str], batch: str, strides: Strides, sizes: Sizes, itemsize: int) -> float:
    """The cost of reading elements that are no neighbours in memory: packing is a little slower then, but each
    product of a batch whose matrices are interleaved reads the cache lines of all of them."""
    labels = batch + groups[0] + groups[1]
    fastest = _fastest(labels, strides, sizes)
    if fastest in batch and fastest:
        return 7.0 * _size(labels, sizes)
    unit = not fastest or abs(strides[fastest]) <= itemsize
    return 0.0 if unit else 0.3 * _size(labels, sizes)


def _copied(groups: tuple[str, str], strides: Strides, sizes: Sizes, names: str) -> str:
    """The order of the groups in a copy: that with the fastest label comes last, so that neighbours stay neighbours."""
    fastest = _fastest(groups[0] + groups[1], strides, sizes)
    return names[::-1] if fastest and fastest in groups[0] else names


def _with_cuts(layout: PairLayout, itemsize: int, limit: int) -> PairLayout:
    """The layout with pieces small enough that each copy has at most ``limit`` bytes."""
    sizes = layout.sizes
    block = dict(sizes)
    for copied, groups in (
        (layout.x_copied, (layout.batch, layout.m, layout.k)),
        (layout.y_copied, (layout.batch, layout.n, layout.k)),
        (layout.c_copied, (layout.batch, layout.m, layout.n)),
    ):
        if not copied:
            continue
        labels = "".join(groups)
        for place, label in enumerate(labels):
            rest = math.prod(block[each] for each in labels[place + 1 :]) * itemsize
            if block[label] * rest <= limit:
                break
            block[label] = max(1, min(block[label], limit // max(1, rest)))
    order = layout.batch + layout.n + layout.m + layout.k
    cuts = tuple((label, block[label]) for label in order if block[label] < sizes[label])
    return replace(layout, cuts=cuts)


def pieces_of_layout(layout: PairLayout) -> Iterator[dict[str, slice]]:
    """Yield, for each piece of a product, the indices of each cut label. The pieces always have the same order, with k
    last, so the order of sums depends only on the layout."""
    ranges = [
        [slice(low, min(low + block, layout.sizes[label])) for low in range(0, layout.sizes[label], block)]
        for label, block in layout.cuts
    ]
    for parts in itertools.product(*ranges):
        yield dict(zip((label for label, _ in layout.cuts), parts, strict=True))
