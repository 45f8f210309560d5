"""Removes the host code of a CUDA source, so that NVRTC can compile a file that was written for nvcc.

NVRTC does not support host functions, ``<<<…>>>`` and the host's headers. ``DeviceCode`` removes them by a tolerant
scan: the text is cut into declarations, and a function is kept only if it is marked for the GPU. The compiler may
refuse a declaration that the scan kept, such as a structure with a ``std::string``. A declaration that the compiler
refuses is removed in a further round, if nothing in it is marked for the GPU. Removed text becomes spaces, so that
every line keeps its number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

#: Comments, strings, characters and directives of the preprocessor: what may hold brackets that mean nothing.
_OPAQUE = re.compile(
    r"""(?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)"""
    r"""|(?P<directive>^[ \t]*\#(?:/\*.*?\*/|//[^\n]*|[^\n\\/]|/|\\\r?\n|\\)*)"""
    r"""|R"(?P<tag>[^()\\\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'""",
    re.DOTALL | re.MULTILINE,
)
_MARKED = r"__global__|__device__|__constant__|__shared__|__managed__|\w*DEVICE\w*"
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\\r?\n|\\.)*)", re.MULTILINE)
_ATTRIBUTE = re.compile(
    r"\b(?:__align__|alignas|__attribute__|__declspec|__launch_bounds__)\s*\((?:[^()]|\([^()]*\))*\)"
)
_KEYWORD = re.compile(r"(?:using|typedef|static_assert|struct|class|union|enum|namespace|friend|asm)\b")
_CONSTANT = re.compile(r"\b(?:const|constexpr|constinit)\b")
_CONDITION = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b")
_OF_HOST = re.compile(r"\bcuda(?:Error_t|Malloc|Memcpy\w*|GetErrorString)\b|<<<|\bstd::(?:cout|cerr|vector|string)\b")
_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include(?:_next)?[ \t]*)(?:"([^"\n]+)"|<([^>\n]+)>)[^\n]*$', re.MULTILINE)

#: Beginnings of the names of PyTorch's headers, and what is included in their place.
TORCH = ("torch/", "ATen/", "c10/", "pybind11/")
STAND_IN_OF_TORCH = "torch_types.h"


@dataclass
class Declaration:
    """A declaration of a source, from one offset to another. ``marked`` means that the declaration is marked for the
    GPU, or contains something that is marked so."""

    start: int
    end: int
    marked: bool
    kept: bool


