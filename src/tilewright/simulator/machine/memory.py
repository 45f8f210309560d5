"""The memory of a running kernel: global, shared, local, constant and parameter space.

Addresses are 64-bit. Every array argument and every ``.global`` variable has its own range of 64 GiB, so that an index
beyond the end of one operand does not reach another operand unnoticed. An array is used in place until the kernel
writes to it. The module ``spaces`` converts the addresses of the other memory spaces to offsets in the regions of these
spaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..assembly.instructions import Variable
from .shadow import Shadow
from .values import Ints

SLOT = 36  # bits: 64 GiB per global operand


class Sized(NamedTuple):
    """One variable, or several variables that share their memory (extern shared arrays): names, size in bytes, and
    alignment."""

    names: tuple[str, ...]
    size: int
    align: int
    dynamic: bool = False


class AddressRange(NamedTuple):
    """The addresses of a variable in its memory space: the first byte, the byte after the last, and the name for
    messages."""

    first: int
    end: int
    words: str


def nearest(spans: list[AddressRange], address: int) -> AddressRange:
    """Return the variable that is nearest to an address."""
    return min(spans, key=lambda s: min(abs(address - s.first), abs(address - s.end + 1)))


@dataclass
class Region:
    """A range of bytes with its shadow: an operand, or the shared memory of all blocks of a batch.

    ``borrowed`` says that the bytes are the caller's own array, which must not be written; the first write copies the
    array. ``dtype`` and ``shape`` are set if the region is an array. Some regions have a separate copy of their
    variables for each block or thread. For regions with several copies, ``spans`` are the ranges of the variables in
    one copy, ``starts`` has the offset at which each lane's copy begins, and ``stride`` is the number of bytes of a
    copy.
    """

    name: str
    data: NDArray[np.uint8]
    nbytes: int
    base: int = 0
    shadow: Shadow | None = None
    borrowed: bool = False
    written: bool = False
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    spans: list[AddressRange] = field(default_factory=list)
    starts: Ints | None = None
    stride: int = 0
    views: dict[str, NDArray[Any]] = field(default_factory=dict)

    def view(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the bytes of the region as an array of numbers of this type: (nbytes / itemsize,)."""
        cached = self.views.get(dtype.str)
        if cached is None:
            size = dtype.itemsize
            cached = self.views[dtype.str] = self.data[: self.data.size // size * size].view(dtype)
        return cached

    def own(self) -> None:
        """Replace borrowed bytes by a copy of them."""
        data = padded(self.nbytes)
        data[: self.nbytes] = self.data[: self.nbytes]
        self.data, self.borrowed = data, False
        self.views.clear()

    def addresses(self, offsets: Ints) -> Ints:
        """Convert offsets in the region to addresses. For an offset in a copy of the variables, the result is the
        address that the owner of the copy uses."""
        return offsets + self.base if self.starts is None else offsets % self.stride

    def words(self, address: int) -> str:
        """Return an address as text: the element of an array, or the byte of the nearest variable."""
        if not self.spans:
            return self.element(address - self.base)
        span = nearest(self.spans, address)
        return f"byte {address - span.first} of {span.words} ({span.end - span.first} bytes)"

    def element(self, at: int) -> str:
        """Return the place of byte ``at`` as text, such as ``element [0, 3] of argument 1``."""
        size = self.dtype.itemsize if self.dtype else 1
        if self.dtype is None or not 0 <= at < self.nbytes:
            return f"byte {at} of {self.name}"
        index = ", ".join(str(int(i)) for i in np.unravel_index(at // size, self.shape or (1,)))
        rest = f"byte {at % size} of " if at % size else ""
        return f"{rest}element [{index}] of {self.name}"

    def size_in_words(self) -> str:
        """Return the type, the shape and the number of bytes of an array as text; for other memory only the number of
        bytes."""
        if self.dtype is None:
            return f"{self.nbytes} bytes"
        return f"{self.dtype}, shape {self.shape}, {self.nbytes} bytes"


def padded(nbytes: int) -> NDArray[np.uint8]:
    """Return an array of at least ``nbytes`` zero bytes; additional bytes at its end allow a wide access to the last
    ones."""
    return np.zeros((nbytes + 31) // 16 * 16, np.uint8)


def plain_name(name: str) -> str:
    """Return the name of a variable in the source, from the compiler's mangled name (C++ ABI 5.1: a name local to a
    function).

    >>> plain_name("_ZZ4gemmE6a_tile"), plain_name("_ZZ4gemmE6a_tile_0"), plain_name("global_smem")
    ('a_tile', 'a_tile', 'global_smem')
    """
    if name.startswith("_ZZ"):
        for found in re.finditer(r"E(\d+)(?=\D)", name):
            rest = name[found.end() :]
            if re.fullmatch(r"(?:_\d+|__\d+_)?", rest[int(found[1]) :]) and len(rest) >= int(found[1]):
                return rest[: int(found[1])]
    return name


def variable_layout(variables: list[Variable], dynamic: int) -> list[Sized]:
    """Return name, size and alignment of each variable. Extern shared variables (size 0) are last and share the same
    memory."""
    fixed = [Sized((v.name,), v.size, v.align) for v in variables if v.size]
    extern = [v for v in variables if not v.size]
    if not extern:
        return fixed
    return [*fixed, Sized(tuple(v.name for v in extern), dynamic, max(16, *(v.align for v in extern)), dynamic=True)]
