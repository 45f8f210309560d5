"""Arithmetic expressions that a kernel's header contains as text. Expressions of integers give the grid, the block, the
memory and the parameters of a launch; expressions of real numbers give times.

A header may come from a file of any author. So an expression is first parsed, and is run as Python only if every node
is one of the few kinds of arithmetic that are allowed. ``gpu.planning.columns`` evaluates many expressions at once, on
arrays.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from ..errors import UsageError, did_you_mean

#: The most characters of an expression of whole numbers, and of one of real numbers. No kernel needs more, and very long
#: expressions can exhaust the parser.
LONGEST, LONGEST_REAL = 300, 400


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up: the number of tiles of size b that cover a.

    >>> cdiv(33, 32), cdiv(32, 32), cdiv(0, 32)
    (2, 1, 0)
    """
    return -(-a // b)


_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "cdiv": cdiv, "sqrt": math.sqrt}
#: How many arguments each function takes, at least and at most.
_ARGUMENTS = {"min": (2, 9), "max": (2, 9), "cdiv": (2, 2), "sqrt": (1, 1)}
#: What only expressions of real numbers have.
_REAL = frozenset({"sqrt"})
_ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Mod | ast.Div
_COMPARISONS = ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE
#: All functions that an expression can call; Python's built-in functions are not available.
EVAL_GLOBALS: dict[str, Any] = {**_FUNCTIONS, "__builtins__": {}}

#: Names that have a meaning in every expression.
RESERVED = frozenset({"m", "n", "k", *_FUNCTIONS})