class DeclaredText:
    """The text of one file, cut into declarations."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.mask, self.directives = _masked(text)
        self.starts = [0, *(found.end() for found in re.finditer("\n", text))]
        # A macro that stands for such a word, or for a declaration with one, is one too.
        marking = [name for name, body in _MACRO.findall(text) if re.search(rf"\b(?:{_MARKED})\b", body)]
        self.marks = re.compile(rf"\b(?:{'|'.join([_MARKED, *marking])})\b")
        self.declarations = list(self._cut(0, len(text), inside=False))

    def without_host_code(self) -> str:
        """The text, with spaces in place of the declarations that are removed. Directives are kept."""
        parts, at = [], 0
        for one in self.declarations:
            if not one.kept and one.start >= at:
                parts += [self.text[at : one.start], self._blank(one.start, one.end)]
                at = one.end
        return "".join([*parts, self.text[at:]])

    def drop(self, line: int) -> bool:
        """Remove the innermost declaration at a line, if nothing in it is for the GPU. Returns whether there was
        one."""
        first, last = self.starts[line - 1], self.starts[line] if line < len(self.starts) else len(self.text)
        found = [one for one in self.declarations if one.start < last and first < one.end]
        innermost = min(found, key=lambda one: one.end - one.start, default=None)
        if innermost is None or innermost.marked or not innermost.kept:
            return False
        innermost.kept = False
        return True

    def _blank(self, start: int, end: int) -> str:
        parts, at = [], start
        for first, last in self.directives:
            if start <= first and last <= end:
                parts += [re.sub(r"[^\n]", " ", self.text[at:first]), self.text[first:last]]
                at = last
        return "".join([*parts, re.sub(r"[^\n]", " ", self.text[at:end])])

    def _cut(self, at: int, end: int, *, inside: bool) -> Iterator[Declaration]:
        """The declarations between two offsets; ``inside`` says that they are in the braces of a class."""
        mask = self.mask
        while found := re.compile(r"[^\s;}]").search(mask, at, end):
            start = found.start()
            if label := re.compile(r"(?:public|private|protected)\s*:").match(mask, start):
                at = label.end()
            elif macro := self._macro_call(start, end):
                at, marked = macro, self._is_marked(start, macro)
                yield Declaration(start, at, marked, kept=marked)
            else:
                stop = _stop(mask, start, end)
                head = mask[start:stop]
                if stop >= end or mask[stop] == ";":
                    at = min(stop + 1, end)
                    yield self._plain(start, at, head, inside=inside)
                elif re.match(r"(?:inline\s+)?namespace\b", head) or re.search(
                    r'extern\s*"[^"]*"\s*$', self.text[start:stop]
                ):
                    at = _close(mask, stop, end) + 1
                    yield from self._cut(stop + 1, at - 1, inside=False)
                elif _is_variable(head):
                    at = _statement_end(mask, stop, end)
                    yield self._plain(start, at, head, inside=inside)
                elif _is_class(head):
                    close = _close(mask, stop, end)
                    at = _statement_end(mask, stop, end)
                    yield Declaration(start, at, self._is_marked(start, at), kept=True)
                    yield from self._cut(stop + 1, close, inside=True)
                else:
                    at = _function_end(mask, stop, end)
                    marked = self._is_marked(start, stop)
                    yield Declaration(start, at, marked, marked or inside or "constexpr" in head)

    def _plain(self, start: int, end: int, head: str, *, inside: bool) -> Declaration:
        """A declaration without a body: a name for a type, a variable, a prototype."""
        marked = self._is_marked(start, end)
        named = _KEYWORD.match(_without_template(head)) is not None
        return Declaration(start, end, marked, marked or inside or named or _CONSTANT.search(head) is not None)

    def _is_marked(self, start: int, end: int) -> bool:
        return self.marks.search(self.mask, start, end) is not None

    def _macro_call(self, start: int, end: int) -> int:
        """The offset at which a macro ends that stands alone as a declaration, without a semicolon; 0 if no such macro
        begins here."""
        found = re.compile(r"[A-Z][A-Z0-9_]*\s*\(").match(self.mask, start, end)
        if not found:
            return 0
        close = _close(self.mask, found.end() - 1, end)
        following = re.compile(r"\s*(\S)").match(self.mask, close + 1, end)
        return 0 if following and not (following[1].isalnum() or following[1] in "_#}") else close + 1


def _masked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text with spaces in place of everything that is not code, and the positions of the directives. If the
    branches of an ``#if`` do not balance their braces, only the first branch counts as code."""
    directives: list[tuple[int, int]] = []

    def blank(match: re.Match[str]) -> str:
        if match["directive"] is not None:
            directives.append(match.span())
        quote = match[0][0] if match[0][0] in "\"'" else ""
        inside = re.sub(r"[^\n]", " ", match[0][len(quote) : len(match[0]) - len(quote)])
        return f"{quote}{inside}{quote}"

    mask = _OPAQUE.sub(blank, text)
    open_groups: list[list[int]] = []  # of each #if, where its branches begin
    for start, end in directives:
        kind = found[1] if (found := _CONDITION.match(text, start, end)) else ""
        if kind.startswith("if"):
            open_groups.append([end])
        elif kind in ("elif", "else") and open_groups:
            open_groups[-1].append(end)
        elif kind == "endif" and open_groups:
            first, *others = open_groups.pop()
            bounds = [first, *others, start]
            branches = [mask[a:b] for a, b in pairwise(bounds)]
            if others and any(branch.count("{") != branch.count("}") for branch in branches):
                mask = mask[: others[0]] + re.sub(r"[^\n]", " ", mask[others[0] : start]) + mask[start:]
    return mask, directives


