"""The memory of a running kernel: global, shared, local, constant and parameter space.

Addresses are 64-bit. Every array argument and every ``.global`` variable owns a slot of 64 GiB of its own, so an index
that runs out of one operand never lands in another unseen. An array is used where it is until something writes it.
Shared and local addresses are offsets, as in hardware; a window far above global memory makes them generic. Shared
variables keep their real offset modulo 1,024 (so banks are as on hardware) with unused ground between them.
"""

# ruff: noqa: ARG002 - the spaces answer the same questions, each from what it needs

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..ptx.parse import Instruction
from ..ptx.variables import Variable
from .clocks import Ints
from .shadow import Shadow

if TYPE_CHECKING:
    from .state import Lanes

SLOT = 36  # bits: 64 GiB a global operand
WINDOW = {"shared": 1 << 56, "local": 2 << 56, "const": 3 << 56, "param": 4 << 56}
SHARED_BASE = 1024  # what sm_90 keeps for itself; any multiple of 128 gives the same banks
GUARD = 4096  # bytes of unused ground between shared variables


class Sized(NamedTuple):
    """A variable, or several that share their place (extern shared arrays): names, size in bytes, alignment."""

    names: tuple[str, ...]
    size: int
    align: int
    dynamic: bool = False


Piece = tuple["Region", Ints, "Ints | None"]