@dataclass(frozen=True)
class Expression:
    """An expression that has been checked: call it with the values of its names.

    >>> Expression.parse("cdiv(n, TILE) * 2", ["n", "TILE"])(n=100, TILE=32)
    8
    """

    text: str
    tree: ast.expr

    @classmethod
    def parse(cls, text: str | float, names: Iterable[str], *, real: bool = False) -> Expression:
        """Parse an expression over ``names``: an expression of whole numbers, or of real numbers if ``real`` is true.
        Raises UsageError for anything that is not arithmetic.

        >>> Expression.parse("sqrt(n) / 2e3", ["n"], real=True)(n=4)
        0.001
        """
        text = str(text).strip()
        if len(text) > (most := LONGEST_REAL if real else LONGEST):
            raise UsageError(f"expression of {len(text)} characters: {most} at most")
        try:
            tree = ast.parse(text, mode="eval").body
            _check(tree, frozenset(names), real)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = str(error) if isinstance(error, UsageError) else "it does not parse"
            rule = "whole numbers, names, + - * // %, comparisons, min, max and cdiv"
            rule = f"{rule}, and as a time real numbers, / and sqrt" if real else rule
            raise UsageError(f"expression {text!r}: {reason}; it may hold {rule}") from None
        return cls(text, tree)

    def __call__(self, **values: Any) -> Any:
        """The value (of a comparison: True or False). Raises UsageError where it divides by zero."""
        return self.of(values)

    def of(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the expression; ``values`` is a mapping, which is not copied."""
        try:
            return eval(_code(self.text), EVAL_GLOBALS, values)  # every node has been checked
        except ZeroDivisionError:
            given = ", ".join(f"{name}={value}" for name, value in values.items())
            raise UsageError(f"expression {self.text!r} divides by zero at {given}") from None

    @property
    def names(self) -> frozenset[str]:
        """The names in the expression that need a value."""
        return frozenset(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)) - _FUNCTIONS.keys()


class Expressions:
    """Several expressions that are evaluated in one call.

    >>> Expressions((Expression.parse("n // 2", ["n"]), Expression.parse("n + 1", ["n"]))).of({"n": 6})
    (3, 7)
    """

    def __init__(self, several: Iterable[Expression]) -> None:
        self._several = tuple(several)
        self._text = f"({''.join(f'{each.text}, ' for each in self._several)})"

    def of(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The value of each expression. Raises UsageError if one of the expressions divides by zero."""
        try:
            found: tuple[Any, ...] = eval(_code(self._text), EVAL_GLOBALS, values)  # each of them has been checked
        except ZeroDivisionError:
            return tuple(each.of(values) for each in self._several)  # which says where
        return found


def _check(node: ast.expr, names: frozenset[str], real: bool) -> None:
    """Raises UsageError at the first node that is not arithmetic."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return
        case ast.Constant(value=float()) if real:
            return
        case ast.Name(id=name):
            if name not in names:
                raise UsageError(f"{name} is not known ({did_you_mean(name, names)})")
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            parts = [node.operand]
        case ast.BinOp(op=ast.Div()) if not real:
            raise UsageError("/ may give a fraction: write // or cdiv(a, b)")
        case ast.BinOp(op=op) if isinstance(op, _ARITHMETIC):
            parts = [node.left, node.right]
        case ast.Compare(ops=ops) if all(isinstance(op, _COMPARISONS) for op in ops):
            parts = [node.left, *node.comparators]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS and (real or name not in _REAL):
            least, most = _ARGUMENTS[name]
            if not least <= len(node.args) <= most:
                raise UsageError(f"{name} takes {least} numbers{' or more' * (most > least)}, got {len(node.args)}")
            parts = node.args
        case _:
            raise UsageError(f"{ast.unparse(node)!r} is not arithmetic")
    for part in parts:
        _check(part, names, real)


@functools.cache
def _code(checked: str) -> CodeType:
    """The compiled code of an expression that has been checked. It is cached here and not in ``Expression``, because
    expressions are pickled with their kernels, and code cannot be."""
    return compile(checked, "<expression>", "eval")


# ---- parameters of CUDA kernels, as their headers declare them -------------------------------------------------------

#: The form of a macro's name, as a regular expression.
MACRO = r"[A-Z][A-Z0-9_]*"


class WrongHeaderError(Exception):
    """A header is missing or wrong; the message does not name the file yet."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its name, its default and the values that it may have."""

    name: str
    default: int
    values: tuple[int, ...] | range

    @property
    def rule(self) -> str:
        """The values that the parameter may have, as text."""
        if isinstance(self.values, range):
            step = f" in steps of {self.values.step}" if self.values.step > 1 else ""
            return f"from {self.values[0]} to {self.values[-1]}{step}"
        return f"one of {', '.join(map(str, self.values))}"


def parameter_of(name: str, table: Any) -> Parameter:
    """Read a parameter from its table in a header. Raises WrongHeaderError if the table is wrong."""
    key = f"params.{name}"
    if not re.fullmatch(MACRO, name) or name in RESERVED:
        raise WrongHeaderError(f"{key}: a parameter becomes a macro, so its name must be capitals, such as TILE")
    if not isinstance(table, dict) or not (
        set(table) <= {"default", "values"} or set(table) <= {"default", "min", "max", "step"}
    ):
        rule = "{ default = 32, values = [8, 16, 32] } or { default = 32, min = 8, max = 64, step = 8 }"
        raise WrongHeaderError(f"{key} must look like {rule}, got {table!r}")
    for part, value in table.items():
        numbers, rule = (value, "a list of whole numbers") if part == "values" else ([value], "a whole number")
        if not isinstance(numbers, list) or not numbers or any(type(number) is not int for number in numbers):
            raise WrongHeaderError(f"{key}.{part} must be {rule}, got {value!r:.80}")
        if any(abs(number) >= 1 << 31 for number in numbers):
            raise WrongHeaderError(f"{key}.{part} must be below 2^31, because it becomes an int of the source")
    for part in ("default",) if "values" in table else ("default", "min", "max"):
        if part not in table:
            raise WrongHeaderError(f"{key}.{part} is missing")
    step = table.get("step", 1)
    if step < 1:
        raise WrongHeaderError(f"{key}.step must be at least 1, got {step}")
    values = tuple(table["values"]) if "values" in table else range(table["min"], table["max"] + 1, step)
    if table["default"] not in values:
        raise WrongHeaderError(f"{key}.default must be one of its allowed values, got {table['default']}")
    return Parameter(name, table["default"], values)
