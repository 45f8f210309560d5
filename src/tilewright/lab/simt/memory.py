"""The memory of a running kernel: global, shared, local, constant and parameter space.

Addresses are 64-bit. Every array argument and every ``.global`` variable owns a slot of 64 GiB of its own, so an index
that runs out of one operand never lands in another unseen. Shared and local addresses are offsets, as in hardware;
a window far above global memory makes them generic. Shared variables keep their real offset modulo 1,024 (so banks
are as on hardware) with unused ground between them.
"""

# ruff: noqa: ARG002 - the spaces answer the same questions, each from what it needs

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from .ptx import Instruction
from .shadow import Ints, Shadow
from .variables import Variable

if TYPE_CHECKING:
    from .state import Lanes

SLOT = 36  # bits: 64 GiB a global operand
WINDOW = {"shared": 1 << 56, "local": 2 << 56, "const": 3 << 56, "param": 4 << 56}
SHARED_BASE = 1024  # what sm_90 keeps for itself; any multiple of 128 gives the same banks
GUARD = 4096  # bytes of unused ground between shared variables

#: A variable: name, size in bytes, alignment.
Sized = tuple[str, int, int]
Piece = tuple["Region", Ints, "Ints | None"]


@dataclass
class Region:
    """Bytes with one shadow: an operand, or the shared memory of all blocks of a batch."""

    name: str
    data: NDArray[np.uint8]
    nbytes: int
    base: int = 0
    shadow: Shadow | None = None
    views: dict[str, NDArray[Any]] = field(default_factory=dict)

    def view(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        found = self.views.get(dtype.str)
        if found is None:
            found = self.views[dtype.str] = self.data[: self.data.size // 16 * 16].view(dtype)
        return found


def padded(nbytes: int) -> NDArray[np.uint8]:
    return np.zeros((nbytes + 31) // 16 * 16, np.uint8)


class Space:
    """One state space: turns addresses into offsets of regions and reports those that are no good."""

    name = ""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes

    def pieces(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> list[Piece]:
        """The region and offsets of each access, as (region, offsets, which of the accesses or None for all)."""
        low, high = int(address.min()), int(address.max())
        region = self.holding(low, high + nbytes)
        if region is not None and not int(np.bitwise_or.reduce(address)) & (nbytes - 1):
            return [(region, self.offsets(region, address, sel), None)]
        return self.mixed(ins, address, nbytes, sel)

    def mixed(self, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> list[Piece]:
        """The careful way: some addresses are bad, or they lie in several regions."""
        bad = (address & (nbytes - 1)) != 0
        if bad.any():
            text = f"{nbytes}-byte access at an address that is no multiple of {nbytes}: {ins.text}"
            self.lanes.report("misaligned", ins, sel, bad, address, text)
        out: list[Piece] = []
        left = ~bad
        while left.any():
            first = int(np.argmax(left))
            region = self.holding(int(address[first]), int(address[first]) + nbytes)
            if region is None:
                here = left & self.outside(address, nbytes)
                text = f"{nbytes} bytes at {self.describe(int(address[first]))}: {ins.text}"
                self.lanes.report("out of bounds", ins, sel, here, address, text)
            else:
                here = left & self.inside(int(address[first]), address, nbytes)
                at = np.flatnonzero(here)
                chosen = at if sel is None else sel[at]
                out.append((region, self.offsets(region, address[at], chosen), at))
            left &= ~here
        return out

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

    def describe(self, address: int) -> str:
        return f"address {address:#x} of {self.name} memory"


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

    def describe(self, address: int) -> str:
        near = [r for r in self.regions.values() if abs(address - r.base) < 1 << (SLOT - 1)]
        if not near:
            return f"address {address:#x} of global memory, in no operand"
        at = address - near[0].base
        return f"byte {at} of {near[0].name}, which has {near[0].nbytes}"


class WindowSpace(Space):
    """Shared, local, constant or parameter space, or arguments of calls: variables at offsets, and a copy of them for
    each block, thread or launch."""

    def __init__(self, lanes: Lanes, name: str, sizes: list[Sized], copies: int, guard: int) -> None:
        super().__init__(lanes)
        self.name = name
        self.at: dict[str, int] = {}
        self.spans: list[tuple[int, int, str]] = []
        place = SHARED_BASE if name == "shared" else 16
        for index, (variable, size, align) in enumerate(sizes):
            place = -(-place // align) * align
            self.at[variable] = place + index * guard
            self.spans.append((self.at[variable], self.at[variable] + size, variable))
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

    def describe(self, address: int) -> str:
        if not self.spans:
            return f"byte {address} of {self.name} memory, of which the kernel has none"
        first, last, name = min(self.spans, key=lambda s: min(abs(address - s[0]), abs(address - s[1])))
        return f"byte {address - first} of {self.name} {name}, which has {last - first}"


def layout(variables: list[Variable], dynamic: int) -> list[Sized]:
    """Name, size and alignment of each variable; extern shared ones (size 0) come last and share their place."""
    fixed = [(v.name, v.size, v.align) for v in variables if v.size]
    loose = [(v.name, dynamic, max(v.align, 16)) for v in variables if not v.size]
    if len(loose) > 1:
        raise UsageError(f"several extern shared arrays ({', '.join(n for n, _, _ in loose)}): only one can be run")
    return fixed + loose
