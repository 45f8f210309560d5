"""Computes how many blocks a multiprocessor holds at once, and which resource prevents it from holding more (row S3.4
of docs/sources.md, for any GPU).

The rules come from CUDA's occupancy calculator, which is ``cuda_occupancy.h`` in the CUDA toolkit; for compute
capability 1.3 they come from the spreadsheet of that time. Each of four resources (threads, registers, shared memory,
block slots) is allocated in units, and limits the number of blocks. The lowest of the four limits is the number of
resident blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from .gpus import GpuModel, Limits

#: The names by which the profiler calls the four limits.
COUNTERS = {
    "threads": "launch__occupancy_limit_warps",
    "registers": "launch__occupancy_limit_registers",
    "shared": "launch__occupancy_limit_shared_mem",
    "blocks": "launch__occupancy_limit_blocks",
}


@dataclass(frozen=True)
class Occupancy:
    """The number of blocks and warps of a launch that one multiprocessor holds.

    ``limits``: the number of blocks that each resource alone would allow; None if a block uses none of that resource, 0
    if the block cannot launch. ``refusal`` says why the block cannot launch, with the GPU's limit; ``refusal`` is empty
    if the block can launch.
    """

    gpu: str
    threads: int  # per block
    registers: int  # per thread
    shared: int  # bytes per block
    limits: dict[str, int | None]
    warps_per_block: int
    max_warps: int
    refusal: str = ""

    @property
    def blocks(self) -> int:
        """The number of blocks resident on one multiprocessor."""
        return min(limit for limit in self.limits.values() if limit is not None)

    @property
    def limiting(self) -> tuple[str, ...]:
        """The resources that allow the fewest blocks."""
        return tuple(name for name, limit in self.limits.items() if limit == self.blocks)

    @property
    def warps(self) -> int:
        """The number of warps resident on one multiprocessor."""
        return self.blocks * self.warps_per_block

    @property
    def fraction(self) -> float:
        """The number of resident warps, divided by the most warps that a multiprocessor can hold."""
        return self.warps / self.max_warps

    def counters(self) -> dict[str, int | None]:
        """Return the limits of the resources, keyed by the profiler's names for them."""
        return {COUNTERS[name]: limit for name, limit in self.limits.items()}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {'-' if limit is None else limit}" for name, limit in self.limits.items())
        what = "cannot launch" if not self.blocks else f"{self.blocks} blocks = {self.warps} warps of {self.max_warps}"
        return f"{self.gpu}: {what} ({self.fraction:.0%}), limited by {' and '.join(self.limiting)} [{parts}]"


def occupancy(gpu: GpuModel, threads: int, registers: int = 0, shared: int = 0) -> Occupancy:
    """Return the occupancy of a multiprocessor by blocks with ``threads`` threads, ``registers`` registers per thread
    and ``shared`` bytes of shared memory.

    ``shared`` is the static plus the dynamic shared memory of a block; its limit is the maximum to which a kernel can
    opt in. Raises UsageError for negative numbers, or for a block without threads. The kernel of row S3.4
    (docs/sources.md) on its GPU, then two recent GPUs:

    >>> from tilewright.simulator.gpus import find_gpu
    >>> occupancy(find_gpu("GTX 260"), 64, 50, 2248).blocks
    4
    >>> print(occupancy(find_gpu("H200"), 256, 64))
    H200: 4 blocks = 32 warps of 64 (50%), limited by registers [threads 8, registers 4, shared 228, blocks 32]
    >>> print(occupancy(find_gpu("T4"), 256, 32, 128 * 1024))
    T4: cannot launch (0%), limited by shared [threads 4, registers 8, shared 0, blocks 16]
    """
    for name, value, least in (("threads", threads, 1), ("registers", registers, 0), ("shared", shared, 0)):
        if value < least:
            raise UsageError(f"{name}: must be at least {least}, got {value}")
    card = gpu.limits
    warps = _ceil(threads, card.warp_size)
    fits = threads <= card.max_threads_per_block
    limits = {
        "threads": card.max_warps_per_sm // warps if fits else 0,
        "registers": _by_registers(card, warps, registers),
        "shared": _by_shared(card, shared),
        "blocks": card.max_blocks_per_sm,
    }
    why = refusal(card, threads, registers, shared)
    return Occupancy(gpu.name, threads, registers, shared, limits, warps, card.max_warps_per_sm, why)


def refusal(card: Limits, threads: int, registers: int, shared: int) -> str:
    """Return a text that names the first limit that a block or a thread exceeds; the text is empty if no limit is
    exceeded."""
    of_block = _registers_of_block(card, _ceil(threads, card.warp_size), registers)
    limits = (
        (threads, card.max_threads_per_block, "threads a block"),
        (registers, card.registers_per_thread, "registers a thread"),
        (shared, card.shared_per_block_optin, "bytes of shared memory a block"),
        (of_block, card.registers_per_block, f"registers a block ({threads:,} threads of {registers:,})"),
    )
    return next((f"{wanted:,} {what}, of {most:,} at most" for wanted, most, what in limits if wanted > most), "")


def _registers_of_block(card: Limits, warps: int, registers: int) -> int:
    """Registers allocated to a block. The number of warps is rounded up to a multiple of the sub-partitions."""
    whole_warps, a_warp = _round_up(warps, card.sub_partitions), registers * card.warp_size
    if card.registers_by_block:
        return _round_up(whole_warps * a_warp, card.register_unit)
    return whole_warps * _round_up(a_warp, card.register_unit)


def _by_registers(card: Limits, warps: int, registers: int) -> int | None:
    if not registers:
        return None
    of_block = _registers_of_block(card, warps, registers)
    if registers > card.registers_per_thread or of_block > card.registers_per_block:
        return 0
    if card.registers_by_block:
        return card.registers_per_sm // of_block
    a_warp = _round_up(registers * card.warp_size, card.register_unit)
    return card.registers_per_sm // card.sub_partitions // a_warp * card.sub_partitions // warps


def _by_shared(card: Limits, shared: int) -> int | None:
    if shared > card.shared_per_block_optin:
        return 0
    taken = _round_up(shared + card.shared_reserved_per_block, card.shared_unit)
    return card.shared_per_sm // taken if taken else None


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def _round_up(value: int, unit: int) -> int:
    return _ceil(value, unit) * unit
