"""What instructions do in units other than the load/store pipe: tensor cores by ``wgmma``, the copy engine, and barriers.

The rules were read off an H200 by ncu 2025.3: 240 forms of ``wgmma`` (``benchmarks/wgmma-h200.jsonl``), 38 of ``mma.sync``
(``benchmarks/mma-h200.jsonl``) and the asynchronous kernels of the tests (``benchmarks/asynchronous-h200.jsonl``); they
reproduce every one of these counts.

- **wgmma.** K of an instruction is 32 bytes of every type. It keeps the four tensor cores of a multiprocessor busy for N/2
  cycles each. Its operands pass through the banks of shared memory 128 bytes at a time, without conflicts in any layout:
  16 wavefronts for the 64 rows of A, unless these are in registers, and N/4 for B.
- **mma.sync** keeps one tensor core busy for 4 cycles if K of an instruction is 16 bytes, for 6 if it is 32; of float64 for
  16 cycles for each 64 elements of A. Types that the tensor core lacks take two instructions of a type that it has: of 16
  bits for e4m3 and e5m2, of 8 bits for s4 and u4; two also a product of bits by ``xor``. ``wmma`` takes several of
  ``mma.sync``.
- **Copy engine.** An instruction is one request. A load counts the sectors of 32 bytes that arrive, in every block that a
  multicast reaches: those that its lines in global memory touch, and those that fill what lies outside, in each line of the
  box apart. Where a multicast clips lines, each of these counts the sectors of the box's line twice. A store or reduction
  counts the sectors that its lines touch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .sectors import SECTOR, Ints

#: Wavefronts in which the 64 rows of A are read, and columns of B in a wavefront.
_OF_A, _COLUMNS = 16, 4


@dataclass(frozen=True)
class UnitWork:
    """What one execution of an instruction does: by a warp, or by the warps that execute it together (``requests``).

    ``kind`` is "wgmma" or "mbarrier" in space "shared", "mma" in "registers", "tma load", "tma store" or "tma reduce" in
    "global".
    ``cycles`` are those of tensor cores, summed over the four of a multiprocessor.
    """

    space: str
    kind: str
    requests: int = 1
    bytes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    cycles: int = 0

    def to(self, blocks: int) -> UnitWork:
        """The same copy to several blocks."""
        return replace(self, bytes=self.bytes * blocks, sectors=self.sectors * blocks)


def wgmma_work(n: int, *, from_registers: bool) -> UnitWork:
    """``wgmma.mma_async`` of a warpgroup with N = ``n``, and A in registers or in shared memory.

    >>> wgmma_work(256, from_registers=False)
    UnitWork(space='shared', kind='wgmma', requests=4, bytes=10240, sectors=0, wavefronts=80, cycles=512)
    """
    wavefronts = n // _COLUMNS + (0 if from_registers else _OF_A)
    return UnitWork("shared", "wgmma", requests=4, bytes=128 * wavefronts, wavefronts=wavefronts, cycles=2 * n)


def mma_work(kind: str, m: int, k: int, *, xor: bool = False, instructions: int = 1) -> UnitWork:
    """``mma.sync`` m×8×k of a warp on operands of a type, or as many of them.

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
    """``tcgen05.mma`` of a block or a pair: an instruction. What it asks of shared memory, and the cycles that it keeps the
    tensor cores busy, are not documented and are not counted."""
    return UnitWork("tensor memory", "tcgen05")


#: Bits of an element of A.
_BITS = {"tf32": 32, "f16": 16, "bf16": 16, "s8": 8, "u8": 8, "b1": 1} | _BITS_OF_TWO


def touched_sectors(starts: Ints, nbytes: int) -> int:
    """Sectors that lines of ``nbytes`` touch, each line counted apart: their first addresses.

    >>> import numpy as np
    >>> touched_sectors(np.array([0, 240]), 128)
    9
    """
    return int(((starts + nbytes - 1) // SECTOR - starts // SECTOR + 1).sum()) if nbytes else 0


def filled_sectors(lines: int, nbytes: int, inside: int, moved: int) -> int:
    """Sectors that fill what lies outside in a box of lines of ``nbytes``: of ``inside`` lines all but ``moved`` bytes, of
    the others all.

    >>> filled_sectors(32, 128, 13, 112)
    89
    """
    return inside * -(-(nbytes - moved) // SECTOR) + (lines - inside) * -(-nbytes // SECTOR)


def multicast_sectors(lines: int, nbytes: int) -> int:
    """Sectors of lines of ``nbytes`` that a multicast clips: what is inside and what is filled are sent apart.

    >>> multicast_sectors(312, 128)
    2496
    """
    return 2 * lines * -(-nbytes // SECTOR)


def copy_work(kind: str, nbytes: int, sectors: int) -> UnitWork:
    """A bulk copy: ``kind`` is "load", "store" or "reduce"."""
    return UnitWork("global", f"tma {kind}", bytes=nbytes, sectors=sectors)


#: A copy within shared memory, which is not counted.
NOTHING = copy_work("load", 0, 0)
#: An operation on a barrier.
BARRIER_WORK = UnitWork("shared", "mbarrier")
