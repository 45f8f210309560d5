"""Collects what the threads of a kernel print by ``printf`` (CUDA C++ Programming Guide, "Formatted Output")."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

#: The most calls of printf whose text is stored.
MOST_PRINTED = 4096

#: A conversion: flags, width, precision, length, letter.
_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])")
_WIDE = ("ll", "l", "j", "z", "t")
#: The most characters to which a conversion is filled; a GPU's buffer holds no more.
_WIDEST = 1 << 16


@dataclass
class Printed:
    """The texts of all calls of printf, each with the block and the thread that made the call."""

    calls: list[tuple[int, int, str]] = field(default_factory=list)
    dropped: int = 0

    def add(self, block: int, thread: int, text: Callable[[], str]) -> None:
        """Add a text that a thread prints. If ``MOST_PRINTED`` texts are already stored, the function ``text`` is not
        called."""
        if len(self.calls) < MOST_PRINTED:
            self.calls.append((block, thread, text()))
        else:
            self.dropped += 1

    def text(self) -> str:
        """Return all printed texts, in order of block and thread; the texts of one thread are in the order of its
        calls."""
        ordered = "".join(text for _, _, text in sorted(self.calls, key=lambda call: call[:2]))
        if self.dropped:
            end = "" if ordered.endswith("\n") else "\n"
            ordered += f"{end}… and {self.dropped:,} calls of printf more, which are not shown\n"
        return ordered


def formatted(form: str, arguments: bytes, string: Callable[[int], str]) -> str:
    """Return the text that one call of printf prints. ``arguments`` are the bytes of the call's arguments, aligned as
    in a structure; ``string`` returns the text at an address.

    >>> formatted("%d|%5.1f|%-3c|%x%%", struct.pack("<i4xdii", -7, 2.25, 65, 255), str)
    '-7|  2.2|A  |ff%'
    """
    return _CONVERSION.sub(_Arguments(arguments, string).shown, form)


class _Arguments:
    """The arguments of one call of printf, from which values are taken in order."""

    def __init__(self, data: bytes, string: Callable[[int], str]) -> None:
        self.data, self.string, self.at = data, string, 0

    def taken(self, code: str) -> int:
        size = struct.calcsize(code)
        self.at = -(-self.at // size) * size + size
        return int(struct.unpack(f"<{code}", self._piece(size))[0])

    def _piece(self, size: int) -> bytes:
        return self.data[self.at - size : self.at].ljust(size, b"\0")

    def taken_real(self) -> float:
        self.taken("Q")
        return float(struct.unpack("<d", self._piece(8))[0])

    def size(self, given: str | None) -> str:
        """Return the width or the precision of a format; for ``*`` the next argument is taken."""
        return str(min(self.taken("i") if given == "*" else int(given), _WIDEST)) if given else ""

    def shown(self, found: re.Match[str]) -> str:
        flags, width, precision, length, letter = found.groups()
        if letter == "%":
            return "%"
        layout = f"%{flags}{self.size(width)}"
        if "." in found[0]:
            layout += f".{self.size(precision)}"
        if letter in "aA":
            return self.taken_real().hex()
        if letter in "eEfFgG":
            return f"{layout}{letter}" % self.taken_real()
        if letter in "sp":
            address = self.taken("Q")
            return f"{layout}s" % (self.string(address) if letter == "s" else hex(address))
        if letter == "c":
            return f"{layout}s" % chr(self.taken("i") & 255)
        signed = letter in "di"
        number = self.taken(("q" if signed else "Q") if length in _WIDE else "i" if signed else "I")
        if bits := {"hh": 8, "h": 16}.get(length or ""):
            number &= (1 << bits) - 1
            number -= (signed and number >> (bits - 1)) << bits
        return f"{layout}{'d' if letter in 'diu' else letter}" % number
