"""What each block of a launch does, as the microscope counted it: the input of its predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...records.explanation import Access
from ...simulator.counters.sectors import SECTOR
from ...simulator.machine.tensor_map import TensorMap
from ...simulator.microscope import Observation
from .bounds import turns_of

#: The counter of the busy cycles of tensor cores, summed over the four of a multiprocessor.
TENSOR_CYCLES = "sm__pipe_tensor_cycles_active.sum"
#: The kinds of global accesses that bring data: by the copy engine, and by threads.
_COPY, _LOADS = "tma load", ("ld", "cp.async")
#: The L2 cache takes a store in pieces of this many bytes: one that fills half of a piece takes as long.
PIECE = 64


@dataclass(frozen=True)
class PipelineWork:
    """The work of a mean block, of ``blocks``.

    ``rounds``, ``phases`` and ``under_way`` are those of ``BlockRounds``: how often copies arrive, for how many phases of
    mbarriers, and with how many bytes at once. ``groups``: warp groups that execute ``wgmma``. ``copied`` are bytes that the
    copy engine brings, ``loaded`` those that plain loads ask for, ``written`` those that stores and reductions take in whole
    pieces. ``turns`` are those of L1 and shared memory, ``tensor_cycles`` those of one of four tensor cores,
    ``instructions`` those of warps. ``busiest`` is the work of the block that has most, over that of the mean block.
    ``read_bytes`` are those of the arrays that the launch only reads, ``operand_bytes`` those of all.
    """

    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    groups: int
    rounds: float
    phases: float
    under_way: float
    copied: float
    loaded: float
    written: float
    turns: float
    tensor_cycles: float
    instructions: float
    busiest: float
    read_bytes: int
    operand_bytes: int

    @property
    def pipelined(self) -> bool:
        """Whether copies arrive at mbarriers."""
        return self.rounds > 0


def work_of(
    observed: Observation, args: Sequence[Any], *, threads: int, registers: int, shared_bytes: int
) -> PipelineWork:
    """The work of a launch with these arguments. ``registers`` are those of a thread, ``shared_bytes`` those of a block."""
    run, blocks = observed.run, observed.run.blocks_total
    in_global = [access for access in observed.accesses if access.space == "global"]
    copied = SECTOR * sum(a.sectors for a in in_global if a.kind == _COPY) / blocks
    rounds = run.rounds
    arrays = _arrays(args, observed.arrays)
    return PipelineWork(
        blocks=blocks,
        threads=threads,
        registers=registers,
        shared_bytes=shared_bytes,
        groups=run.multiplying_groups,
        rounds=rounds.rounds,
        phases=rounds.phases,
        under_way=rounds.under_way,
        copied=copied,
        # Of a sector that several loads use in part, L1 has the rest.
        loaded=sum(min(SECTOR * a.sectors, a.bytes) for a in in_global if a.kind in _LOADS) / blocks,
        written=sum(map(_written, in_global)) / blocks,
        turns=sum(map(turns_of, observed.accesses)) / blocks,
        tensor_cycles=observed.counters.get(TENSOR_CYCLES, 0) / blocks,
        instructions=run.warp_instructions / run.blocks_run,
        busiest=max(1.0, rounds.most / copied) if copied else 1.0,
        read_bytes=sum(array.nbytes for array, was_written in arrays if not was_written),
        operand_bytes=sum(array.nbytes for array, _ in arrays),
    )


def _written(access: Access) -> int:
    """The bytes of the pieces that stores write. Those of threads are as in the request that is the example."""
    if access.kind in (_COPY, *_LOADS):
        return 0
    pieces = {at // PIECE for at in access.lanes if at is not None}
    return max(SECTOR * access.sectors, PIECE * len(pieces) * access.requests)


def _arrays(args: Sequence[Any], left: Sequence[Any]) -> list[tuple[np.ndarray[Any, Any], bool]]:
    """Each array among the arguments once, and whether the launch wrote to it; ``left``: as the launch left them."""
    found: dict[int, tuple[np.ndarray[Any, Any], bool]] = {}
    for arg, after in zip(args, left, strict=True):
        several = isinstance(arg, list | tuple)
        for each, now in zip(arg, after, strict=True) if several else [(arg, after)]:
            array = each.array if isinstance(each, TensorMap) else each
            if isinstance(array, np.ndarray):
                found[id(array)] = array, now is not array
    return list(found.values())
