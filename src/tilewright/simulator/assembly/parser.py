"""Parses PTX text into a module: functions with decoded instructions, each with its source line, and the memory that
they declare.

The parser reads PTX (PTX ISA, chapters 4, 5 and 10) as compilers write it and as people write it in inline assembly.
The parser handles scoped registers and labels, vectors, predicates, initialised memory, and ``.loc`` with
``inlined_at``. Debug sections are skipped. The meaning of opcodes is defined in ``ops``.
"""

from __future__ import annotations

import bisect
import re

from ...errors import TilewrightError, UsageError
from .instructions import (
    NAME,
    SIZES,
    WORD,
    Function,
    Instruction,
    Module,
    Variable,
    Where,
    operand_tokens,
    parse_variable,
    syntax_error,
)

#: The most registers in one declaration, ``%r<N>``. The limit is high, because compilers number registers without reusing
#: them, so large kernels have many.
MOST_REGISTERS = 1 << 20
#: A space, or the bracket of the first operand.
_END_OF_OPCODE = re.compile(r"[\s{\[]")
_LABEL = re.compile(rf"({NAME})\s*:(?!:)")
_FUNCTION = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(entry|func)\b")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*?inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")


class _Reader:
    """Splits a PTX text into statements, and tracks the line number for messages."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text.removeprefix("\ufeff"), flags=re.S)
        self.text, self.at = re.sub(r"//[^\n]*", "", text), 0
        self.starts = [0] + [m.end() for m in re.finditer("\n", self.text)]

    def line(self) -> int:
        return bisect.bisect_right(self.starts, self.at)

    def skip_space(self) -> str:
        self.at += (
            len(self.text[self.at :])
            if not (m := re.compile(r"\S").search(self.text, self.at))
            else (m.start() - self.at)
        )
        return self.text[self.at : self.at + 1]

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def until(self, stops: str) -> tuple[str, str]:
        stop = re.compile(f"[{stops}]").search(self.text, self.at)
        if not stop:
            raise syntax_error(f"the text ends inside {self.text[self.at : self.at + 40]!r}", self.line())
        out = self.text[self.at : stop.start()]
        self.at = stop.end()
        return out.strip(), stop[0]


_LINE = re.compile(r"\.version\s+[\d.]+|\.target\s+\w+(?:\s*,\s*\w+)*|\.address_size\s+\d+|\.(?:file|loc)\b[^\n]*")
_SECTION = re.compile(r"\.section\b[^{]*\{[^}]*\}")
_PRAGMA = re.compile(r"\.(?:pragma|alias|noreturn|callprototype|calltargets)\b[^;]*;")
_LIMIT = re.compile(
    r"\.(reqntid|maxntid|reqnctapercluster|maxnreg|minnctapersm|maxclusterrank|explicitcluster)\b(?:\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?)?"
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')


def parse_ptx(text: str) -> Module:
    """Parse the PTX text of a module.

    Raises UsageError, with the line of PTX, if the text is not PTX.
    """
    reader, module = _Reader(text), Module()
    for number, name, inside in _FILE.findall(reader.text):
        module.files[int(number)] = f"{name}/{inside}" if inside else name
    try:
        while reader.skip_space():
            _declaration(reader, module)
    except TilewrightError:
        raise
    except ValueError as error:  # text in place of a number
        raise syntax_error(f"not understood ({error})", reader.line()) from error
    if not module.functions:
        raise UsageError("the text holds no function: give PTX, for example what nvcc -ptx or NVRTC returns")
    return module


def _declaration(reader: _Reader, module: Module) -> None:
    """One directive, function or variable of the module."""
    if reader.match(_LINE) or reader.match(_SECTION) or reader.match(_PRAGMA):
        return
    if reader.match(_FUNCTION):
        reader.at = reader.text.rindex(".", 0, reader.at)
        _function(reader, module)
        return
    line = reader.line()
    declared, _ = reader.until(";")
    for variable in parse_variable(declared, line):
        module.variables[variable.name] = variable


def _function(reader: _Reader, module: Module) -> None:
    line = reader.line()
    head, stop = reader.until(";{")
    kind = "entry" if head.startswith(".entry") else "func"
    found = re.match(rf"\.(?:entry|func)\s*(\([^)]*\))?\s*({NAME})\s*(\([^)]*\))?", head)
    if not found:
        raise syntax_error(f"not a function: {head[:60]!r}", line)
    function = Function(found[2], kind == "entry")
    for limit, *sizes in _LIMIT.findall(head, found.end()):
        function.limits[limit] = (int(sizes[0] or 1), int(sizes[1] or 1), int(sizes[2] or 1))
    for text, into in ((found[1], function.results), (found[3], function.params)):
        for part in re.split(r",", (text or "()")[1:-1]):
            if part.strip():
                if ".reg" in part:
                    raise syntax_error(f"function {found[2]}: register arguments are not supported, only .param", line)
                into.extend(parse_variable(part, line))
    if stop == "{":
        _Body(reader, module, function).read()
        function.defined = True
    if function.defined or function.name not in module.functions:
        module.functions[function.name] = function


class _Body:
    """Reads the statements of one function. Names that an inner scope declares get a suffix that is unique to the
    scope."""

    def __init__(self, reader: _Reader, module: Module, function: Function) -> None:
        self.reader, self.module, self.function = reader, module, function
        self.where = Where()
        self.calls: tuple[Where, ...] = ()  # those that the instruction was inlined from, the innermost first
        self.calls_of: dict[Where, tuple[Where, ...]] = {}  # the same of each place in an inlined function
        self.scopes: list[dict[str, str]] = [{}]
        self.count = 0
        self.pending: str | None = None

    def read(self) -> None:
        reader = self.reader
        while self.scopes:
            start = reader.skip_space()
            if not start:
                raise syntax_error(f"function {self.function.name} has no end", reader.line())
            if start in "{}":
                reader.at += 1
                if start == "}":
                    self.scopes.pop()
                else:
                    self.count += 1
                    self.scopes.append(self.labels_ahead())
            elif found := reader.match(_LINE):
                self.locate(found[0])
            elif found := reader.match(_LABEL):
                self.pending = self.renamed(found[1])
                self.function.labels[self.pending] = len(self.function.code)
            elif not reader.match(_PRAGMA):
                line = reader.line()
                self.statement(*self.whole(), line)

    def whole(self) -> tuple[str]:
        return (self.reader.until(";")[0],)

    def labels_ahead(self) -> dict[str, str]:
        """Find the labels of the scope that begins here, because branches may use labels before their definition."""
        text, depth, at = self.reader.text, 1, self.reader.at
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        inside = re.findall(rf"(?:^|[;{{\n])\s*({NAME})\s*:(?!:)", text[self.reader.at : at])
        return {name: f"{name}$s{self.count}" for name in inside}

    def renamed(self, text: str) -> str:
        names: dict[str, str] = {}
        for scope in self.scopes:
            names |= scope
        return WORD.sub(lambda m: names.get(m[0], m[0]), text) if names else text

    def locate(self, text: str) -> None:
        if found := _LOC.match(text):
            file, line, column, *call = (int(x) if x else 0 for x in found.groups())
            self.where = Where(self.module.files.get(file, ""), line, column)
            self.calls = ()
            if call[1]:
                from_here = Where(self.module.files.get(call[0], ""), call[1], call[2])
                self.calls = self.calls_of[self.where] = (from_here, *self.calls_of.get(from_here, ()))

    def declare(self, name: str) -> str:
        if len(self.scopes) > 1:
            self.scopes[-1][name] = f"{name}$s{self.count}"
            return f"{name}$s{self.count}"
        return name

    def statement(self, text: str, line: int) -> None:
        function = self.function
        if text.startswith(".reg"):
            kind = next((k for k in re.findall(r"\.(\w+)", text) if k in SIZES), "")
            if not kind:
                raise syntax_error(f"no type of known size in {text[:60]!r}", line)
            for name, count in re.findall(rf"({NAME})(?:<(\d+)>)?", re.sub(r"\.\w+", " ", text)):
                if int(count or 0) > MOST_REGISTERS:
                    raise syntax_error(f"{count} registers {name}: at most {MOST_REGISTERS:,} can be run", line)
                for each in [f"{name}{i}" for i in range(int(count))] if count else [name]:
                    function.registers[self.declare(each)] = kind
        elif text.startswith(".branchtargets"):
            function.tables[self.pending or ""] = [self.renamed(t) for t in operand_tokens(text)[1:]]
        elif text.startswith("."):
            for v in parse_variable(text, line):
                name = self.declare(v.name)
                function.variables[name] = Variable(name, v.space, v.type, v.align, v.size, v.data, v.symbols)
        elif text:
            self.instruction(text, line)

    def instruction(self, text: str, line: int) -> None:
        guard = None
        if found := re.match(r"@(!?)\s*([^\s]+)\s+", text):
            guard = (self.renamed(found[2]), found[1] == "!")
            text = text[found.end() :]
        end = found.start() if (found := _END_OF_OPCODE.search(text)) else len(text)
        opcode, rest = text[:end], text[end:].replace("\t", " ").replace("\n", " ")
        operands = tuple(self.renamed(t) for t in operand_tokens(rest))
        code = self.function.code
        outermost = self.calls[-1] if self.calls else None
        code.append(Instruction(len(code), opcode, operands, guard, self.where, outermost, line, self.calls))
