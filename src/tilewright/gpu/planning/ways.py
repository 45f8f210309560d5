"""The ways in which the engine's kernels can compute a product on a GPU, each with its predicted time.

A kernel's header lists its sets of parameters and predicts the time of a launch (in its table ``time``). If C has too
few tiles to keep all multiprocessors busy, k can be cut into parts, whose sums another kernel adds in a fixed order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...cpu.native import front
from ...host.machine import seconds_text
from ...kernels.cuda_kernel import Card, CudaKernel
from ...kernels.expression import Expression, cdiv
from ...product.problem import itemsize_of
from .choice import best_params
from .columns import staged
from .sets import Column, Index, PreparedProgram, Sets, sets_for

#: A part of k has at least so many steps, and there are so many parts at most.
_LEAST_STEPS, _MOST_PARTS = 4, 256
#: What times depend on as a shape says it.
_OF_SHAPE = ("m", "n", "k", "batch", "a_start", "b_start", "a_vector", "b_vector")
#: What C is given of a shape, and what it makes of each way, as columns, both in the order of ``native/columns.c``.
_GIVEN = (*_OF_SHAPE, "stored", "sum_size", "c_down", "vectors", "copied", "lines")
_COLUMNS = ("blocks", "parts", "part", "out_size", "c_down", "seconds")
#: Seconds of a launch that follows another in a graph; bytes a second that sums of parts read and write; and bytes that the
#: second-level cache of any of these GPUs keeps from one launch to the next. Measured on an H200.
NEXT_LAUNCH_S, _ADDED, _CACHED = 1.7e-6, 3.9e12, 2e7
#: The time of a way with its copies, and of several parts of k with the launch that adds their sums. Few sums are still in a
#: cache.
_TOTAL = {
    "moved": "m * n * batch * (parts * sum_size + stored)",
    "ratio": f"(moved > {_CACHED}) * memory_ratio + (moved <= {_CACHED})",
    "adding": f"{NEXT_LAUNCH_S} + ratio * moved / {_ADDED}",
    "total": "seconds + copied + (parts > 1) * adding",
}
_OF_TOTAL = ("m", "n", "batch", "sum_size", "stored", "copied"), ("parts", "seconds")
#: How many of the fastest ways a plan names.
NAMED = 4
#: The most bytes of shared memory of a block, on GPUs that have kernels that apply epilogues.
MOST_SHARED = 227 * 1024


class EngineShape(NamedTuple):
    """The product as a kernel sees it.

    ``out`` is the dtype that the kernel stores. The start addresses of rows or columns are multiples of ``a_start`` and
    ``b_start`` bytes, at most 128. With ``a_down`` the columns of A are contiguous, with ``b_across`` the rows of B,
    and with ``c_down`` the columns of C. ``a_vector`` and ``b_vector`` are the most bytes of one access to A and to B.

    ``vectors`` is the number of vectors of an epilogue that the kernel applies, with one number for each column of the
    kernel's C; None if it applies no epilogue. With ``blocks`` each 128 elements of k have their own scales.

    With ``invariant`` the bits of a row of C must depend only on that row of A and on B, so k is not cut. With
    ``ordered`` all elements of C must be summed in the same order; k may be cut, if it is cut in the same way for all
    elements. With ``triangle`` C is symmetric, and only its lower triangle is computed."""

    dtype: str
    out: str
    m: int
    n: int
    k: int
    batch: int = 1
    a_start: int = 128
    b_start: int = 128
    a_down: bool = False
    b_across: bool = True
    a_vector: int = 16
    b_vector: int = 16
    vectors: int | None = None
    blocks: bool = False
    c_down: bool = False
    invariant: bool = False
    triangle: bool = False
    ordered: bool = False


@dataclass(frozen=True)
class Way:
    """One way to compute a product: a kernel, its parameters, the parts of k, and the predicted seconds of the
    launch."""

    kernel: CudaKernel
    params: Mapping[str, int]
    parts: int
    seconds: float


class TimedWays(NamedTuple):
    """Ways to compute a product with one kernel, as columns: the numbers of the sets of parameters, the parts of k, and
    the predicted seconds of the launch."""

    sets: Sets
    numbers: Index
    parts: Column
    seconds: Column

    def way(self, number: int) -> Way:
        """The way with this number."""
        params = self.sets.params[self.numbers[number]]
        return Way(self.sets.kernel, params, int(self.parts[number]), float(self.seconds[number]))

    @property
    def fastest(self) -> Way:
        """The way that is predicted to be the fastest; the first of several equal ones."""
        return self.way(int(self.seconds.argmin()))


class FastestWay(NamedTuple):
    """The fastest way: its seconds with all copies and sums, its parameters, and the parts of k."""

    seconds: float
    params: Mapping[str, int]
    parts: int


def ways(kernel: CudaKernel, product: EngineShape, card: Card) -> list[Way]:
    """All ways that the kernel's header lists, the fastest first. If ``tilewright tune`` found parameters for this GPU,
    only the ways with these parameters are returned.

    >>> from tilewright.kernels.catalog import cuda_engine
    >>> from tilewright.kernels.cuda_kernel import Card
    >>> hopper, product = cuda_engine()["cuda/hopper"], EngineShape("bfloat16", "bfloat16", 4096, 4096, 4096)
    >>> [(way.params["BN"], way.parts) for way in ways(hopper, product, Card())][:1]
    [(256, 1)]
    """
    found = timed_ways(kernel, product, card)
    return [found.way(number) for number in found.seconds.argsort(kind="stable")]


@functools.lru_cache(maxsize=256)  # groups, and lists of as many rows in all, come again and again
def whole_ways(kernel: CudaKernel, shape: EngineShape, card: Card) -> list[Way]:
    """The ways that do not cut k."""
    return [way for way in ways(kernel, shape, card) if way.parts == 1]


def timed_ways(kernel: CudaKernel, product: EngineShape, card: Card) -> TimedWays:
    """All ways that the kernel's header lists, as columns, in the order of the header."""
    m, n, k, is_finished = product.m, product.n, product.k, product.vectors is not None
    sets = _sets_of(kernel, product, card)
    index = sets.allowed(m, n, k)
    if product.invariant or product.ordered:
        index = index[sets.invariant[index]]
    if product.blocks:
        index = index[sets.in_blocks[index]]
    if product.triangle:
        index = index[sets.in_triangle[index]]
    if is_finished:
        index = index[sets.shared(index, m, n, k, product.vectors or 0) <= MOST_SHARED]
    blocks = sets.blocks(index, m, n, k) * product.batch
    cut = None if is_finished or product.invariant or kernel.step is None else _parts(sets, index, blocks, k, card.sms)
    out_size = itemsize_of(product.out)
    varied: Any = {name: getattr(product, name) for name in _OF_SHAPE}
    if cut is None:
        varied |= {"blocks": blocks, "parts": 1, "part": k, "out_size": out_size, "c_down": product.c_down}
        return TimedWays(sets, index, np.ones(len(index)), sets.seconds(index, **varied))
    numbers, parts = cut
    index, blocks, is_whole = index[numbers], blocks[numbers] * parts, parts == 1
    step = sets.step[index]
    part = np.where(is_whole, k, np.ceil(np.ceil(k / step) / parts) * step)
    out = np.where(is_whole, out_size, itemsize_of(sums_dtype(product.dtype)))
    varied |= {"blocks": blocks, "parts": parts, "part": part, "out_size": out, "c_down": is_whole * product.c_down}
    return TimedWays(sets, index, parts, sets.seconds(index, cut=True, **varied))


