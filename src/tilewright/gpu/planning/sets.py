"""The sets of parameters that the header of a kernel of the engine lists, as columns of arrays: which sets are allowed
for a shape, their blocks, and their predicted times.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...host.cached_property import cached_property
from ...kernels.cuda_kernel import BASE, LINE, TIMED, CostTable, CudaKernel, blocks_at_once, cost_table
from ...kernels.expression import Expression
from .columns import Column, Index, Staged, staged

#: Names of TIMED of which a kernel's sets are prepared for each value: they have few.
LAYOUT = ("size", "sms", "memory_ratio", "int8_rate", "a_down", "b_across", "finished", "scaled", "triangle")
#: Those that are columns where k is cut.
_CUT = ("parts", "part", "out_size", "c_down")
_VARIED = tuple(name for name in TIMED if name not in LAYOUT)


class Sets:
    """Sets of parameters of a kernel, for operands with one kind of layout.

    ``layout`` has a value for each name of LAYOUT; all that depends only on these values is computed once. ``params``
    is the only set; if it is None, the sets are those of the header, with their conditions. ``table`` has the costs in
    the formulas of times."""

    def __init__(
        self, kernel: CudaKernel, layout: Mapping[str, float], params: Mapping[str, int] | None, table: CostTable
    ) -> None:
        size = int(layout["size"])
        self.kernel, self.layout = kernel, layout
        self.params = _checked_sets(kernel) if params is None else (dict(params),)
        columns = {name: np.array([each[name] for each in self.params], float) for name in kernel.params}
        self._given = {**layout, LINE: 128 // size, **columns}
        self._priced = self._given | table.costs_of(kernel)
        self._blocks = self._table(_blocks(kernel, in_triangle=bool(layout["triangle"])))
        self._times = PreparedProgram(_times(kernel), self._priced)
        self._conditions, first = list[tuple[slice, PreparedProgram]](), 1
        for text, alike in itertools.groupby(kernel.presets if params is None else (), lambda preset: preset.when.text):
            some = slice(first, first := first + len(list(alike)))
            given = self._given | {name: column[some] for name, column in columns.items()}
            self._conditions.append((some, PreparedProgram(_condition(kernel, text), given)))
        at_once = [blocks_at_once(int(layout["sms"]), {**each, "PER_SM": 1}) for each in self.params]
        #: The blocks that run at once, one on a multiprocessor, and the elements of k of which its parts consist.
        self.at_once = np.array(at_once, float)
        self.step = np.array([kernel.step_of_k(size, each) for each in self.params], float)

    def _table(self, code: Staged) -> PreparedProgram:
        return PreparedProgram(code, self._given)

    @cached_property
    def in_blocks(self) -> npt.NDArray[np.bool_]:
        """For each set, whether it multiplies operands with scales of blocks."""
        return np.array([self.kernel.blocks is not None and self.kernel.blocks(**each) for each in self.params], bool)

    @cached_property
    def invariant(self) -> npt.NDArray[np.bool_]:
        """For each set, whether the bits of a row of C depend only on that row of A and on B."""
        rule = self.kernel.invariant
        return np.array([rule is not None and rule(**each) for each in self.params], bool)

    @cached_property
    def in_triangle(self) -> npt.NDArray[np.bool_]:
        """For each set, whether it can compute only the lower triangle of a symmetric C."""
        return np.array([self.kernel.triangle_blocks(each, 1, 1) > 0 for each in self.params], bool)

    @cached_property
    def _shared(self) -> PreparedProgram:
        return self._table(_shared(self.kernel))

    @cached_property
    def _cut_times(self) -> PreparedProgram:
        return PreparedProgram(_times(self.kernel, cut=True), self._priced)

    def search_programs(self, values: Sequence[str], columns: Sequence[str], total: PreparedProgram) -> tuple[Any, ...]:
        """The programs for ``native/columns.c`` that find the fastest way. The last one is ``total``, the time with
        copies."""
        count = len(self.params)
        of_all = (self._blocks, self._shared, self._cut_times, total)
        conditions = ((condition, some.start, some.stop) for some, condition in self._conditions)
        return tuple(
            table.search_program(values, columns, *some)
            for table, *some in (*((x, 0, count) for x in of_all), *conditions)
        )

    def allowed(self, m: int, n: int, k: int) -> Index:
        """The numbers of the sets that are allowed for a shape."""
        found = np.ones(len(self.params), bool)
        for some, condition in self._conditions:
            found[some] = condition(None, m=m, n=n, k=k) != 0
        return found.nonzero()[0]

    def blocks(self, index: Index, m: int, n: int, k: int) -> Column:
        """The thread blocks of a launch, for each of these sets."""
        return self._blocks(index, m=m, n=n, k=k)

    def shared(self, index: Index, m: int, n: int, k: int, vectors: int) -> Column:
        """Bytes of shared memory of a block, for an epilogue with this number of vectors that have one number for each
        column."""
        return self._shared(index, m=m, n=n, k=k, vectors=vectors)

    def seconds(self, index: Index, *, cut: bool = False, **varied: Any) -> Column:
        """The predicted times for each of these sets.

        ``varied`` has the values of those names of TIMED that are not in LAYOUT, except ``lines``, which this method
        computes. The value of ``blocks`` is a column. With ``cut`` (k is cut into parts), the values of ``parts``,
        ``part``, ``out_size`` and ``c_down`` are columns, too."""
        lines = varied["a_start"] == varied["b_start"] == 128
        try:
            return (self._cut_times if cut else self._times)(index, lines=lines, **varied)
        except ZeroDivisionError as error:
            raise ZeroDivisionError(f"{self.kernel.name}: {error}") from None


def sets_for(
    kernel: CudaKernel, layout: tuple[float, ...], params: Mapping[str, int] | None = None, table: str = BASE
) -> Sets:
    """The sets of a kernel, or only ``params``, for a layout whose values are in the order of LAYOUT. The costs are
    those of the header's table ``table``."""
    return _sets_for(kernel, layout, None if params is None else tuple(params.items()), table)


