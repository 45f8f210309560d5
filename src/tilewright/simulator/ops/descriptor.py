"""Descriptors of tiles in shared memory for ``wgmma`` and ``tcgen05``, and the swizzles that descriptors and tensor
maps use.

A descriptor of ``wgmma`` (PTX ISA 9.7.15.5.1) says where a tile of A or B lies in shared memory. Bits 0–13 of the
descriptor are the address, bits 16–29 the leading offset, and bits 32–45 the stride offset, all in units of 16 bytes.
Bits 49–51 of the descriptor are the base offset, and bits 62–63 the swizzle. A descriptor of ``tcgen05`` (9.7.16.4.1)
has the swizzle in bits 61–63, encoded by other numbers than for ``wgmma``, and the value 1 in bits 46–48. Let w be the
number of 16-byte chunks in a swizzled row: 1 without swizzle, and 2, 4 or 8 for a swizzle of 32, 64 or 128 bytes.
Before the swizzle, a chunk lies at the following byte offset from the address:

- in a K-major tile, chunk c of row r lies at (r mod 8)·16·w + (r div 8)·stride + c·16; without swizzle, c·leading
  replaces c·16. Here r is an index of M for A, or of N for B, and the chunks of a row follow one another along K.
- in an MN-major tile, chunk c of row r lies at (c mod w)·16 + (c div w)·leading + (r mod 8)·16·w + (r div 8)·stride;
  without swizzle, leading and stride exchange their roles. Here r is an index of K, and the chunks of a row follow one
  another along M or N.

The swizzle then moves the chunk within its row. A K-major tile with a swizzle does not use the leading offset.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ..machine.values import Ints

#: For each swizzle mode, the chunks of 16 bytes in a row. The modes are those of the descriptor: none, 128, 64 and 32
#: bytes.
CHUNKS = (1, 8, 4, 2)
#: For each swizzle number in a descriptor of ``tcgen05``, the mode. Number 1 is not supported: 128 bytes, of which 32 stay
#: together.
TCGEN05_MODES = {0: 0, 2: 1, 4: 2, 6: 3}
#: The names of the swizzle modes.
SWIZZLES = ("no swizzle", "128-byte swizzle", "64-byte swizzle", "32-byte swizzle")


def swizzled(offsets: Ints, mode: int) -> Ints:
    """Apply the swizzle of a mode (0: none, 1: 128 bytes, 2: 64, 3: 32) to addresses in shared memory.

    The swizzle replaces the number of a 16-byte chunk in its row by the exclusive or of this number and the number of
    the row, which is in address bits 7–9.

    >>> swizzled(np.array([0, 128, 144, 896]), 1).tolist(), swizzled(np.array([128, 384]), 3).tolist()
    ([0, 144, 128, 1008], [144, 400])
    """
    mask = (CHUNKS[mode] - 1) << 4
    return offsets ^ (offsets >> 3 & mask)


def wrong_bits(bits: int) -> str:
    """Return a text that says which fixed bits of a descriptor of ``tcgen05`` are wrong; the text is empty if all are
    right.

    >>> wrong_bits(2 << 61 | 1 << 46), wrong_bits(2 << 61)
    ('', 'bits 46 to 48 are 0, which must be 1')
    """
    if bits >> 46 & 7 != 1:
        return f"bits 46 to 48 are {bits >> 46 & 7}, which must be 1"
    if bits >> 61 == 1:
        return "the swizzle of 128 bytes in units of 32 bytes (1) cannot be run"
    if bits >> 61 not in TCGEN05_MODES:
        return f"{bits >> 61} is no swizzle: 0, 2, 4 and 6 are"
    return "bit 52, an absolute address, is for sm_103a alone" if bits >> 52 & 1 else ""


@dataclass(frozen=True)
class Descriptor:
    """A decoded descriptor of a tile: address and offsets in bytes, the base offset, and the swizzle mode."""

    start: int
    leading: int
    stride: int
    base: int
    mode: int

    @classmethod
    def of(cls, bits: int) -> Descriptor:
        """Decode the 64 bits of a descriptor of ``wgmma``.

        >>> Descriptor.of(1 << 62 | 64 << 32 | 1 << 16 | 0x40)
        Descriptor(start=1024, leading=16, stride=1024, base=0, mode=1)
        """
        start, leading, stride = (16 * (bits >> at & 0x3FFF) for at in (0, 16, 32))
        return cls(start, leading, stride, bits >> 49 & 7, bits >> 62 & 3)

    @classmethod
    def of_tcgen05(cls, bits: int) -> Descriptor:
        """Decode the 64 bits of a descriptor of ``tcgen05``; ``wrong_bits`` says whether the simulator can run it.

        >>> Descriptor.of_tcgen05(2 << 61 | 1 << 46 | 64 << 32 | 0x40)
        Descriptor(start=1024, leading=0, stride=1024, base=0, mode=1)
        """
        start, leading, stride = (16 * (bits >> at & 0x3FFF) for at in (0, 16, 32))
        return cls(start, leading, stride, bits >> 49 & 7, TCGEN05_MODES.get(bits >> 61 & 7, 0))

    def chunks(self, rows: int, depth: int, transposed: bool) -> Ints:
        """Return the addresses of the 16-byte chunks of a tile. For a K-major tile, the shape of the result is (rows,
        depth). A ``transposed`` tile is MN-major, with ``rows`` rows of K and ``depth`` chunks of M or N."""
        place = self.start & 1023
        found = _chunks(
            place, self.leading, self.stride, self.base, self.mode, rows=rows, depth=depth, transposed=transposed
        )
        return found + (self.start - place)


@functools.lru_cache(maxsize=256)  # a loop comes to the same tiles again
def _chunks(
    start: int, leading: int, stride: int, base: int, mode: int, *, rows: int, depth: int, transposed: bool
) -> Ints:
    wide = CHUNKS[mode]
    r, c = np.arange(rows, dtype=np.int64)[:, None], np.arange(depth, dtype=np.int64)
    if transposed:
        slab, group = (leading, stride) if mode else (stride, leading)
        offsets = c % wide * 16 + c // wide * slab + r % 8 * (16 * wide) + r // 8 * group
    else:
        offsets = r % 8 * (16 * wide) + r // 8 * stride + c * (16 if mode else leading)
    # The base offset is the row at which the pattern begins, if that is not a multiple of its size.
    shift = base << 7
    return swizzled(start + offsets - shift, mode) + shift