def _stop(mask: str, at: int, end: int) -> int:
    """The next semicolon or opening brace outside of parentheses."""
    brackets = re.compile(r"[(\[{;]")
    while found := brackets.search(mask, at, end):
        if found[0] in "{;":
            return found.start()
        at = _close(mask, found.start(), end) + 1
    return end


def _close(mask: str, at: int, end: int) -> int:
    """The offset at which the bracket at an offset is closed."""
    pair = {"(": "()", "[": "[]", "{": "{}"}[mask[at]]
    depth = 0
    for found in re.compile(f"[{re.escape(pair)}]").finditer(mask, at, end):
        depth += 1 if found[0] == pair[0] else -1
        if not depth:
            return found.start()
    return end - 1


def _statement_end(mask: str, brace: int, end: int) -> int:
    """The offset at which a declaration with braces ends, after its semicolon."""
    stop = brace
    while stop < end and mask[stop] == "{":
        stop = _stop(mask, _close(mask, stop, end) + 1, end)
    return min(stop + 1, end)


def _function_end(mask: str, brace: int, end: int) -> int:
    """The offset at which a function ends, after its body. Members may be initialised in braces before the body."""
    at = _close(mask, brace, end) + 1
    while found := re.compile(r"\s*(\{|,[^;{}]*\{)").match(mask, at, end):
        at = _close(mask, found.end() - 1, end) + 1
    return at


def _without_template(head: str) -> str:
    """The head of a declaration without a leading ``template <…>``."""
    while found := re.match(r"\s*template\s*<", head):
        depth, at = 1, found.end()
        while depth and at < len(head):
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            at += 1
        head = head[at:]
    return head.lstrip()


def _reduced(head: str) -> str:
    """The head of a declaration without templates, attributes and the contents of brackets."""
    head = _ATTRIBUTE.sub(" ", _without_template(head))
    before = ""
    while before != head:
        before, head = head, re.sub(r"\([^()]*\)|<[^<>=;]*>", " ", head)
    return head


def _is_variable(head: str) -> bool:
    return "operator" not in head and re.search(r"(?<![=!<>])=(?!=)", _reduced(head)) is not None


def _is_class(head: str) -> bool:
    plain = _ATTRIBUTE.sub(" ", _without_template(head))
    return (
        "(" not in plain
        and re.match(r"(?:(?:typedef|static|const|constexpr)\s+)*(?:struct|class|union|enum)\b", plain) is not None
    )


# ---- the files of a source -------------------------------------------------------------------------------------------


@dataclass
class _File:
    """A file of the caller's: its text, what it includes, and whether its host code is left out."""

    text: str
    folders: Sequence[Path]
    left_out: bool = False
    missing: set[str] = field(default_factory=set)
    _declared: DeclaredText | None = None

    @property
    def declared(self) -> DeclaredText:
        if self._declared is None:
            self._declared = DeclaredText(self.text)
        return self._declared