@dataclass
class Region:
    """Bytes with one shadow: an operand, or the shared memory of all blocks of a batch.

    ``borrowed`` bytes are the caller's own array, which nothing may write: the first write copies them. ``dtype`` and
    ``shape`` are those of an array.
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
    views: dict[str, NDArray[Any]] = field(default_factory=dict)

    def view(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        found = self.views.get(dtype.str)
        if found is None:
            size = dtype.itemsize
            found = self.views[dtype.str] = self.data[: self.data.size // size * size].view(dtype)
        return found

    def own(self) -> None:
        """Copy borrowed bytes."""
        data = padded(self.nbytes)
        data[: self.nbytes] = self.data[: self.nbytes]
        self.data, self.borrowed = data, False
        self.views.clear()

    def element(self, at: int) -> str:
        """Byte ``at`` in words: ``element [0, 3] of argument 1``."""
        size = self.dtype.itemsize if self.dtype else 1
        if self.dtype is None or not 0 <= at < self.nbytes:
            return f"byte {at} of {self.name}"
        index = ", ".join(str(int(i)) for i in np.unravel_index(at // size, self.shape or (1,)))
        rest = f"byte {at % size} of " if at % size else ""
        return f"{rest}element [{index}] of {self.name}"

    def size_in_words(self) -> str:
        if self.dtype is None:
            return f"{self.nbytes} bytes"
        return f"{self.dtype}, shape {self.shape}, {self.nbytes} bytes"


def padded(nbytes: int) -> NDArray[np.uint8]:
    return np.zeros((nbytes + 31) // 16 * 16, np.uint8)


def only_reads(ins: Instruction) -> bool:
    """Whether an instruction leaves global memory as it is."""
    copies_in = ins.opcode.startswith("cp.async") and "global.shared" not in ins.opcode
    return copies_in or ins.opcode.startswith(("ld", "prefetch"))


class Space:
    """One state space: turns addresses into offsets of regions and reports those that are no good."""

    name = ""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes

    def pieces(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[Piece]:
        """The region and offsets of each access, as (region, offsets, which of the accesses or None for all)."""
        low, high = int(address.min()), int(address.max())
        region = self.holding(low, high + nbytes)
        if region is not None and not int(np.bitwise_or.reduce(address)) & (nbytes - 1):
            self.enter(ins, region, sel)
            yield region, self.offsets(region, address, sel), None
            return
        for region, at in self.mixed(ins, address, nbytes, sel):
            chosen = at if sel is None else sel[at]
            self.enter(ins, region, chosen)
            yield region, self.offsets(region, address[at], chosen), at

    def enter(self, ins: Instruction, region: Region, sel: Ints | None) -> None:
        """What happens next happens to this region, by these lanes."""
        lanes = self.lanes
        lanes.instruction, lanes.region, lanes.visitors = ins, region, sel
        if not region.written and not only_reads(ins):
            region.written = True
            if region.borrowed:
                region.own()
            self.watch(region)

    def watch(self, region: Region) -> None:
        """A region is written, which nobody may have thought would be: look for races from now on at least."""

    def mixed(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> Iterator[tuple[Region, Ints]]:
        """The careful way: some addresses are bad, or they lie in several regions."""
        self.lanes.region = None
        bad = (address & (nbytes - 1)) != 0
        if bad.any():
            first = int(address[np.argmax(bad)])
            text = (
                f"{nbytes} bytes at {self.describe(first, 1)}, {first % nbytes} off a multiple of {nbytes}: {ins.text}"
            )
            self.lanes.report("misaligned", ins, sel, bad, address, text)
        left = ~bad
        while left.any():
            first = int(address[np.argmax(left)])
            region = self.holding(first, first + nbytes)
            if region is None:
                here = left & self.outside(address, nbytes)
                text = f"{nbytes} bytes at {self.describe(first, nbytes)}: {ins.text}"
                self.lanes.report("out of bounds", ins, sel, here, address, text)
            else:
                here = left & self.inside(first, address, nbytes)
                yield region, np.flatnonzero(here)
            left &= ~here

    def holding(self, low: int, end: int) -> Region | None:
        raise NotImplementedError

    def inside(self, like: int, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Which accesses lie in the same region (or variable) as address ``like``."""
        raise NotImplementedError

    def outside(self, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        """Which accesses lie in nothing at all."""
        raise NotImplementedError

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        raise NotImplementedError

    def describe(self, address: int, nbytes: int = 0) -> str:
        """An address in words; with ``nbytes``, what it lies in and how far so many bytes reach outside."""
        raise NotImplementedError


class GlobalSpace(Space):
    name = "global"

    def __init__(self, lanes: Lanes, regions: dict[int, Region]) -> None:
        super().__init__(lanes)
        self.regions = regions

    def holding(self, low: int, end: int) -> Region | None:
        region = self.regions.get(low >> SLOT)
        return region if region and end <= region.base + region.nbytes else None

    def inside(self, like: int, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        region = self.regions[like >> SLOT]
        return (address >= region.base) & (address + nbytes <= region.base + region.nbytes)

    def outside(self, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        out = np.ones(address.shape, bool)
        for region in self.regions.values():
            out &= ~((address >= region.base) & (address + nbytes <= region.base + region.nbytes))
        return out

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        return address - region.base

    def watch(self, region: Region) -> None:
        if region.shadow is None:
            region.shadow = self.lanes.launch.shadow_for(region)
            region.shadow.watch(self.lanes)

    def describe(self, address: int, nbytes: int = 0) -> str:
        near = [r for r in self.regions.values() if abs(address - r.base) < 1 << (SLOT - 1)]
        if not near:
            return f"address {address:#x} of global memory, in no operand" + (
                " (a null pointer?)" if address < 4096 else ""
            )
        region, at = near[0], address - near[0].base
        if not nbytes:
            return region.element(at)
        return f"byte {at} of {region.name} ({region.size_in_words()}){_outside(at, nbytes, region.nbytes)}"


def _outside(at: int, nbytes: int, size: int) -> str:
    if not size:
        return ", which is empty"
    if 0 <= at <= size - nbytes:
        return ""
    return f", {-at} before its start" if at < 0 else f", {at + nbytes - size} beyond its end"


class WindowSpace(Space):
    """Shared, local, constant or parameter space, or arguments of calls: variables at offsets, and a copy of them for
    each block, thread or launch."""

    def __init__(self, lanes: Lanes, name: str, sizes: list[Sized], copies: int, guard: int) -> None:
        super().__init__(lanes)
        self.name = name
        self.at: dict[str, int] = {}
        self.spans: list[tuple[int, int, str]] = []
        place = SHARED_BASE if name == "shared" else 16
        for index, (names, size, align, dynamic) in enumerate(sizes):
            place = -(-place // align) * align
            first = place + index * guard
            self.at |= dict.fromkeys(names, first)
            words = "dynamic " * dynamic + f"{name} " + "/".join(map(plain_name, names))
            self.spans.append((first, first + size, words))
            place += size
        self.stride = -(-(place + len(sizes) * guard) // 128) * 128
        self.copies = copies
        self.region = Region(name, padded(self.stride * copies), self.stride * copies)

    def holding(self, low: int, end: int) -> Region | None:
        for first, last, _ in self.spans:
            if first <= low and end <= last:
                return self.region
        return None

    def inside(self, like: int, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        span = next(s for s in self.spans if s[0] <= like < s[1])
        return (address >= span[0]) & (address + nbytes <= span[1])

    def outside(self, address: Ints, nbytes: int) -> NDArray[np.bool_]:
        out = np.ones(address.shape, bool)
        for first, last, _ in self.spans:
            out &= ~((address >= first) & (address + nbytes <= last))
        return out

    def offsets(self, region: Region, address: Ints, sel: Ints | None) -> Ints:
        if self.name in ("const", "param"):
            return address
        base = self.lanes.bases[self.name]
        return address + (base if sel is None else base[sel])

    def describe(self, address: int, nbytes: int = 0) -> str:
        if not self.spans:
            return f"byte {address} of {self.name} memory, of which the kernel has none"
        first, last, name = min(self.spans, key=lambda s: min(abs(address - s[0]), abs(address - s[1] + 1)))
        at, size = address - first, last - first
        text = f"byte {at} of {name} ({size} bytes)"
        return text + _outside(at, nbytes, size) if nbytes else text


def plain_name(name: str) -> str:
    """A variable's name as its author wrote it, out of the compiler's (C++ ABI 5.1: a name local to a function).

    >>> plain_name("_ZZ4gemmE6a_tile"), plain_name("_ZZ4gemmE6a_tile_0"), plain_name("global_smem")
    ('a_tile', 'a_tile', 'global_smem')
    """
    if name.startswith("_ZZ"):
        for found in re.finditer(r"E(\d+)(?=\D)", name):
            rest = name[found.end() :]
            if re.fullmatch(r"(?:_\d+|__\d+_)?", rest[int(found[1]) :]) and len(rest) >= int(found[1]):
                return rest[: int(found[1])]
    return name


def layout(variables: list[Variable], dynamic: int) -> list[Sized]:
    """Name, size and alignment of each variable; extern shared ones (size 0) come last and share their place."""
    fixed = [Sized((v.name,), v.size, v.align) for v in variables if v.size]
    loose = [v for v in variables if not v.size]
    if not loose:
        return fixed
    return [*fixed, Sized(tuple(v.name for v in loose), dynamic, max(16, *(v.align for v in loose)), dynamic=True)]
