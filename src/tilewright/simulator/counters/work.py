"""What instructions do in units other than the load/store pipe: tensor cores by ``wgmma``, the copy engine, and barriers.

The rules were read off an H200 by ncu 2025.3: 240 forms of ``wgmma`` (``benchmarks/wgmma-h200.jsonl``) and the asynchronous
kernels of the tests (``benchmarks/asynchronous-h200.jsonl``); they reproduce every one of these counts.

- **wgmma.** K of an instruction is 32 bytes of every type. It keeps the four tensor cores of a multiprocessor busy for N/2
  cycles each. Its operands pass through the banks of shared memory 128 bytes at a time, without conflicts in any layout:
  16 wavefronts for the 64 rows of A, unless these are in registers, and N/4 for B.
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

    ``kind`` is "wgmma" or "mbarrier" in space "shared", "tma load", "tma store" or "tma reduce" in space "global".
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