class DeviceCode:
    """A source, and those files that it includes which belong to the caller. Host code that the compiler refuses is
    removed.

    ``has_kernel`` says whether the source may still contain a kernel. ``written`` writes the included files to a
    folder, and returns the text of the source, which includes them from there. ``learn`` takes the compiler's log and
    removes more code; it returns False if nothing more can be removed.
    """

    def __init__(
        self,
        source: str,
        name: str,
        folders: Sequence[Path],
        libraries: Sequence[Path],
        comes_with_compiler: Callable[[str], bool],
    ) -> None:
        """``libraries`` are those of ``folders`` whose files are not changed."""
        self.name, self.folders, self.libraries = name, folders, libraries
        #: Headers that were not found, and whether their names are in quotation marks.
        self.missing: dict[str, bool] = {}
        self.files: dict[str, _File] = {name: _File(source, folders, left_out=True)}
        waiting = [name]
        while waiting:
            file = self.files[waiting.pop()]
            for path in self._included(file).values():
                if str(path) not in self.files:
                    text = path.read_text(encoding="utf-8-sig", errors="replace")
                    # What is beside the source, or uses the host's library, is of the host too; others only if refused.
                    left_out = path.is_relative_to(Path(name).absolute().parent) or _OF_HOST.search(text) is not None
                    self.files[str(path)] = _File(text, [path.parent, *folders], left_out)
                    waiting.append(str(path))
        for file in self.files.values():
            included = self._included(file)
            for _, quoted, angled in _INCLUDE.findall(file.text):
                header = quoted or angled
                found = header in included or any((library / header).is_file() for library in libraries)
                if not found and not comes_with_compiler(header):
                    file.missing.add(header)
                    self.missing[header] = bool(quoted)

    @property
    def has_kernel(self) -> bool:
        """Whether the source may still contain a kernel."""
        return any("__global__" in file.text for file in self.files.values())

    def host_functions(self, names: Sequence[str]) -> dict[str, str]:
        """The functions of ``names`` that were removed as host code, each with its file and line."""
        found = {}
        for path, file in self.files.items():
            for one in file.declared.declarations if file.left_out else ():
                head = file.text[one.start : one.end].partition("{")[0]
                for name in names if not one.kept else ():
                    if re.search(rf"\b{re.escape(name)}\s*\(", head):
                        found[name] = f"{path}({file.text.count(chr(10), 0, one.start) + 1})"
        return found

    def _included(self, file: _File) -> dict[str, Path]:
        """The caller's files that a file includes, by the names that the file uses for them."""
        found = {}
        for _, quoted, angled in _INCLUDE.findall(file.text):
            path = next((p for folder in file.folders if (p := folder / (quoted or angled)).is_file()), None)
            if path is not None and not any(path.is_relative_to(library) for library in self.libraries):
                found[quoted or angled] = path.resolve()
        return found

    def written(self, folder: Path) -> str:
        """The text to compile. The files that the source includes are written to ``folder``."""
        places = {name: folder / f"{number}-{Path(name).name}" for number, name in enumerate(self.files)}
        for name, place in places.items():
            if name != self.name:
                place.write_text(f'#line 1 "{name}"\n{self._text(self.files[name], places)}', encoding="utf-8")
        return self._text(self.files[self.name], places)

    def _text(self, file: _File, places: Mapping[str, Path]) -> str:
        included = self._included(file)

        def line(match: re.Match[str]) -> str:
            name = match[2] or match[3]
            if name in included:
                return f'{match[1]}"{places[str(included[name])]}"'
            if name in file.missing:
                return f"{match[1]}<{STAND_IN_OF_TORCH}>" if name.startswith(TORCH) else ""
            return match[0]

        return _INCLUDE.sub(line, file.declared.without_host_code() if file.left_out else file.text)

    def learn(self, log: str) -> bool:
        """Remove the code that a log of NVRTC complains about: an include of a header that NVRTC lacks, or a
        declaration that is not for the GPU. Returns whether anything was removed."""
        changed = False
        for name, line, words in re.findall(r"^(.+?)\((\d+)\): (?:catastrophic )?error: (.*)", log, re.MULTILINE):
            file = self.files.get(name)
            if file is None:
                changed = self._without_library(name) or changed
            elif header := re.match(r'(?:cannot|could not) open source file "([^"]+)"', words):
                changed = changed or header[1] not in file.missing
                file.missing.add(header[1])
                self.missing[header[1]] = f'"{header[1]}"' in file.text
            elif not file.left_out:
                file.left_out = changed = True
            else:
                changed = file.declared.drop(int(line)) or changed
        return changed

    def _without_library(self, name: str) -> bool:
        """Leave out all headers of the library that has a file, such as Thrust, if it has a folder of its own."""
        parts, changed = Path(name).parts, False
        for file in self.files.values():
            for _, quoted, angled in _INCLUDE.findall(file.text):
                library = Path(quoted or angled).parts
                if len(library) > 1 and library[0] in parts and (quoted or angled) not in file.missing:
                    file.missing.add(quoted or angled)
                    changed = True
        return changed