def totals(found: TimedWays, product: EngineShape, card: Card, copied: float) -> Column:
    """The total times of ways: with ``copied`` seconds of copies, and with the launch that adds the sums of parts of
    k."""
    given = {"m": product.m, "n": product.n, "batch": product.batch, "parts": found.parts, "seconds": found.seconds}
    sizes = {"stored": itemsize_of(product.out), "sum_size": itemsize_of(sums_dtype(product.dtype))}
    return _total(card.memory_ratio)(found.numbers, **given, **sizes, copied=copied)


def fastest_way(kernel: CudaKernel, product: EngineShape, card: Card, copied: float = 0.0) -> FastestWay | None:
    """The way with the least total time, the first of several equal ones. Returns None if no set of parameters is
    allowed."""
    sets = _sets_of(kernel, product, card)
    search = _search(sets, product.invariant, product.ordered, card.memory_ratio)
    if search is None:
        found = timed_ways(kernel, product, card)
        if not len(found.numbers):
            return None
        times = totals(found, product, card, copied)
        way, seconds = found.way(number := int(times.argmin())), float(times[number])
        return FastestWay(seconds, way.params, way.parts)
    sizes = itemsize_of(product.out), itemsize_of(sums_dtype(product.dtype))
    vectors = -1 if product.vectors is None else product.vectors
    try:
        best = search(*product[2:8], *product[10:12], *sizes, product.c_down, vectors, copied)
    except ZeroDivisionError as error:
        raise ZeroDivisionError(f"{kernel.name}: {error}") from None
    return None if best is None else FastestWay(best[0], sets.params[best[1]], best[2])


