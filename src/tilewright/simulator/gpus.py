"""GPUs as data: the limits of a multiprocessor, and the peak rates of a GPU model. A limit or rate that is not known
for certain is None.

The limits and rates come from the following sources:

- limits by compute capability: NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute Capability",
  and the toolkit's own ``cuda_occupancy.h`` (allocation units, sub-partitions, reserved bytes). The guide and
  ``cuda_occupancy.h`` no longer list compute capability 1.3; its limits come from the guide of CUDA 2.3 to 5 and the
  CUDA Occupancy Calculator spreadsheet;
- counts of multiprocessors, clocks and bandwidths: the datasheet or whitepaper named at each GPU. Peaks are
  multiprocessors x operations per cycle x boost clock. The computed peaks agree with the datasheets' figures, which are
  rounded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import UsageError

KIB = 1024


@dataclass(frozen=True)
class Limits:
    """The limits of one multiprocessor (SM) of a compute capability. Sizes of memory are in bytes; a register has 32
    bits.

    Registers are allocated in units of ``register_unit``: per warp, or per block if ``registers_by_block``. The warps and
    registers of a multiprocessor are divided among its ``sub_partitions``.
    """

    max_threads_per_sm: int
    max_threads_per_block: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    register_unit: int
    shared_per_sm: int
    shared_per_block_optin: int  # with MAX_DYNAMIC_SHARED_SIZE_BYTES
    shared_reserved_per_block: int  # reserved by the driver in each block
    shared_unit: int
    sub_partitions: int = 4
    registers_by_block: bool = False
    warp_size: int = 32

    @property
    def max_warps_per_sm(self) -> int:
        """The most warps that a multiprocessor can hold."""
        return self.max_threads_per_sm // self.warp_size


def _modern(threads: int, blocks: int, shared: int, optin: int, reserved: int, unit: int) -> Limits:
    """Limits since 6.1, all with 65,536 registers per multiprocessor, in units of 256 per warp, and four sub-partitions."""
    return Limits(threads, 1024, blocks, 65536, 65536, 255, 256, shared, optin, reserved, unit)


#: The limits by compute capability. On 1.3 registers are allocated to two warps together, so its ``sub_partitions`` is 2.
LIMITS = {
    (1, 3): Limits(
        *(1024, 512, 8, 16384, 16384, 124, 512, 16 * KIB, 16 * KIB, 0, 512),
        sub_partitions=2,
        registers_by_block=True,
    ),
    (6, 1): _modern(2048, 32, 96 * KIB, 48 * KIB, 0, 256),
    (7, 0): _modern(2048, 32, 96 * KIB, 96 * KIB, 0, 256),
    (7, 5): _modern(1024, 16, 64 * KIB, 64 * KIB, 0, 256),
    (8, 0): _modern(2048, 32, 164 * KIB, 163 * KIB, KIB, 128),
    (8, 6): _modern(1536, 16, 100 * KIB, 99 * KIB, KIB, 128),
    (8, 9): _modern(1536, 24, 100 * KIB, 99 * KIB, KIB, 128),
    (9, 0): _modern(2048, 32, 228 * KIB, 227 * KIB, KIB, 128),
    (10, 0): _modern(2048, 32, 228 * KIB, 227 * KIB, KIB, 128),
    (12, 0): _modern(1536, 24, 100 * KIB, 99 * KIB, KIB, 128),
}


@dataclass(frozen=True)
class PipelineRates:
    """The measured times and rates of a GPU, from which the time of a pipelined kernel is predicted. Times are in
    seconds, rates in GB/s, and clocks in MHz.

    ``launch``: the time from the start of one kernel to the start of the next, if each kernel ends at once.
    ``block_interval``: the time from the start of a block to the start of the next block on the same multiprocessor.
    ``block_start``: the time from the start of a block to its first request for data. ``l2_latency``: the time until a
    copy has arrived from the L2 cache; ``memory_latency``: how much longer a copy from device memory takes.
    ``hand_over``: the time from the end of a warp group's products in one stage to its first product in the next stage.
    ``l2_first_gbs``: the rate of reads from the L2 cache of bytes that only one block reads; ``l2_gbs``: the rate of
    reads of bytes that other blocks have just read. ``memory_gbs``: the rate of device memory, reads and writes
    together. ``l2_bytes``: the most bytes that stay in the L2 cache from one launch to the next. ``tensor_clock_mhz``:
    the clock while tensor cores and copies are busy. ``instruction_cycles``: the cycles from the issue of an
    instruction to the issue of an instruction that needs its result.
    """

    launch: float
    block_interval: float
    block_start: float
    l2_latency: float
    memory_latency: float
    hand_over: float
    l2_first_gbs: float
    l2_gbs: float
    l2_write_gbs: float
    memory_gbs: float
    l2_bytes: int
    tensor_clock_mhz: float
    instruction_cycles: int


@dataclass(frozen=True)
class GpuModel:
    """One model of GPU. The clock is the boost clock in MHz, from which peaks are computed. Peaks are in GFLOPS, and
    the bandwidth is in GB/s (10^9).

    ``tensor_gflops``: the peaks of matrix instructions on "tf32", "f16" and "bf16" that sum in float32, without
    sparsity, as in datasheets (from Hopper on, datasheets assume a clock below the boost clock). ``rates``: the
    measured times and rates of the GPU; None for a GPU that was not measured.
    """

    name: str
    compute_capability: tuple[int, int]
    sms: int
    clock_mhz: int | None
    fp32_gflops: float | None
    fp64_gflops: float | None
    fp64_tensor_gflops: float | None  # matrix instructions; None also for a card without them
    bandwidth_gbs: float | None
    source: str
    tensor_gflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    rates: PipelineRates | None = None

    @property
    def limits(self) -> Limits:
        """The limits of a multiprocessor of the GPU's compute capability."""
        return LIMITS[self.compute_capability]

    @property
    def arch(self) -> str:
        """The compiler's name for the GPU's compute capability, such as ``sm_90a``.

        >>> find_gpu("h200").arch
        'sm_90'
        """
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"


