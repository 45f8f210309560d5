"""Expressions of a kernel's header as functions of arrays: the times of all sets of parameters at once.

What depends on *fixed* names alone is computed once, by a first function; a second one computes the rest for each shape.
Both are generated from the parsed expressions. Values of columns are float64, in which whole numbers below 2^53 and their
quotients, rounded down or up, are exact. Numbers that are no columns stay Python's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from .expression import KNOWN, Expression

#: Operations that are written alike of numbers and of columns.
_SIGNS = {
    **{"Add": "+", "Sub": "-", "Mult": "*", "Div": "/"},
    **{"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!="},
}
#: The code of each operation, of numbers and of columns.
_OPERATIONS: dict[str, tuple[str, str]] = {
    **{kind: (f"{{}} {sign} {{}}",) * 2 for kind, sign in _SIGNS.items()},
    "FloorDiv": ("{} // {}", "floor({} / {})"),
    "Mod": ("{} % {}", "remainder({}, {})"),
    "cdiv": ("-(-{} // {})", "ceil({} / {})"),
    "min": ("min({}, {})", "minimum({}, {})"),
    "max": ("max({}, {})", "maximum({}, {})"),
    "sqrt": ("sqrt({})", "square_root({})"),
    "USub": ("-{}",) * 2,
    "UAdd": ("+{}",) * 2,
}
_COMPARISONS = frozenset({"Lt", "LtE", "Gt", "GtE", "Eq", "NotEq"})
_NUMPY = {
    **{"minimum": np.minimum, "maximum": np.maximum, "remainder": np.remainder},
    **{"floor": np.floor, "ceil": np.ceil, "square_root": np.sqrt, "array": np.array, "float": float},
}


class _Coded(NamedTuple):
    """The code of a value. ``is_truth``: a column of bool, of which NumPy makes no sums."""

    code: str
    is_fixed: bool
    is_column: bool = False
    is_truth: bool = False
    is_constant: bool = False


class Staged(NamedTuple):
    """``prepare(**fixed)``: the numbers and columns that ``finish(numbers, columns, **others)`` takes, which computes the
    value of the last expression."""

    prepare: Callable[..., tuple[list[Any], list[Any]]]
    finish: Callable[..., Any]


def staged(
    steps: Mapping[str, Expression], fixed: Collection[str], others: Collection[str], columns: Collection[str]
) -> Staged:
    """Expressions, each of which may use those before it, as two functions. Of the names ``fixed`` and ``others`` those of
    ``columns`` are columns.

    >>> steps = {"area": Expression.parse("m * n", ["m", "n"]), "twice": Expression.parse("2 * B * area", ["B", "area"])}
    >>> prepare, finish = staged(steps, ["B"], ["m", "n"], ["B"])
    >>> finish(*prepare(B=np.array([1.0, 8.0])), m=2, n=3)
    array([12., 96.])
    """
    code = _Code(fixed, others, columns)
    for name, expression in steps.items():
        code.known[name] = code.value(expression.tree)
    result = code.taken(code.known[list(steps)[-1]])
    carried = [[text for text, is_column in code.carried.items() if is_column == wanted] for wanted in (False, True)]
    lines = [f"def prepare({', '.join(f'{name}=None' for name in fixed)}):", *code.lines[True]]
    lines += [f"    return [{', '.join(carried[0])}], [{', '.join(carried[1])}]"]
    lines += [f"def finish(numbers, columns, {', '.join(f'{name}=None' for name in others)}):"]
    lines += [
        f"    [{', '.join(carried[0])}] = numbers",
        f"    [{', '.join(carried[1])}] = columns",
        *code.lines[False],
    ]
    space: dict[str, Any] = {**KNOWN, **_NUMPY}
    exec("\n".join([*lines, f"    return {result}"]), space)  # every expression has been checked
    return Staged(space["prepare"], space["finish"])


class _Code:
    """The lines of both functions; what occurs twice is computed once."""

    def __init__(self, fixed: Collection[str], others: Collection[str], columns: Collection[str]) -> None:
        self.known = {name: _Coded(name, name in fixed, name in columns) for name in (*fixed, *others)}
        self.lines: dict[bool, list[str]] = {True: [], False: []}
        #: What the second function takes from the first one, and whether it is a column.
        self.carried: dict[str, bool] = {}
        self._found: dict[str, _Coded] = {}

    def value(self, node: ast.expr) -> _Coded:
        """The value of an expression that has been checked."""
        match node:
            case ast.Constant(value=number):
                return _Coded(repr(number), True, is_constant=True)
            case ast.Name(id=name):
                return self.known[name]
            case ast.UnaryOp(op=op, operand=operand):
                return self._of(type(op).__name__, self.value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._of(type(op).__name__, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self.value(each) for each in (left, *others)]
                found = [self._of(type(op).__name__, *values[i : i + 2]) for i, op in enumerate(ops)]
                return self._chain("Mult", found)
            case ast.Call(func=ast.Name(id=name), args=args):
                values = [self.value(each) for each in args]
                return self._of(name, *values) if name in ("cdiv", "sqrt") else self._chain(name, values)
        raise AssertionError(ast.dump(node))

    def _chain(self, operation: str, values: list[_Coded]) -> _Coded:
        first, *others = values
        for other in others:
            first = self._of(operation, first, other)
        return first

    def _of(self, operation: str, *values: _Coded) -> _Coded:
        is_column = any(value.is_column for value in values)
        is_fixed = all(value.is_fixed for value in values)
        # Columns that the second function takes are numbers.
        is_truth = is_column and all(value.is_truth and value.is_fixed == is_fixed for value in values)
        if is_truth and operation not in ("Mult", *_COMPARISONS):
            values, is_truth = tuple(self._named("{} * array(1.0)", [value]) for value in values), False
        if is_column:
            values = tuple(v if v.is_column else self._named("array(float({}))", [v], is_column=False) for v in values)
        is_truth = is_column and (is_truth or operation in _COMPARISONS)
        return self._named(_OPERATIONS[operation][is_column], values, is_column=is_column, is_truth=is_truth)

    def _named(
        self, template: str, values: Collection[_Coded], *, is_column: bool = True, is_truth: bool = False
    ) -> _Coded:
        """A value that is computed by this code, of the stage to which all of these belong."""
        is_fixed = all(value.is_fixed for value in values)
        text = template.format(*(value.code if is_fixed else self.taken(value) for value in values))
        if text not in self._found:
            name = f"t{len(self._found)}"
            self.lines[is_fixed].append(f"    {name} = {text}")
            self._found[text] = _Coded(name, is_fixed, is_column, is_truth)
        return self._found[text]

    def taken(self, value: _Coded) -> str:
        """Its code in the second function."""
        if value.is_fixed and not value.is_constant:
            self.carried[value.code] = value.is_column
        return value.code