@functools.lru_cache(maxsize=512)  # a program, compiled once
def _search(
    sets: Sets, invariant: bool, ordered: bool, memory_ratio: float
) -> Callable[..., tuple[float, int, int] | None] | None:
    """``fastest_way`` for these sets by the C front, as a function of the values of ``_GIVEN`` except the last one."""
    native, kernel = front(), sets.kernel
    if native is None:
        return None
    is_finished, in_blocks, triangle = (sets.layout[name] for name in ("finished", "scaled", "triangle"))
    usable = np.ones(len(sets.params), bool)
    for is_asked, able in (
        (invariant or ordered, sets.invariant),
        (in_blocks, sets.in_blocks),
        (triangle, sets.in_triangle),
    ):
        usable = usable & able if is_asked else usable
    is_cut = not (is_finished or invariant or kernel.step is None)
    facts = sets.layout["sms"], kernel.persistent, is_cut, _LEAST_STEPS, _MOST_PARTS, MOST_SHARED
    programs = sets.search_programs(_GIVEN, _COLUMNS, _total(memory_ratio))
    found: Callable[..., tuple[float, int, int] | None] = native.way_search(
        np.array([usable, sets.at_once, sets.step], float).tobytes(), facts, programs
    )
    return found


@functools.lru_cache(maxsize=64)  # compiled once
def _total(memory_ratio: float) -> PreparedProgram:
    """The program ``_TOTAL``."""
    numbers, columns = _OF_TOTAL
    names = "memory_ratio", *numbers, *columns, *_TOTAL
    steps = {name: Expression.parse(text, names, real=True) for name, text in _TOTAL.items()}
    return PreparedProgram(
        staged(steps, ["memory_ratio"], (*numbers, *columns), columns), {"memory_ratio": memory_ratio}
    )


def _sets_of(kernel: CudaKernel, product: EngineShape, card: Card) -> Sets:
    """The sets of the header, or those that ``tilewright tune`` found for this GPU."""
    shape = product.m, product.n, product.k
    tuned = best_params(kernel, card.name, product.dtype, shape) if card.name else None
    size, is_finished = itemsize_of(product.dtype), product.vectors is not None
    layout = size, *card.facts, product.a_down, product.b_across, is_finished, product.blocks, product.triangle
    sets = sets_for(kernel, layout, tuned, card.table)
    if product.invariant and tuned is not None and not sets.invariant[0]:
        return sets_for(kernel, layout, table=card.table)
    return sets


