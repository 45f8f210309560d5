"""The threads of a batch of blocks: the place of each in its warp, its block and the grid, and its special registers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import UsageError
from .clusters import NO_CLUSTER, Cluster
from .values import Array, Dim, Ints, split

#: Bytes of shared memory that the system takes of each block, from compute capability 8.0 on.
RESERVED_SHARED = 1024


class Threads:
    """All threads of ``copies`` blocks of a grid, one lane each. Arrays have shape (size,) unless said otherwise."""

    def __init__(self, grid: Dim, block: Dim, copies: int, cluster: Dim = NO_CLUSTER) -> None:
        self.grid, self.block, self.copies = grid, block, copies
        self.threads = math.prod(block)  # of a block
        self.size = copies * self.threads
        self.every = np.arange(self.size, dtype=np.int64)
        self.tid = self.every % self.threads
        self.of_block = self.every // self.threads  # within the batch
        self.cluster = Cluster(cluster, self.of_block)
        self.lane = self.tid % 32
        self.warp = np.zeros(self.size, np.int64)  # within the grid
        self.warps = copies * -(-self.threads // 32)
        self.base_warp = self.of_block * (-(-self.threads // 32)) + self.tid // 32  # within the batch
        self.blocks = np.zeros(copies, np.int64)  # of the run, in order: (copies,)
        self.grid_blocks = np.zeros(copies, np.int64)  # of the grid: (copies,)

    def move_to(self, first: int, grid_blocks: Ints) -> None:
        """Become the threads of these blocks of the grid, which are the blocks from ``first`` on of the run."""
        self.blocks[:], self.grid_blocks[:] = np.arange(first, first + self.copies), grid_blocks
        self.warp[:] = grid_blocks[self.of_block] * (-(-self.threads // 32)) + self.tid // 32

    def place(self, lane: int) -> tuple[Dim, Dim]:
        """Block and thread of a lane, as the kernel sees them."""
        block, thread = int(self.grid_blocks[self.of_block[lane]]), int(self.tid[lane])
        return split(block, self.grid), split(thread, self.block)


def special_register(name: str, threads: Threads, dynamic_shared: int, static_shared: int) -> Array:
    """Values of a special register (PTX ISA 10), as unsigned 32 or 64 bits: one per lane, or a single one for all.

    ``dynamic_shared`` and ``static_shared`` are bytes of shared memory per block. Raises UsageError for an unknown register.
    """
    base, _, axis = name.partition(".")
    i = "xyz".find(axis) if axis else 0
    grid, block = threads.grid, threads.block
    index = threads.grid_blocks[threads.of_block]
    bit = np.uint32(1) << threads.lane.astype(np.uint32)
    values: dict[str, Any] = {
        "%tid": threads.tid // (1, block[0], block[0] * block[1])[i] % block[i],
        "%ntid": block[i],
        "%ctaid": index // (1, grid[0], grid[0] * grid[1])[i] % grid[i],
        "%nctaid": grid[i],
        **threads.cluster.registers(grid, index, i),
        "%laneid": threads.lane,
        "%warpid": threads.tid // 32,
        "%nwarpid": -(-threads.threads // 32),
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - np.uint32(1),
        "%lanemask_le": bit | (bit - np.uint32(1)),
        "%lanemask_gt": ~(bit | (bit - np.uint32(1))),
        "%lanemask_ge": ~(bit - np.uint32(1)),
        "%clock": 0,
        "%clock_hi": 0,
        "%smid": 0,
        "%nsmid": 1,
        "%dynamic_smem_size": dynamic_shared,
        "%total_smem_size": dynamic_shared + static_shared,
        "%aggr_smem_size": dynamic_shared + static_shared + RESERVED_SHARED,
    }
    if name in ("%clock64", "%globaltimer", "%gridid"):
        return np.zeros(1, np.uint64)
    if name in ("%globaltimer_lo", "%globaltimer_hi"):
        return np.zeros(1, np.uint32)
    if base not in values:
        raise UsageError(f"special register {name} is not supported")
    return np.asarray(values[base]).astype(np.uint32).reshape(-1)
