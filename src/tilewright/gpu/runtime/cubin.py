"""Reads facts of a compiled kernel from its binary: the resources that it needs of a multiprocessor, and its C++ name.

A cubin is an ELF file. ptxas writes a kernel's registers, stack and launch bounds as attributes in the sections
``.nv.info``, of which there is one for the file and one for each kernel. The sizes of the sections
``.nv.shared.<kernel>`` and ``.nv.constant<bank>`` are the sizes of those memories. The driver reads the same sections
at launch. These sections exist for every architecture, and reading them needs no tool of the toolkit. The text that
ptxas prints is not read, because it changes with the version of ptxas. In the output of ``nvdisasm`` and ``cuobjdump
-elf``, the numbers of the attributes have names ``EIATTR_…``.
"""

from __future__ import annotations

import functools
import io
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UnavailableError, UsageError, how_to_install

# An attribute is a byte of format, a byte of kind, and two bytes: the value, or the size of the payload that follows.
_SIZED = 0x04
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_FRAME_SIZE = 0x11
_PARAMETER_SIZE = 0x19
_REGISTERS = 0x2F

#: Prefix of the sections of constant bank 0, one for each kernel, which hold its arguments.
_ARGUMENTS = ".nv.constant0."

#: Bytes of every block's shared memory that the system uses. From compute capability 9.0 the kernel's section counts them.
_RESERVED_SHARED = 1024
#: Its symbol in a binary that a linker made, which has no section for it.
_RESERVED_CAP = ".nv.reservedSmem.cap"


@dataclass(frozen=True)
class Resources:
    """The resources of one kernel: registers and bytes of local memory per thread, and bytes of shared memory per
    block.

    ``local_bytes`` is the stack frame: spilled registers, and arrays that are indexed at run time. ``shared_bytes`` is
    the shared memory that the source declares with a size. At launch, dynamic shared memory is added; from compute
    capability 8.0 on also 1 KiB per block, which the system uses. ``constant_bytes`` are ``__constant__`` variables and
    literals of the module, and ``parameter_bytes`` the kernel's arguments. ``max_threads`` is the largest number of
    threads of a block, if the source sets launch bounds, else None.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    constant_bytes: int
    parameter_bytes: int
    max_threads: int | None


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """The resources of every kernel (``__global__`` function) in a cubin, by the kernel's name in the binary.

    Raises UnavailableError without pyelftools, and ValueError for bytes that are not a cubin.
    """
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise UnavailableError(f"pyelftools is not installed; {how_to_install('cuda')}") from None
    try:
        elf = ELFFile(io.BytesIO(cubin))
        sections: dict[str, Any] = {section.name: section for section in elf.iter_sections()}
        symbols = [symbol.name for symbol in sections[".symtab"].iter_symbols()]
        by_function = _by_function(sections[".nv.info"].data(), symbols)
        # A device function that was not inlined has no section of arguments.
        kernels = [name.removeprefix(_ARGUMENTS) for name in sections if name.startswith(_ARGUMENTS)]
        reserved = _RESERVED_SHARED if ".nv.shared.reserved.0" in sections or _RESERVED_CAP in symbols else 0
        return {name: _of_kernel(name, sections, by_function, reserved) for name in kernels}
    except (ELFError, KeyError, IndexError, struct.error) as error:
        raise ValueError(f"not a cubin: {error}") from error


def _of_kernel(
    name: str, sections: dict[str, Any], by_function: dict[tuple[int, str], int], reserved: int
) -> Resources:
    own = dict(_attributes(sections[f".nv.info.{name}"].data()))
    bounds = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
    parameters = own.get(_PARAMETER_SIZE)
    shared = sections.get(f".nv.shared.{name}")
    return Resources(
        registers=by_function[_REGISTERS, name],
        local_bytes=by_function.get((_FRAME_SIZE, name), 0),
        shared_bytes=shared["sh_size"] - reserved if shared else 0,
        constant_bytes=sum(s["sh_size"] for title, s in sections.items() if _is_constant_of(name, title)),
        parameter_bytes=int.from_bytes(parameters, "little") if parameters else 0,
        max_threads=_product(struct.unpack("<3I", bounds)) if bounds else None,
    )


def _is_constant_of(kernel: str, section: str) -> bool:
    """Whether a section holds constants that the kernel reads, other than its arguments (bank 0)."""
    bank, _, owner = section.removeprefix(".nv.constant").partition(".")
    return section.startswith(".nv.constant") and bank not in ("", "0") and owner in ("", kernel)


def _by_function(info: bytes, symbols: list[str]) -> dict[tuple[int, str], int]:
    """The attributes of the whole file that give a number to a function: (attribute, function) → number."""
    pairs = {}
    for attribute, payload in _attributes(info):
        if attribute in (_REGISTERS, _FRAME_SIZE):
            symbol, value = struct.unpack("<2I", payload)
            pairs[attribute, symbols[symbol]] = value
    return pairs


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of an ``.nv.info`` section: the kind of each attribute, and its payload (or its value of two
    bytes)."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        value = info[at + 2 : at + 4]
        at += 4
        if form == _SIZED:
            value = info[at : at + size]
            at += size
        yield attribute, value


def _product(sizes: tuple[int, ...]) -> int:
    x, y, z = sizes
    return x * y * z


# ---- names of functions as C++ writes them (Itanium C++ ABI, chapter 5.1) --------------------------------------------

#: The letters of built-in types (5.1.5.2), of pointers and qualifiers, and literals that need no suffix.
_TYPE_NAMES = dict(zip("vwbcahstijlmxynofdeg", (
    "void", "wchar_t", "bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int",
    "long", "unsigned long", "long long", "unsigned long long", "__int128", "unsigned __int128", "float", "double",
    "long double", "__float128",
), strict=True))  # fmt: skip
_AFTER = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile"}


@functools.cache  # asked for at each access of a listing; 40 µs
def demangled(entry: str) -> str:
    """The name of a function in its source, with namespaces and template arguments, but without the function's
    parameters.

    Names that use further mangling rules, such as a template argument that is a function, are reduced to the function's
    name or returned unchanged.

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
    """The name, from ``entries`` (names in the binary), of the kernel that is called ``function`` in the binary or in
    the source. Raises UsageError if there is no such kernel, or several."""
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
    """Whether a kernel's name can be found without the compiler: it has neither a namespace nor template arguments."""
    return re.fullmatch(r"[A-Za-z_$][\w$]*", function) is not None


class _UnknownError(Exception):
    """A mangled name that uses unsupported mangling rules."""


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
        """A nested name: the part of the mangled name that follows ``N``, up to its ``E``."""
        parts: list[str] = []
        self.take("[rVK]*[RO]?")
        while not self.take("E"):
            if self.take("I"):
                parts[-1] += self.arguments()
            else:
                parts.append("std" if self.take("St") else self.plain())
        return "::".join(part for part in parts if not part.startswith("_INTERNAL_"))  # the compiler's, of static names

    def plain(self) -> str:
        """An identifier, which is preceded by its length in the mangled name."""
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
        """The arguments of a template: the part of the mangled name up to their ``E``."""
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
        return number if kind in _TYPE_NAMES.values() else f"({kind}){number}"

    def type(self) -> str:
        if self.take("N"):
            return self.nested()
        if found := self.take("[PROKV]"):
            return self.type() + _AFTER[found[0]]
        if found := self.take("[a-z]"):
            if found[0] not in _TYPE_NAMES:
                raise _UnknownError
            return _TYPE_NAMES[found[0]]
        name = self.plain()
        return name + self.arguments() if self.take("I") else name
