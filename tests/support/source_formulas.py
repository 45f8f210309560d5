"""Global and shared memory transactions by formula, as S0 writes them, for tests to hold counts against.

Every formula is for C[m, n] = A[m, k] B[k, n], row-major, float32 unless a size is given, one thread an element of C and 32
neighbouring columns a warp. Where 32 does not divide n the last warp of a row counts whole. A sector is the 32-byte
segment of S0.3. Sizes are in elements, memory in bytes.
"""

from __future__ import annotations

WARP = 32
SECTOR = 32


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