@functools.lru_cache(maxsize=256)  # depends on the header and its arguments alone
def _sets_for(
    kernel: CudaKernel, layout: tuple[float, ...], params: tuple[tuple[str, int], ...] | None, table: str
) -> Sets:
    given = dict(zip(LAYOUT, layout, strict=True))
    return Sets(kernel, given, None if params is None else dict(params), cost_table(table))


class PreparedProgram:
    """A program after its first stage, for the sets with the numbers ``index``; for all sets if that is None."""

    def __init__(self, code: Staged, given: Mapping[str, Any]) -> None:
        self._code, self._prepared = code, code.prepare(given)

    def __call__(self, index: Index | None, **others: Any) -> Column:
        return self._code.finish(self._prepared, index, others)

    def search_program(self, *given: Any) -> tuple[Any, ...]:
        """The program in the form that ``native/columns.c`` takes: see ``Staged.search_program``."""
        return self._code.search_program(self._prepared, *given)


# What follows of a header is checked and compiled once: a kernel never changes.


@functools.cache
def _checked_sets(kernel: CudaKernel) -> tuple[dict[str, int], ...]:
    """All parameters of the defaults and of each preset."""
    return tuple(kernel.checked(params) for params in ({}, *(preset.params for preset in kernel.presets)))


@functools.cache
def _times(kernel: CudaKernel, *, cut: bool = False) -> Staged:
    """The table ``time`` of the kernel's header, as a program of two stages."""
    return staged(
        kernel.time, (*_fixed(kernel), *kernel.costs), _VARIED, {*kernel.params, "blocks", *(_CUT if cut else ())}
    )


@functools.cache
def _blocks(kernel: CudaKernel, *, in_triangle: bool) -> Staged:
    if in_triangle and kernel.triangle is not None:
        return staged({"blocks": kernel.triangle}, _fixed(kernel), ("m", "n", "k"), kernel.params)
    extents = {f"along_{axis}": extent for axis, extent in zip("xyz", kernel.grid, strict=False)}
    steps = extents | {"blocks": Expression.parse(" * ".join(extents), extents)}
    return staged(steps, _fixed(kernel), ("m", "n", "k"), kernel.params)


@functools.cache
def _shared(kernel: CudaKernel) -> Staged:
    steps = {"shared": kernel.shared, "each": kernel.finishes or Expression.parse(0, ())}
    steps["needed"] = Expression.parse("shared + vectors * each", ["vectors", *steps])
    return staged(steps, _fixed(kernel), ("m", "n", "k", "vectors"), kernel.params)


@functools.cache
def _condition(kernel: CudaKernel, text: str) -> Staged:
    when = next(preset.when for preset in kernel.presets if preset.when.text == text)
    return staged({"when": when}, _fixed(kernel), ("m", "n", "k"), kernel.params)


def _fixed(kernel: CudaKernel) -> tuple[str, ...]:
    return (*LAYOUT, LINE, *kernel.params)
