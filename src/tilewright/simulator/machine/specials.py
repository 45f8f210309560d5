"""Special registers: what a thread knows of its place in the launch (PTX ISA 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UsageError

if TYPE_CHECKING:
    from .state import Array, Lanes


def special(name: str, lanes: Lanes) -> Array:
    """Values of a special register, as unsigned 32 or 64 bits, for all lanes or one for all."""
    base, _, axis = name.partition(".")
    i = "xyz".find(axis) if axis else 0
    grid, block = lanes.launch.grid, lanes.launch.block
    index = lanes.grid_blocks[lanes.of_block]
    bit = np.uint32(1) << lanes.lane.astype(np.uint32)
    # A kernel launched without clusters is in clusters of one block (PTX ISA 10.13 to 10.20).
    in_cluster = {"ctaid": 0, "nctaid": 1, "ctarank": 0, "nctarank": 1}
    values: dict[str, Any] = {
        "%tid": lanes.tid // (1, block[0], block[0] * block[1])[i] % block[i],
        "%ntid": block[i],
        "%ctaid": index // (1, grid[0], grid[0] * grid[1])[i] % grid[i],
        "%nctaid": grid[i],
        "%clusterid": index // (1, grid[0], grid[0] * grid[1])[i] % grid[i],
        "%nclusterid": grid[i],
        **{f"%cluster_{which}": value for which, value in in_cluster.items()},
        "%is_explicit_cluster": 0,
        "%laneid": lanes.lane,
        "%warpid": lanes.tid // 32,
        "%nwarpid": -(-lanes.threads // 32),
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - np.uint32(1),
        "%lanemask_le": bit | (bit - np.uint32(1)),
        "%lanemask_gt": ~(bit | (bit - np.uint32(1))),
        "%lanemask_ge": ~(bit - np.uint32(1)),
        "%clock": 0,
        "%clock_hi": 0,
        "%smid": 0,
        "%nsmid": 1,
        "%gridid": 0,
        "%dynamic_smem_size": lanes.launch.shared_bytes,
        "%total_smem_size": lanes.launch.shared_bytes + lanes.launch.static_shared,
    }
    if name in ("%clock64", "%globaltimer"):
        return np.zeros(1, np.uint64)
    if name in ("%globaltimer_lo", "%globaltimer_hi"):
        return np.zeros(1, np.uint32)
    if base not in values:
        raise UsageError(f"special register {name} is not known here")
    return np.asarray(values[base]).astype(np.uint32).reshape(-1)
