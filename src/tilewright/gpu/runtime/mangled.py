"""Names of functions as C++ writes them, from the compiler's mangled ones (Itanium C++ ABI, chapter 5.1)."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from ...errors import UsageError

#: The letters of built-in types (5.1.5.2), of pointers and qualifiers, and literals that need no suffix.
_TYPES = dict(zip("vwbcahstijlmxynofdeg", (
    "void", "wchar_t", "bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int",
    "long", "unsigned long", "long long", "unsigned long long", "__int128", "unsigned __int128", "float", "double",
    "long double", "__float128",
), strict=True))  # fmt: skip
_AFTER = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile"}


@functools.cache
def demangled(entry: str) -> str:
    """The name of a function as its source has it, with namespaces and arguments of templates, but without its parameters.

    A name that uses more of the rules, such as an argument that is a function, is the function's own or stays as it is.

    >>> demangled("_Z5scalePfi"), demangled("plain"), demangled("_ZN2my5scaleILi8EfEEvPT0_")
    ('scale', 'plain', 'my::scale<8,float>')
    """
    if not entry.startswith("_Z"):
        return entry
    try:
        return _Name(entry).whole()
    except (_UnknownError, IndexError):
        found = re.match(r"_Z([1-9]\d*)", entry)
        return entry[found.end() :][: int(found[1])] if found else entry


def found_entry(file: str, entries: Sequence[str], function: str) -> str:
    """The one of ``entries``, the kernels in a file by their names in the binary, that is called ``function`` there or in
    the source. Raises UsageError if there is none, or several."""
    if function in entries:
        return function
    mangled = f"_Z{len(function)}{function}"
    matches = [entry for entry in entries if entry.startswith(mangled)] or [
        entry for entry in entries if demangled(entry) == function.replace(" ", "")
    ]
    if len(matches) != 1:
        what = "is not one" if not matches else f"names several ({', '.join(matches)})"
        names = ", ".join(dict.fromkeys(map(demangled, entries)))
        raise UsageError(f"{file}: {function} {what} of its kernels: {names or 'it has none'}")
    return matches[0]


def is_identifier(function: str) -> bool:
    """Whether a kernel's name needs no help of the compiler: neither a namespace nor arguments of a template."""
    return re.fullmatch(r"[A-Za-z_$][\w$]*", function) is not None


class _UnknownError(Exception):
    """A name that uses rules that are not supported."""


class _Name:
    """Reads a mangled name from its beginning; the parameters of the function are left unread."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 2

    def take(self, pattern: str) -> re.Match[str] | None:
        found = re.compile(pattern).match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def whole(self) -> str:
        if self.take("N"):
            return self.nested()
        name = self.plain()
        return name + self.arguments() if self.take("I") else name

    def nested(self) -> str:
        """What follows ``N``, up to its ``E``."""
        parts: list[str] = []
        self.take("[rVK]*[RO]?")
        while not self.take("E"):
            if self.take("I"):
                parts[-1] += self.arguments()
            else:
                parts.append("std" if self.take("St") else self.plain())
        return "::".join(part for part in parts if not part.startswith("_INTERNAL_"))  # the compiler's, of static names

    def plain(self) -> str:
        """A name with its length before it."""
        self.take("L")  # of a static function
        found = self.take(r"[1-9]\d*")
        if not found:
            raise _UnknownError
        size = int(found[0])
        name, self.at = self.text[self.at : self.at + size], self.at + size
        if len(name) < size:
            raise _UnknownError
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N_") else name

    def arguments(self) -> str:
        """The arguments of a template, up to their ``E``."""
        found = []
        while not self.take("E"):
            if self.take("J"):  # of a parameter pack
                found += self.arguments()[1:-1].split(",")
            else:
                found.append(self.literal() if self.take("L") else self.type())
        return f"<{','.join(filter(None, found))}>"

    def literal(self) -> str:
        kind = self.type()
        found = self.take(r"(n?)(\d+)E")
        if not found:
            raise _UnknownError
        if kind == "bool":
            return "true" if found[2] == "1" else "false"
        number = ("-" if found[1] else "") + found[2]
        return number if kind in _TYPES.values() else f"({kind}){number}"

    def type(self) -> str:
        if self.take("N"):
            return self.nested()
        if found := self.take("[PROKV]"):
            return self.type() + _AFTER[found[0]]
        if found := self.take("[a-z]"):
            if found[0] not in _TYPES:
                raise _UnknownError
            return _TYPES[found[0]]
        name = self.plain()
        return name + self.arguments() if self.take("I") else name