def part_steps(kernel: CudaKernel, params: Mapping[str, int], dtype: str, k: int, parts: int) -> int:
    """The number of steps of the kernel's loop for each part of k; the last part may be shorter.

    >>> from tilewright.kernels.catalog import cuda_engine
    >>> part_steps(cuda_engine()["cuda/hopper"], {}, "bfloat16", 640, 3)
    4
    """
    return cdiv(cdiv(k, kernel.step_of_k(itemsize_of(dtype), params)), parts)


def why_first(found: list[tuple[Way, float, tuple[str, ...]]]) -> str:
    """The reason why the first of these ways was chosen. The reason lists the first ways with their times in seconds,
    which include copies, and says what each way computes and copies."""
    (first, seconds, words), *others = found
    lost = [f"{_name(way, text, first, words)}: {seconds_text(other)}" for way, other, text in others]
    return f"predicted to be the fastest, {seconds_text(seconds)}" + (f"; next {'; '.join(lost)}" if lost else "")


def _name(way: Way, words: tuple[str, ...], first: Way, words_of_first: tuple[str, ...]) -> str:
    """A text that says how a way differs from the first way."""
    changed = [way.kernel.name] if way.kernel is not first.kernel else []
    changed += [f"{name}={value}" for name, value in way.params.items() if first.params.get(name) != value]
    if way.parts != first.parts:
        changed.append(f"{way.parts} part{'s' * (way.parts > 1)} of k")
    changed += [text for text, other in zip(words, words_of_first, strict=True) if text != other]
    return ", ".join(changed)


def _parts(sets: Sets, index: Index, blocks: Column, k: int, sms: int) -> tuple[Index, Column] | None:
    """The sets that are tried, and the number of parts of k for each. Each set is tried with one part, and with some
    numbers of parts that occupy all multiprocessors. Returns None if all sets are tried only with one part."""
    steps = np.ceil(k / sets.step[index])
    most = np.minimum(np.floor(steps / _LEAST_STEPS), _MOST_PARTS)
    if most.max() < 2:
        return None
    fill = np.floor(sets.at_once[index] / np.maximum(1, blocks))
    few = [] if sets.kernel.persistent else [_fewer_generations(int(each), sms) for each in blocks]
    if fill.max() < 1 and not any(few):
        return None
    wanted = np.array([np.floor(fill / 2), fill, 2 * fill, 4 * fill, *itertools.zip_longest(*few, fillvalue=0)])
    parts = np.ones((len(wanted) + 1, len(index)))
    parts[1:] = np.ceil(steps / np.ceil(steps / np.maximum(1, np.minimum(wanted, most))))
    parts.sort(axis=0)
    is_new = np.ones(parts.shape, bool)
    np.not_equal(parts[1:], parts[:-1], out=is_new[1:])
    return is_new.T.nonzero()[0], parts.T[is_new.T]


def _fewer_generations(blocks: int, sms: int) -> list[int]:
    """Small numbers of parts, each with which the multiprocessors wait less for the last ones than with the one before.

    >>> _fewer_generations(288, 132)  # three generations of whole tiles, five of halves
    [2, 3, 5]
    """
    found, least = [], float(-(-blocks // sms))
    if blocks < 0.951 * sms * least:  # else no number of parts has 5% fewer
        for parts in range(2, 9):
            generations = -(-blocks * parts // sms)
            if generations < 0.95 * least * parts:
                least = generations / parts
                found.append(parts)
    return found


def sums_dtype(compute: str) -> str:
    """The dtype in which products of a dtype are summed.

    >>> sums_dtype("bfloat16"), sums_dtype("int8"), sums_dtype("complex128")
    ('float32', 'int32', 'complex128')
    """
    exact = {
        "int8": "int32",
        "uint8": "int32",
        "float64": "float64",
        "complex64": "complex64",
        "complex128": "complex128",
    }
    return exact.get(compute, "float32")