def _card(
    name: str, cc: tuple[int, int], sms: int, mhz: int, fp32: int, fp64: float, bandwidth: float, source: str,
    *, fp64_tensor: int | None = None, rates: PipelineRates | None = None, **tensor: float,
) -> GpuModel:  # fmt: skip
    """A card from operations per cycle and multiprocessor; an FMA counts two. ``tensor`` in TFLOPS, as in datasheets."""
    per_op = sms * mhz / 1000
    fp64_peak = fp64_tensor and fp64_tensor * per_op
    peaks = {name: 1e3 * tflops for name, tflops in tensor.items()}
    return GpuModel(name, cc, sms, mhz, fp32 * per_op, fp64 * per_op, fp64_peak, bandwidth, source, peaks, rates)


#: Of an H200: ``benchmarks/pipeline-rates-h200.jsonl``, from which a test derives each; but the size of L2, which is the
#: datasheet's, and the latency of arithmetic of 32 bits, which is that of Volta (arXiv 1804.06826).
_H200 = PipelineRates(
    launch=0.65e-6, block_interval=0.08e-6, block_start=0.33e-6, l2_latency=0.24e-6, memory_latency=0.37e-6,
    hand_over=0.115e-6, l2_first_gbs=9080, l2_gbs=14760, l2_write_gbs=6200, memory_gbs=3955, l2_bytes=50_000_000,
    tensor_clock_mhz=1730, instruction_cycles=4,
)  # fmt: skip

