"""Memory transactions and bounds by formula, as the sources write them; the microscope counts the same from code.

Every formula is for C[m, n] = A[m, k] B[k, n], row major, float32 unless a size is given, one thread an element of
C and 32 neighbouring columns a warp. Where 32 does not divide n the last warp of a row counts whole.
A sector is the 32-byte segment of S0.3. Sizes are in elements, memory in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UsageError

WARP = 32
SECTOR = 32


def naive_loads(m: int, n: int, k: int) -> int:
    """S0.3, the count that is wrong: every thread loads two elements a step, m*n*k*2.

    >>> naive_loads(32, 32, 32)
    65536
    """
    return 2 * m * n * k


def warps_of(m: int, n: int) -> int:
    """Warps that compute C, one thread an element: m*n/32."""
    return m * -(-n // WARP)


def load_sectors(m: int, n: int, k: int, *, a: int = 1, b: int = 4) -> int:
    """S0.3: sectors loaded from global memory by S0.2's kernel, m*n/32*k*5.

    A warp needs, a step, 1 sector for the element of A that all 32 threads share and 4 for 32 consecutive floats
    of B. Threads whose x runs along the rows of C (S1.16, S2's first kernel) need 32 for A, one a row, and 1 for
    B: 6.6 times as many, which is the factor that S1.16 could not explain.

    >>> load_sectors(32, 32, 32)
    5120
    >>> load_sectors(32, 32, 32, a=32, b=1) / load_sectors(32, 32, 32)
    6.6
    """
    return warps_of(m, n) * k * (a + b)


def store_sectors(m: int, n: int, *, each: int = 4) -> int:
    """S0.3: sectors stored, m*n/32*4; 32 each where the threads of a warp lie in 32 rows.

    >>> store_sectors(32, 32)
    128
    """
    return warps_of(m, n) * each


def load_requests(m: int, n: int, k: int) -> int:
    """S0.3: load instructions by warp, two a step, m*n/32*k*2.

    >>> load_requests(32, 32, 32)
    2048
    """
    return 2 * warps_of(m, n) * k


def rereads(n: int, width: int) -> int:
    """S0.5: how often each element of A is read from global memory when ``width`` columns of C share a read.

    n/32 with a warp's broadcast (S0.2), n/BLOCK with a shared tile. (B: the same with m and the tile's height.)

    >>> rereads(1024, 32), rereads(1024, 128)
    (32, 8)
    """
    return -(-n // width)


def tiled_load_sectors(m: int, n: int, k: int, *, tile_m: int, tile_n: int, itemsize: int = 4) -> int:
    """S0.5: sectors loaded when a block holds tile_m x tile_n of C: every element of A n/tile_n times, B m/tile_m.

    Exact where rows of a tile are whole sectors.

    >>> tiled_load_sectors(64, 64, 64, tile_m=32, tile_n=32)
    2048
    """
    elements = m * k * rereads(n, tile_n) + k * n * rereads(m, tile_m)
    return -(-elements * itemsize // SECTOR)


def shared_loads(m: int, n: int, k: int, *, per_thread: int = 1) -> int:
    """S0.5, S0.7, S0.8: shared load transactions when each thread computes ``per_thread`` rows of C.

    One: m*n/32*k*2. Two rows share the element of B, 3 loads for 2 multiply-adds: (m*n/2)/32*k*3.
    Without bank conflicts, and as the source counts them: ptxas may fuse neighbouring loads.

    >>> shared_loads(64, 64, 64), shared_loads(64, 64, 64, per_thread=2)
    (16384, 12288)
    """
    return warps_of(-(-m // per_thread), n) * k * (per_thread + 1)


def operations_per_access(w: float, h: float, k: float | None = None) -> float:
    """S3.1: operations an access of a block w x h of C: 2whk/(wh + wk + kh); for large k, 2/(1/w + 1/h).

    >>> operations_per_access(16, 64), round(operations_per_access(16, 64, 1024), 2)
    (25.6, 25.28)
    """
    limit = 2 / (1 / w + 1 / h)
    return limit if k is None else 2 * w * h * k / (w * h + w * k + k * h)


def s3_2_fits(w: int, h: int, r: int, *, shared: int = 16384, registers: int = 16384) -> bool:
    """S3.2: tiles of A and B in shared memory and C in registers, float64: 8(wr + rh) < shared, 2wh <= registers.

    >>> s3_2_fits(32, 64, 16), s3_2_fits(64, 64, 16)
    (True, False)
    """
    return 8 * (w * r + r * h) < shared and 2 * w * h <= registers


def s3_4_blocks(threads: int = 64, registers: int = 3328, shared: int = 2248) -> int:
    """S3.4, as written: blocks per multiprocessor = min(512/64, 16384/3328, 16384/2248), registers and bytes a block.

    3328 registers are 64 threads x 50 of S3.3 in units of 256; 2248 bytes hold its tile of A (16 x 16 float64).
    The calculator's own rule for this card (units of 512) says 4 too: :func:`tilewright.simulator.occupancy.occupancy`.

    >>> s3_4_blocks()
    4
    """
    return min(512 // threads, 16384 // registers, 16384 // shared)


def gemm_flops(m: int, n: int, k: int) -> int:
    """2mnk: the operations that GFLOPS count (S1.2), whatever the algorithm."""
    return 2 * m * n * k


def gemm_bytes(m: int, n: int, k: int, itemsize: int = 4) -> int:
    """The least traffic of a product: A and B read once, C written once."""
    return itemsize * (m * k + k * n + m * n)


@dataclass(frozen=True)
class Roofline:
    """The bound of a kernel: ``bound`` is "compute" or "memory"; intensities in operations a byte."""

    intensity: float
    ridge: float  # the intensity above which the card computes slower than it reads
    gflops: float
    seconds: float
    bound: str


def roofline(flops: float, bytes_moved: float, peak_gflops: float, bandwidth_gbs: float) -> Roofline:
    """The least time, and what sets it: the larger of flops/peak and bytes/bandwidth (Williams et al., 2009).

    Raises UsageError where peak or bandwidth is not positive.

    >>> roofline(gemm_flops(4096, 4096, 4096), gemm_bytes(4096, 4096, 4096), 66908, 4800).bound
    'compute'
    >>> naive = roofline(gemm_flops(1024, 1024, 1024), 32 * load_sectors(1024, 1024, 1024), 14131, 900)
    >>> naive.bound, round(naive.gflops), round(naive.intensity, 2)
    ('memory', 360, 0.4)
    """
    if not (peak_gflops > 0 and bandwidth_gbs > 0):
        raise UsageError(f"roofline: peak and bandwidth must be positive, got {peak_gflops} and {bandwidth_gbs}")
    compute, memory = flops / peak_gflops / 1e9, bytes_moved / bandwidth_gbs / 1e9
    seconds = max(compute, memory)
    intensity = flops / bytes_moved if bytes_moved else float("inf")
    gflops = flops / seconds / 1e9 if seconds else 0.0
    bound = "memory" if memory > compute else "compute"
    return Roofline(intensity, peak_gflops / bandwidth_gbs, gflops, seconds, bound)
