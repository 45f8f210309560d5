"""Computes the work of instructions in units other than the load/store pipe: the tensor cores, the copy engine, and
barriers.

The rules were derived from what ncu 2025.3 counted on an H200: 240 forms of ``wgmma``
(``benchmarks/wgmma-h200.jsonl``), 38 of ``mma.sync`` (``benchmarks/mma-h200.jsonl``) and the asynchronous kernels of
the tests (``benchmarks/asynchronous-h200.jsonl``). The rules of this module reproduce every count that ncu measured.

- **wgmma.** K of a ``wgmma`` is 32 bytes for every type. A ``wgmma`` keeps each of the four tensor cores of a
  multiprocessor busy for N/2 cycles. The operands of a ``wgmma`` pass through the banks of shared memory 128 bytes at a
  time, without conflicts in any layout. Reading the 64 rows of A takes 16 wavefronts, or none if A is in registers;
  reading B takes N/4 wavefronts.
- **mma.sync** keeps one tensor core busy for 4 cycles if K of the instruction is 16 bytes, and for 6 cycles if K is 32
  bytes. For float64, ``mma.sync`` takes 16 cycles for each 64 elements of A. A product of a type that the tensor core
  lacks takes two instructions of a type that it has: e4m3 and e5m2 take two instructions of 16 bits, s4 and u4 take two
  of 8 bits. A product of bits by ``xor`` takes two instructions, too. The hardware executes ``wmma`` as several
  ``mma.sync``.
- **Copy engine.** Each copy instruction is one request. A load counts the sectors of 32 bytes that arrive, in every
  block that a multicast reaches. The sectors that arrive in a load are those that the lines of the box touch in global
  memory, and those that fill the part of the box outside the tensor; they are counted separately for each line. If a
  multicast reads a line that is partly outside the tensor, the sectors of that line count twice. A store or reduction
  counts the sectors that the lines of its box touch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .sectors import SECTOR, Ints

#: Wavefronts in which the 64 rows of A are read, and columns of B in a wavefront.
_OF_A, _COLUMNS = 16, 4


@dataclass(frozen=True)
class UnitWork:
    """The work of one execution of an instruction, by a warp or by the warps that execute it together (``requests``).

    ``kind`` depends on ``space``: "wgmma" or "mbarrier" in "shared", "mma" in "registers", and "tma load", "tma store"
    or "tma reduce" in "global". ``cycles`` are the cycles for which tensor cores are busy, summed over the four tensor
    cores of a multiprocessor.
    """

    space: str
    kind: str
    requests: int = 1
    bytes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    cycles: int = 0

    def to(self, blocks: int) -> UnitWork:
        """Return the work of the same copy if it goes to several blocks."""
        return replace(self, bytes=self.bytes * blocks, sectors=self.sectors * blocks)


def wgmma_work(n: int, *, from_registers: bool) -> UnitWork:
    """Return the work of a ``wgmma.mma_async`` by one warpgroup with N = ``n``, and A in registers or in shared memory.

    >>> wgmma_work(256, from_registers=False)
    UnitWork(space='shared', kind='wgmma', requests=4, bytes=10240, sectors=0, wavefronts=80, cycles=512)
    """
    wavefronts = n // _COLUMNS + (0 if from_registers else _OF_A)
    return UnitWork("shared", "wgmma", requests=4, bytes=128 * wavefronts, wavefronts=wavefronts, cycles=2 * n)


def mma_work(kind: str, m: int, k: int, *, xor: bool = False, instructions: int = 1) -> UnitWork:
    """Return the work of one warp's ``mma.sync`` of shape m×8×k for operands of a type, or of several such
    ``instructions``.

    >>> mma_work("bf16", 16, 16)
    UnitWork(space='registers', kind='mma', requests=1, bytes=0, sectors=0, wavefronts=0, cycles=6)
    >>> mma_work("e4m3", 16, 32).requests, mma_work("e4m3", 16, 32).cycles
    (2, 12)
    """
    if kind == "f64":
        each = 16 * max(1, m * k // 64)
    else:
        instructions *= 2 if xor or kind in _BITS_OF_TWO else 1
        each = 6 if k * _BITS[kind] == 8 * 32 else 4
    return UnitWork("registers", "mma", requests=instructions, cycles=each * instructions)


#: Types of which one instruction is two on another type, with half of the bits of that type.
_BITS_OF_TWO = {"e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4}


def tcgen05_work() -> UnitWork:
    """Return the work of a ``tcgen05.mma`` of a block or of a pair of blocks: only the instruction itself is counted.
    How a ``tcgen05.mma`` accesses shared memory, and for how many cycles it keeps the tensor cores busy, is not
    documented and is not counted."""
    return UnitWork("tensor memory", "tcgen05")


#: Bits of an element of A.
_BITS = {"tf32": 32, "f16": 16, "bf16": 16, "s8": 8, "u8": 8, "b1": 1} | _BITS_OF_TWO


def touched_sectors(starts: Ints, nbytes: int) -> int:
    """Return the number of sectors that lines of ``nbytes`` bytes touch, counted for each line separately. ``starts``
    are the addresses of the lines.

    >>> import numpy as np
    >>> touched_sectors(np.array([0, 240]), 128)
    9
    """
    return int(((starts + nbytes - 1) // SECTOR - starts // SECTOR + 1).sum()) if nbytes else 0


def filled_sectors(lines: int, nbytes: int, inside: int, moved: int) -> int:
    """Return the number of sectors that fill the part of a box outside the tensor; the box has ``lines`` lines of
    ``nbytes`` bytes. In each of the ``inside`` lines, all bytes except ``moved`` are filled; in the other lines, all
    bytes are filled.

    >>> filled_sectors(32, 128, 13, 112)
    89
    """
    return inside * -(-(nbytes - moved) // SECTOR) + (lines - inside) * -(-nbytes // SECTOR)


def multicast_sectors(lines: int, nbytes: int) -> int:
    """Return the number of sectors of lines of ``nbytes`` bytes that a multicast reads and that lie partly outside the
    tensor. The multicast sends the part inside the tensor and the filled part separately.

    >>> multicast_sectors(312, 128)
    2496
    """
    return 2 * lines * -(-nbytes // SECTOR)


def copy_work(kind: str, nbytes: int, sectors: int) -> UnitWork:
    """Return the work of a bulk copy; ``kind`` is "load", "store" or "reduce"."""
    return UnitWork("global", f"tma {kind}", bytes=nbytes, sectors=sectors)


#: The work of a copy within shared memory, which is not counted.
NOTHING = copy_work("load", 0, 0)
#: The work of an operation on a barrier.
BARRIER_WORK = UnitWork("shared", "mbarrier")
