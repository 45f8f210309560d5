"""The parts of PTX: a module has functions and variables; a function has instructions, each with its source line."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from ...gpu.runtime.includes import is_library
from .variables import NAME, Variable

_TOKEN = re.compile(r"\([^)]*\)|\{[^}]*\}|\[[^\]]*\]|[^,\s{}\[\]()]+")
WORD = re.compile(rf"(?<![\w$%.]){NAME}")


@dataclass(frozen=True)
class Where:
    """A place in the user's source; ``line`` is 0 where the PTX has no line information."""

    file: str = ""
    line: int = 0
    column: int = 0

    @property
    def in_library(self) -> bool:
        """Whether it is in a header of CUDA or of this package, which users did not write."""
        return is_library(self.file)


def place_of_user(where: Where, calls: tuple[Where, ...]) -> Where:
    """A place, or that of the innermost call in the user's files if it is in a header of a library."""
    return next((place for place in (where, *calls) if place.line and not place.in_library), where)


@dataclass(frozen=True)
class Instruction:
    """One instruction: ``ld.global.v2.f32 {%f1,%f2}, [%rd1+8]`` as opcode, operands and guard.

    ``index`` is its place in the program that runs (calls inlined); ``inlined_at`` is the source line of the call that
    it was inlined from, the outermost of nested calls, if the compiler gives it.
    """

    index: int
    opcode: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None  # predicate register, negated
    where: Where
    inlined_at: Where | None = None
    ptx_line: int = 0
    calls: tuple[Where, ...] = ()  # the calls that it was inlined from, the innermost first

    @property
    def users(self) -> Where:
        """Its place in the user's files: that of the innermost call there, if it is in a header of a library."""
        return place_of_user(self.where, self.calls)

    @property
    def parts(self) -> tuple[str, ...]:
        """The words of the opcode: ``("ld", "global", "v2", "f32")``."""
        return _words(self.opcode)

    @property
    def line(self) -> int:
        """The source line; 0 where the PTX has no line information."""
        return self.where.line

    @property
    def file(self) -> str:
        """The source file; "" where the PTX has no line information."""
        return self.where.file

    @property
    def text(self) -> str:
        """The instruction as PTX; of a long list of registers the first and the last."""
        guard = f"@{'!' if self.guard[1] else ''}{self.guard[0]} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(map(_shortened, self.operands))}".strip()

    def place(self, named: Instruction | None = None) -> str:
        """Its source line for messages, else its line of PTX; without the file if that is also the file of ``named``."""
        if not self.line:
            return f"PTX line {self.ptx_line}"
        return f"line {self.line}" if named is not None and named.file == self.file else f"{self.file}:{self.line}"


@functools.lru_cache(maxsize=1 << 12)
def _words(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.replace("::", ".").split("."))


def _shortened(operand: str) -> str:
    names = operand_tokens(operand[1:-1]) if operand.startswith("{") else []
    return f"{{{names[0]}, …, {names[-1]}}}" if len(names) > 8 else operand


@dataclass
class Function:
    """A kernel (``entry``) or a device function; one that is only declared is not ``defined`` and has no code.

    ``registers`` has the PTX type of each register, ``labels`` the place in ``code`` that each label marks, ``tables`` the
    labels of each branch table, ``limits`` the numbers along x, y, z of each directive that limits a launch (``reqntid``).
    """

    name: str
    entry: bool
    params: list[Variable] = field(default_factory=list)
    results: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)
    limits: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # by directive, such as reqntid
    defined: bool = False


@dataclass(eq=False)
class Module:
    """All functions and module-wide variables of a PTX text, by name, and its source files by number."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)


def operand_tokens(text: str) -> list[str]:
    """Operands of an instruction; a vector, an address or a list of arguments counts as one.

    >>> operand_tokens("{%f1, %f2}, [%rd1+8]")
    ['{%f1, %f2}', '[%rd1+8]']
    """
    return _TOKEN.findall(text)