#: Every GPU that the sources of docs/sources.md used, later data-centre GPUs, and common consumer GPUs.
GPUS = (
    _card("GTX 260", (1, 3), 27, 1242, 16, 2, 111.9,
          "GeForce GTX 260 with 216 cores (27 SMs, shader clock 1242 MHz): the only one whose peak is S3's 67.07 "
          "GFLOPS of float64; float32 counts the multiply-add alone, not the extra multiply of marketing's 805"),
    _card("GTX 1080 Ti", (6, 1), 28, 1582, 256, 8, 484.4,
          "GeForce GTX 1080 Ti specification: 3584 cores, 11 Gbps on 352 bits"),
    _card("V100", (7, 0), 80, 1380, 128, 64, 900,
          "Tesla V100-PCIE datasheet, S0's card (14 TFLOPS); the SXM2 card boosts to 1530 MHz (15.7 TFLOPS)", f16=112),
    _card("T4", (7, 5), 40, 1590, 128, 4, 320, "Tesla T4 datasheet: 2560 cores, 8.1 TFLOPS", f16=65),
    _card("RTX 2080 Ti", (7, 5), 68, 1545, 128, 4, 616,
          "Turing whitepaper, reference board (13.4 TFLOPS); the Founders Edition boosts to 1635 MHz", f16=53.8),
    _card("A100", (8, 0), 108, 1410, 128, 64, 2039,
          "A100 80GB SXM datasheet: 19.5 TFLOPS; the 40GB card has 1555 GB/s",
          fp64_tensor=128, tf32=156, f16=312, bf16=312),
    _card("A10", (8, 6), 72, 1695, 256, 4, 600,
          "A10 datasheet: 31.2 TFLOPS, 600 GB/s", tf32=62.5, f16=125, bf16=125),
    _card("RTX 3090", (8, 6), 82, 1695, 256, 4, 936,
          "GA102 whitepaper: 10496 cores, boost 1695 MHz, 35.6 TFLOPS", tf32=35.6, f16=71, bf16=71),
    _card("L4", (8, 9), 58, 2040, 256, 4, 300,
          "L4 datasheet: 30.3 TFLOPS, 300 GB/s; half of its figures for sparse matrices", tf32=60, f16=121, bf16=121),
    _card("L40S", (8, 9), 142, 2520, 256, 4, 864,
          "L40S datasheet: 91.6 TFLOPS, 864 GB/s", tf32=183, f16=362.05, bf16=362.05),
    _card("RTX 4090", (8, 9), 128, 2520, 256, 4, 1008,
          "Ada whitepaper: 16384 cores, boost 2520 MHz, 82.6 TFLOPS", tf32=82.6, f16=165.2, bf16=165.2),
    _card("H100", (9, 0), 132, 1980, 256, 128, 3350, "H100 SXM5 datasheet: 67 TFLOPS, HBM3 3.35 TB/s",
          fp64_tensor=256, tf32=494.7, f16=989.4, bf16=989.4),
    _card("H200", (9, 0), 132, 1980, 256, 128, 4800, "H200 SXM datasheet: 67 TFLOPS, HBM3e 4.8 TB/s",
          fp64_tensor=256, tf32=494.7, f16=989.4, bf16=989.4, rates=_H200),
    GpuModel("B200", (10, 0), 148, 1965, 75000, 37000, 37000, 8000,
        "DGX/HGX B200 datasheets, an eighth of the eight cards' figures, which give no boost clock; 148 "
        "multiprocessors and the highest clock, 1965 MHz, as the driver reports them",
        {"tf32": 1125e3, "f16": 2250e3, "bf16": 2250e3}),
    _card("RTX 5090", (12, 0), 170, 2407, 256, 4, 1792,
          "RTX Blackwell whitepaper: 21760 cores, boost 2407 MHz, 104.8 TFLOPS", tf32=104.8, f16=209.5, bf16=209.5),
)  # fmt: skip

_MAKER = ("nvidia", "geforce", "tesla")
#: What a driver appends to the name of a card: form factor and memory. Any other suffix means another card.
_FORM = r"(?:sxm\d?|pcie|hbm\d\w?|\d+gb)*"
#: Not in the table, although the name begins like one that is: the H100 PCIe has 114 multiprocessors.
_OTHERS = ("h100pcie",)


def _key(name: str) -> str:
    return "".join(word for word in re.split(r"[\s_-]+", name.lower()) if word not in _MAKER)


def capability_of(arch: str) -> tuple[int, int] | None:
    """Return the compute capability of an architecture, which is given by the compiler's name for it, such as
    ``sm_90a``; None if the text is no such name.

    >>> capability_of("sm_90a"), capability_of("sm_120"), capability_of("fermi")
    ((9, 0), (12, 0), None)
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    return (int(match[1]), int(match[2])) if match else None


def find_gpu(name: str) -> GpuModel:
    """Find a GPU by its name; case, spaces, the maker's prefixes and a suffix of form factor and memory are ignored.

    Raises UsageError for a GPU that the table does not have; the message lists all names.

    >>> find_gpu("NVIDIA H200").sms, find_gpu("rtx2080ti").name, find_gpu("gtx-260").compute_capability
    (132, 'RTX 2080 Ti', (1, 3))
    >>> find_gpu("NVIDIA A100-SXM4-80GB").name, find_gpu("Tesla T4").name
    ('A100', 'T4')
    """
    key = _key(name)
    for gpu in GPUS:
        if re.fullmatch(_key(gpu.name) + _FORM, key) and not key.startswith(_OTHERS):
            return gpu
    names = {_key(gpu.name): gpu.name for gpu in GPUS}
    close = difflib.get_close_matches(key, names, n=2)
    hint = f"; did you mean {' or '.join(names[k] for k in close)}?" if close else ""
    raise UsageError(f"GPU: must be one of {', '.join(names.values())}, got {name!r}{hint}")


def named_in_full(name: str, gpu: GpuModel) -> bool:
    """Whether ``name`` states a form factor or a memory size after the name of a GPU in the table. The stated form
    factor or memory size may differ from that of the GPU in the table.

    >>> named_in_full("NVIDIA A100-SXM4-40GB", find_gpu("a100")), named_in_full("nvidia a100", find_gpu("a100"))
    (True, False)
    """
    return _key(name) != _key(gpu.name)
