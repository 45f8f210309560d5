"""The least time in which each resource of a card can do its work for a product; notes on what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...records.explanation import Access, Bound
from ...simulator.counters.sectors import SECTOR
from ...simulator.gpus import GpuModel

#: A turn of L1 moves this many sectors of global memory: 128 bytes.
SECTORS_A_TURN = 4
#: The compute capability on which the rules of sectors and banks were measured.
MEASURED = (9, 0)


@dataclass(frozen=True)
class LeastWork:
    """What any kernel must do for a product: operations, and the bytes of its operands, each moved once."""

    operations: int
    bytes: int


@dataclass(frozen=True)
class ArithmeticUnit:
    """The unit that a kernel computes with: its name, and its rate in GFLOPS, None where the table has none."""

    name: str
    gflops: float | None


def arithmetic_unit(card: GpuModel, dtype: str, precision: str, *, matrix: bool) -> ArithmeticUnit:
    """The unit for operands of ``dtype``; ``matrix``: the kernel has matrix instructions, on the format of ``precision``.

    >>> from tilewright.simulator.gpus import find_gpu
    >>> arithmetic_unit(find_gpu("A100"), "float32", "tf32", matrix=True)
    ArithmeticUnit(name='matrix instructions on tf32', gflops=156000.0)
    >>> arithmetic_unit(find_gpu("T4"), "bfloat16", "standard", matrix=True).gflops is None
    True
    """
    if not matrix:
        return ArithmeticUnit(dtype, {"float32": card.fp32_gflops, "float64": card.fp64_gflops}.get(dtype))
    if dtype == "float64":
        return ArithmeticUnit("matrix instructions on float64", card.fp64_tensor_gflops)
    short = {"float16": "f16", "bfloat16": "bf16"}.get(dtype, precision)
    name = f"matrix instructions on {dtype if short == 'standard' else short}"
    return ArithmeticUnit(name, card.tensor_gflops.get(short))


def time_bounds(
    card: GpuModel, peak: float | None, work: LeastWork, blocks: int, accesses: Sequence[Access], tensor_cycles: int = 0
) -> list[Bound]:
    """The least times of arithmetic, of the memories and of the multiprocessors' memory pipe.

    Device memory must move each operand once. The pipe of a multiprocessor (L1 and shared memory) takes a turn a cycle:
    four sectors of global memory, or a wavefront of shared memory. Fewer blocks than multiprocessors leave some idle.
    A kernel with ``wgmma`` also has a bound by its tensor cores: the cycles that its instructions keep them busy, which
    depend on their type. One whose data the copy engine moves past L1 has a bound by the L2 cache, where its rate was
    measured: by the bytes that arrive, so that those of a multicast count at each block that gets them. Latency is not
    modelled, so all bounds are optimistic.
    """
    limits = []
    busy = min(blocks, card.sms)
    if peak:
        limits.append(Bound("arithmetic", work.operations, "operations", peak * 1e9 * busy / card.sms))
    if tensor_cycles and card.clock_mhz:
        each = card.limits.sub_partitions * card.clock_mhz * 1e6
        limits.append(Bound("tensor cores", tensor_cycles, "cycles", busy * each))
    if card.bandwidth_gbs:
        limits.append(Bound("device memory", work.bytes, "bytes", card.bandwidth_gbs * 1e9))
    past_l1 = SECTOR * sum(a.sectors for a in accesses if a.space == "global" and a.kind.startswith("tma "))
    if past_l1 and card.rates:
        limits.append(Bound("L2 cache", past_l1, "bytes", card.rates.l2_gbs * 1e9))
    if card.clock_mhz:
        turns = sum(map(turns_of, accesses))
        limits.append(Bound("L1 and shared memory", turns, "turns", busy * card.clock_mhz * 1e6))
    return limits


def turns_of(access: Access) -> int:
    """Turns of a multiprocessor's memory pipe: the wavefronts of shared memory, or four sectors of global memory each.

    What the copy engine writes to shared memory takes none that others could use: a ring with copies and ``wgmma`` was
    measured at 12 % less than the sum of the wavefronts of both (``benchmarks/pipeline-rates-h200.jsonl``).
    """
    if access.space == "shared":
        return access.wavefronts
    return 0 if access.kind.startswith("tma ") else max(access.requests, -(-access.sectors // SECTORS_A_TURN))


def unknown(card: GpuModel, unit: ArithmeticUnit) -> list[str]:
    """Notes: the bounds that are missing because a rate is not known, and what is assumed of a card that was not
    measured."""
    missing = [
        ("arithmetic", f"rate for {unit.name}", unit.gflops),
        ("device memory", "bandwidth", card.bandwidth_gbs),
        ("L1 and shared memory", "clock", card.clock_mhz),
    ]
    notes = [
        f"no bound by {name}: the {card.name}'s {what} is not known here" for name, what, rate in missing if not rate
    ]
    if card.compute_capability != MEASURED:
        notes.append(
            f"the rules of sectors and banks were measured on an H200; that the {card.name} follows them, and that its L1 "
            "takes a turn a cycle, is assumed"
        )
    return notes
