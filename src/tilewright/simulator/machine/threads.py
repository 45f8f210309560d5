"""The threads of a batch of blocks: the position of each thread in its warp, block, cluster and grid; and its special
registers.

The blocks of a cluster run at the same time and address each other's shared memory. So the blocks of a launch with
clusters are numbered cluster by cluster, and within a cluster by rank. A batch contains whole clusters. In a launch
without clusters, every block counts as a cluster of one block, as on hardware (PTX ISA 10.13 to 10.20).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from ...gpu.runtime.launch import extent
from ..assembly.instructions import Function
from .values import Array, Dim, Ints, split

# ---- clusters --------------------------------------------------------------------------------------------------------

#: The most blocks of a cluster that every GPU accepts, and that some GPUs accept if the kernel allows it.
PORTABLE_CLUSTER, MOST_CLUSTER = 8, 16
NO_CLUSTER: Dim = (1, 1, 1)


def cluster_dimensions(entry: Function, grid: Dim, given: int | Sequence[int] | None) -> Dim:
    """Return the numbers of blocks of a cluster along x, y, z: those with which the kernel was compiled, or those that
    were ``given`` at the launch.

    Raises UsageError for a cluster size that the kernel or the grid does not allow, or that no GPU accepts.
    """
    limits, name = entry.limits, entry.name
    required = limits.get("reqnctapercluster")
    asked = None if given is None else extent("cluster", given)
    if required is not None and asked not in (None, required):
        raise UsageError(f"kernel {name} needs clusters of {required} blocks, given {asked}")
    if "explicitcluster" in limits and required is None and asked is None:
        raise UsageError(f"kernel {name} must be launched with clusters: give their size (cluster=)")
    cluster = required or asked or NO_CLUSTER
    size, most = math.prod(cluster), math.prod(limits.get("maxclusterrank", (MOST_CLUSTER,)))
    if size > min(most, MOST_CLUSTER):
        why = f"no GPU takes more than {MOST_CLUSTER}" if size > MOST_CLUSTER else f"kernel {name} takes at most {most}"
        raise UsageError(f"cluster {cluster} has {size} blocks: {why}")
    if any(blocks % of for blocks, of in zip(grid, cluster, strict=True)):
        raise UsageError(f"grid {grid} is not a multiple of the cluster, {cluster}, along x, y and z")
    return cluster


def grid_of_clusters(grid: Dim, cluster: Dim) -> Dim:
    """Return the numbers of clusters of a grid along x, y, z.

    >>> grid_of_clusters((8, 6, 1), (2, 3, 1))
    (4, 2, 1)
    """
    return grid[0] // cluster[0], grid[1] // cluster[1], grid[2] // cluster[2]


def blocks_by_cluster(numbers: Ints, grid: Dim, cluster: Dim) -> Ints:
    """Convert block numbers, which count the blocks cluster by cluster, to block indices in the grid.

    >>> blocks_by_cluster(np.arange(8), (4, 2, 1), (2, 2, 1)).tolist()
    [0, 1, 4, 5, 2, 3, 6, 7]
    """
    size = math.prod(cluster)
    if size == 1:
        return numbers
    corner, inside = _place(numbers // size, grid_of_clusters(grid, cluster)), _place(numbers % size, cluster)
    x, y, z = (a * of + b for a, of, b in zip(corner, cluster, inside, strict=True))
    return np.asarray((z * grid[1] + y) * grid[0] + x)


def clusters_of(blocks: Ints, grid: Dim, cluster: Dim) -> Ints:
    """Return the number of the cluster to which each block of the grid belongs.

    >>> clusters_of(np.arange(8), (4, 2, 1), (2, 2, 1)).tolist()
    [0, 0, 1, 1, 0, 0, 1, 1]
    """
    x, y, z = (at // of for at, of in zip(_place(blocks, grid), cluster, strict=True))
    clusters = grid_of_clusters(grid, cluster)
    return np.asarray((z * clusters[1] + y) * clusters[0] + x)


def _place(index: Ints, shape: Dim) -> tuple[Ints, Ints, Ints]:
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])


class Cluster:
    """The clusters of a batch. Each cluster has ``size`` blocks; ``rank`` is the rank of each lane's block in its
    cluster."""

    def __init__(self, shape: Dim, of_block: Ints) -> None:
        self.shape, self.size = shape, math.prod(shape)
        self.of_block = of_block  # of the batch, per lane
        self.rank = of_block % self.size

    def block(self, rank: int | Array, sel: Ints | None = None) -> Ints:
        """Return the block of the batch that has this rank in each active lane's cluster."""
        own = self.of_block if sel is None else self.of_block[sel]
        return np.asarray(own - own % self.size + rank)

    def registers(self, grid: Dim, index: Ints, axis: int) -> dict[str, int | Ints]:
        """Return the values of the special registers about clusters along an axis; ``index`` is the index in the grid
        of each lane's block."""
        at, of = _place(index, grid)[axis], self.shape[axis]
        return {
            "%clusterid": at // of,
            "%nclusterid": grid[axis] // of,
            "%cluster_ctaid": at % of,
            "%cluster_nctaid": of,
            "%cluster_ctarank": self.rank,
            "%cluster_nctarank": self.size,
            "%is_explicit_cluster": int(self.size > 1),
        }


# ---- threads ---------------------------------------------------------------------------------------------------------

#: The bytes of each block's shared memory that the system uses, from compute capability 8.0 on.
RESERVED_SHARED = 1024


class Threads:
    """All threads of ``copies`` blocks of a grid, one lane each. Arrays of this class have the shape (size,) unless
    stated otherwise."""

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
        """Assign all threads to these blocks of the grid, the first of which is block ``first`` of the run."""
        self.blocks[:], self.grid_blocks[:] = np.arange(first, first + self.copies), grid_blocks
        self.warp[:] = grid_blocks[self.of_block] * (-(-self.threads // 32)) + self.tid // 32

    def place(self, lane: int) -> tuple[Dim, Dim]:
        """Return the block index and the thread index of a lane, as the kernel sees them."""
        block, thread = int(self.grid_blocks[self.of_block[lane]]), int(self.tid[lane])
        return split(block, self.grid), split(thread, self.block)


def special_register(name: str, threads: Threads, dynamic_shared: int, static_shared: int) -> Array:
    """Return the values of a special register (PTX ISA 10), as unsigned 32- or 64-bit integers: one value for each
    lane, or a single value for all lanes.

    ``dynamic_shared`` and ``static_shared`` are the bytes of dynamic and static shared memory per block. Raises
    UsageError for an unknown register.
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
