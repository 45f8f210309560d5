"""Cards as data: what a multiprocessor holds, and how fast the card can be. None where we are not sure.

Where the facts come from:

- limits by compute capability: NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute
  Capability", and the toolkit's own ``cuda_occupancy.h`` (allocation units, sub-partitions, reserved bytes); for
  1.3, which both have dropped, the guide of CUDA 2.3 to 5 and the CUDA Occupancy Calculator spreadsheet;
- counts of multiprocessors, clocks and bandwidths: the datasheet or whitepaper named at each card. Peaks are
  multiprocessors x operations a cycle x boost clock, and agree with the datasheet's figure as it is rounded there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError, did_you_mean

KIB = 1024


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor (SM) of a compute capability holds. Memory in bytes, registers of 32 bits.

    Registers are allotted in units of ``register_unit``: a warp at a time, or a block at a time where
    ``registers_by_block``. ``sub_partitions`` share a multiprocessor's warps and registers between them.
    """

    max_threads_per_sm: int
    max_threads_per_block: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    register_unit: int
    shared_per_sm: int
    shared_per_block: int  # without asking
    shared_per_block_optin: int  # with MAX_DYNAMIC_SHARED_SIZE_BYTES
    shared_reserved_per_block: int  # taken by the driver from each block's share
    shared_unit: int
    shared_banks: int = 32
    sub_partitions: int = 4
    registers_by_block: bool = False
    warp_size: int = 32

    @property
    def max_warps_per_sm(self) -> int:
        return self.max_threads_per_sm // self.warp_size


def _modern(threads: int, blocks: int, shared: int, optin: int, reserved: int, unit: int) -> Limits:
    """Since 6.1 only these differ: 65,536 registers a multiprocessor in units of 256 a warp, four sub-partitions."""
    return Limits(threads, 1024, blocks, 65536, 65536, 255, 256, shared, 48 * KIB, optin, reserved, unit)


#: By compute capability. On 1.3 two warps are allotted together, so ``sub_partitions`` is 2 there.
LIMITS = {
    (1, 3): Limits(
        *(1024, 512, 8, 16384, 16384, 124, 512, 16 * KIB, 16 * KIB, 16 * KIB, 0, 512),
        shared_banks=16,
        sub_partitions=2,
        registers_by_block=True,
    ),
    (6, 1): _modern(2048, 32, 96 * KIB, 48 * KIB, 0, 256),
    (7, 0): _modern(2048, 32, 96 * KIB, 96 * KIB, 0, 256),
    (7, 5): _modern(1024, 16, 64 * KIB, 64 * KIB, 0, 256),
    (8, 0): _modern(2048, 32, 164 * KIB, 163 * KIB, KIB, 128),
    (9, 0): _modern(2048, 32, 228 * KIB, 227 * KIB, KIB, 128),
    (10, 0): _modern(2048, 32, 228 * KIB, 227 * KIB, KIB, 128),
}


@dataclass(frozen=True)
class Gpu:
    """One card. Clock in MHz (boost; what peaks are computed from), peaks in GFLOPS, bandwidth in GB/s (10^9)."""

    name: str
    compute_capability: tuple[int, int]
    sms: int
    clock_mhz: int | None
    fp32_gflops: float | None
    fp64_gflops: float | None
    fp64_tensor_gflops: float | None  # matrix instructions; None also where there are none
    bandwidth_gbs: float | None
    source: str

    @property
    def limits(self) -> Limits:
        return LIMITS[self.compute_capability]

    @property
    def arch(self) -> str:
        """As the compiler calls it.

        >>> find_gpu("h200").arch
        'sm_90'
        """
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"


def _card(
    name: str, cc: tuple[int, int], sms: int, mhz: int, fp32: int, fp64: float, bandwidth: float, source: str,
    fp64_tensor: int | None = None,
) -> Gpu:  # fmt: skip
    """A card from operations a cycle and multiprocessor: an FMA counts two."""
    per_op = sms * mhz / 1000
    tensor = fp64_tensor and fp64_tensor * per_op
    return Gpu(name, cc, sms, mhz, fp32 * per_op, fp64 * per_op, tensor, bandwidth, source)


#: Every card the sources used (S0-S4), and the data-centre cards since.
GPUS = (
    _card("GTX 260", (1, 3), 27, 1242, 16, 2, 111.9,
          "GeForce GTX 260 with 216 cores (27 SMs, shader clock 1242 MHz): the only one whose peak is S3's 67.07 "
          "GFLOPS of float64; float32 counts the multiply-add alone, not the extra multiply of marketing's 805"),
    _card("GTX 1080 Ti", (6, 1), 28, 1582, 256, 8, 484.4,
          "GeForce GTX 1080 Ti specification: 3584 cores, 11 Gbps on 352 bits"),
    _card("V100", (7, 0), 80, 1380, 128, 64, 900,
          "Tesla V100-PCIE datasheet, S0's card (14 TFLOPS); the SXM2 card boosts to 1530 MHz (15.7 TFLOPS)"),
    _card("T4", (7, 5), 40, 1590, 128, 4, 320, "Tesla T4 datasheet: 2560 cores, 8.1 TFLOPS"),
    _card("RTX 2080 Ti", (7, 5), 68, 1545, 128, 4, 616,
          "Turing whitepaper, reference board (13.4 TFLOPS); the Founders Edition boosts to 1635 MHz"),
    _card("A100", (8, 0), 108, 1410, 128, 64, 2039,
          "A100 80GB SXM datasheet: 19.5 TFLOPS; the 40GB card has 1555 GB/s", 128),
    _card("H100", (9, 0), 132, 1980, 256, 128, 3350, "H100 SXM5 datasheet: 67 TFLOPS, HBM3 3.35 TB/s", 256),
    _card("H200", (9, 0), 132, 1980, 256, 128, 4800, "H200 SXM datasheet: 67 TFLOPS, HBM3e 4.8 TB/s", 256),
    Gpu("B200", (10, 0), 148, None, 75000, 37000, 37000, 8000,
        "DGX/HGX B200 datasheets, an eighth of the eight cards' figures, which give no boost clock; 148 "
        "multiprocessors as the driver reports them"),
)  # fmt: skip


def _key(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla"))


def find_gpu(name: str) -> Gpu:
    """The card of that name; case, spaces and the maker's prefixes do not matter.

    Raises UsageError for a card the table does not have.

    >>> find_gpu("NVIDIA H200").sms, find_gpu("rtx2080ti").name, find_gpu("gtx-260").compute_capability
    (132, 'RTX 2080 Ti', (1, 3))
    """
    key = _key(name)
    for gpu in GPUS:
        if _key(gpu.name) == key:
            return gpu
    hint = did_you_mean(key, (_key(gpu.name) for gpu in GPUS))
    raise UsageError(f"GPU: must be one of the known cards, got {name!r}; {hint}")
