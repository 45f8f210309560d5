"""Evaluates the expressions of a kernel's header for all sets of parameters at once, as programs over columns.

A value is a number, or a column with one number for each set of parameters. All numbers are float64, in which integers
below 2^53 are exact, and so are quotients of such integers, rounded down or up. Expressions that contain only *fixed*
names, whose values are the same for many shapes, are computed once. All other expressions are computed for each shape
by the C front (``native/columns.c``), or by NumPy with the same bits.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...cpu.native import front
from ...kernels.expression import Expression

#: What computes each operation; the order is that of ``native/columns.c``.
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mult": lambda a, b: a * b,
    "Div": np.true_divide,
    "FloorDiv": lambda a, b: np.floor(np.true_divide(a, b)),
    "Mod": np.remainder,
    "cdiv": lambda a, b: np.ceil(np.true_divide(a, b)),
    "min": np.minimum,
    "max": np.maximum,
    "sqrt": lambda a, _: np.sqrt(a),
    "USub": lambda a, _: -a,
    "Lt": lambda a, b: (a < b) * 1.0,
    "LtE": lambda a, b: (a <= b) * 1.0,
    "Gt": lambda a, b: (a > b) * 1.0,
    "GtE": lambda a, b: (a >= b) * 1.0,
    "Eq": lambda a, b: (a == b) * 1.0,
    "NotEq": lambda a, b: (a != b) * 1.0,
}
OPERATIONS = tuple(_COMPUTED)

Column = npt.NDArray[np.float64]
#: Numbers of sets.
Index = npt.NDArray[np.intp]
_ALL: Index = np.empty(0, np.intp)


class _Node(NamedTuple):
    """A value of an expression: a name, a constant, or an operation on earlier values."""

    name: str = ""
    constant: float = 0.0
    operation: str = ""
    of: tuple[int, int] = (0, 0)
    is_fixed: bool = True
    is_column: bool = False


def staged(
    steps: Mapping[str, Expression], fixed: Collection[str], others: Collection[str], columns: Collection[str]
) -> Staged:
    """A program of expressions, each of which may use the results of earlier expressions; the result of the program is
    the value of the last expression. The names that occur in the expressions are ``fixed`` and ``others``; those that
    are also in ``columns`` have columns as values, and all others have numbers.

    >>> steps = {"area": Expression.parse("m * n", ["m", "n"]), "twice": Expression.parse("2 * B * area", ["B", "area"])}
    >>> program = staged(steps, ["B"], ["m", "n"], ["B"])
    >>> prepared = program.prepare({"B": np.array([1.0, 8.0])})
    >>> program.finish(prepared, None, {"m": 2, "n": 3})
    array([12., 96.])
    """
    code = _Code(fixed, others, columns)
    for name, expression in steps.items():
        code.known[name] = code.value(expression.tree)
    return Staged(code.values, code.known[list(steps)[-1]])


class Prepared(NamedTuple):
    """The values that a program computes from its fixed names: the numbers, the columns as rows of a table, and their
    length."""

    numbers: Column
    table: Column
    size: int


class Staged:
    """A program of two stages: the first uses only fixed names."""

    def __init__(self, values: Sequence[_Node], result: int) -> None:
        self._values, self._result = values, result
        used = {result}
        for number in range(len(values) - 1, -1, -1):
            if number in used and values[number].operation:
                used.update(values[number].of)
        second = [i for i in sorted(used) if not values[i].is_fixed]
        taken = {i for number in second for i in values[number].of if values[number].operation} | {result}
        carried, names = [i for i in sorted(taken) if values[i].is_fixed], [i for i in second if values[i].name]
        self._carried, self._given = (
            [[i for i in group if values[i].is_column == is_column] for is_column in (False, True)]
            for group in (carried, names)
        )
        self._steps = [i for i in second if values[i].operation]
        self._code, self._columns = self._coded()

    def _coded(self) -> tuple[bytes, int]:
        """The second stage as ``Program`` of ``native/columns.c``, and the number of its columns, those that it
        computes included."""
        places: dict[int, int] = {}
        ends = [0, 0]
        for groups in (self._carried, self._given, [[i for i in self._steps if not self._values[i].is_column], []]):
            for is_column, group in enumerate(groups):
                for number in group:
                    places[number] = ~ends[1] if is_column else ends[0]
                    ends[is_column] += 1
        for number in self._steps:
            if self._values[number].is_column:
                places[number] = ~ends[1]
                ends[1] += 1
        given = len(self._carried[0]) + len(self._given[0])
        head = [ends[0], given, len(self._carried[1]), len(self._given[1]), len(self._steps), places[self._result]]
        steps = (
            (OPERATIONS.index(value.operation), places[number], *(places[i] for i in value.of))
            for number, value in ((number, self._values[number]) for number in self._steps)
        )
        return np.array([*head, *(word for step in steps for word in step)], np.int32).tobytes(), ends[1]

    def prepare(self, given: Mapping[str, Any]) -> Prepared:
        """Run the first stage, for the values of the fixed names."""
        found: dict[int, Any] = {}
        for number, value in enumerate(self._values):
            if value.is_fixed and (not value.name or value.name in given):
                found[number] = _computed(value, found, given)
        numbers, rows = ([found[i] for i in carried] for carried in self._carried)
        table = np.ascontiguousarray(rows, float) if rows else np.empty((0, 0))
        return Prepared(np.array(numbers, float), table, max((np.size(each) for each in given.values()), default=1))

    def finish(self, prepared: Prepared, index: Index | None, others: Mapping[str, Any]) -> Column:
        """The result for the sets with the numbers ``index``; None means all sets. ``others`` has a value for each name
        that is not fixed.

        Raises ZeroDivisionError.
        """
        values, columns = ([others[self._values[i].name] for i in given] for given in self._given)
        given = tuple(np.ascontiguousarray(column, float) for column in columns)
        size = prepared.size if index is None else len(index)
        native = front()
        if native is None:
            return self._by_numpy(prepared, index, others, size)
        out = np.empty(size)
        index = _ALL if index is None else index
        if size:
            native.evaluate(
                self._code, self._columns, prepared.numbers, tuple(values), prepared.table, index, given, out
            )
        return out

    def search_program(
        self, prepared: Prepared, values: Sequence[str], columns: Sequence[str], first: int, end: int
    ) -> tuple[Any, ...]:
        """The second stage in the form that ``way_search`` of ``native/columns.c`` takes, for the sets from ``first``
        to ``end``. ``values`` and ``columns`` are the names of the values that each call passes."""
        names = ([self._values[i].name for i in given] for given in self._given)
        taken = (
            np.array([all_of.index(name) for name in some], np.int32).tobytes()
            for some, all_of in zip(names, (values, columns), strict=True)
        )
        return self._code, self._columns, prepared.numbers, prepared.table, *taken, first, end

    def _by_numpy(self, prepared: Prepared, index: Index | None, others: Mapping[str, Any], size: int) -> Column:
        found: dict[int, Any] = dict(zip(self._carried[0], prepared.numbers, strict=True))
        table = prepared.table if index is None else prepared.table.take(index, axis=1) if len(prepared.table) else ()
        found |= dict(zip(self._carried[1], table, strict=True))
        with np.errstate(divide="raise", invalid="raise"):
            try:
                for number in (*self._given[0], *self._given[1], *self._steps):
                    found[number] = _computed(self._values[number], found, others)
            except FloatingPointError as error:
                raise ZeroDivisionError(str(error)) from None
        return np.full(size, found[self._result]) if np.ndim(found[self._result]) == 0 else found[self._result]


def _computed(value: _Node, found: Mapping[int, Any], given: Mapping[str, Any]) -> Any:
    """Compute a value from earlier values and from the given names."""
    if value.name:
        column = np.asarray(given[value.name], float)
        return column if column.ndim else column[()]
    if not value.operation:
        return np.float64(value.constant)
    a, b = value.of
    return _COMPUTED[value.operation](found[a], found[b])


class _Code:
    """The values of expressions; an expression that occurs twice is computed once."""

    def __init__(self, fixed: Collection[str], others: Collection[str], columns: Collection[str]) -> None:
        self.values: list[_Node] = []
        self._found: dict[_Node, int] = {}
        names = (_Node(name, is_fixed=name in fixed, is_column=name in columns) for name in (*fixed, *others))
        self.known = {value.name: self._numbered(value) for value in names}

    def value(self, node: ast.expr) -> int:
        """The index in ``values`` of the value of an expression that was checked before."""
        match node:
            case ast.Constant(value=number):
                return self._numbered(_Node(constant=float(number)))  # type: ignore[arg-type]
            case ast.Name(id=name):
                return self.known[name]
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.value(operand)
            case ast.UnaryOp(op=op, operand=operand):
                return self._of(type(op).__name__, self.value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._of(type(op).__name__, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self.value(each) for each in (left, *others)]
                found = [self._of(type(op).__name__, *values[i : i + 2]) for i, op in enumerate(ops)]
                return self._chain("Mult", found)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._chain(name, [self.value(each) for each in args])
        raise AssertionError(ast.dump(node))

    def _chain(self, operation: str, values: list[int]) -> int:
        first, *others = values
        if operation == "sqrt":
            return self._of(operation, first)
        for other in others:
            first = self._of(operation, first, other)
        return first

    def _of(self, operation: str, *values: int) -> int:
        known = [self.values[number] for number in values]
        is_fixed, is_column = all(value.is_fixed for value in known), any(value.is_column for value in known)
        return self._numbered(_Node("", 0.0, operation, (values[0], values[-1]), is_fixed, is_column))

    def _numbered(self, value: _Node) -> int:
        if value not in self._found:
            self._found[value] = len(self.values)
            self.values.append(value)
        return self._found[value]
