"""Records for the report's tests: no machine was asked, but the numbers are those of a plausible one."""

from __future__ import annotations

from typing import Any

from tilewright.records.bench import BenchRecord

SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)

#: name → (idea, parent, highest GFLOPS, n at which half of it is reached, n where memory takes over, threads)
# fmt: off
LADDER: dict[str, tuple[str, str | None, float, int, int, int]] = {
    "cpu/naive": (
        "Three loops as the definition says.",
        None, 2.9, 8, 700, 1,
    ),
    "cpu/transposed": (
        "B is transposed first, so both operands are read along rows.",
        "cpu/naive", 4.8, 10, 4000, 1,
    ),
    "cpu/transposed_simd": (
        "The sum over k is kept in vector lanes and reduced at the end.",
        "cpu/transposed", 17, 40, 1500, 1,
    ),
    "cpu/ikj": (
        "The loops are ordered i, k, j, so the innermost one runs along rows of B and C.",
        "cpu/naive", 38, 50, 2200, 1,
    ),
    "cpu/ikj_threads": (
        "Rows of C are shared out among the threads.",
        "cpu/ikj", 74, 260, 2600, 2,
    ),
    "cpu/blocked": (
        "Blocks of A and B are copied to where they stay in cache while a block of C is held.",
        "cpu/ikj_threads", 98, 300, 90000, 2,
    ),
    "cpu/aligned": (
        "The copies begin on cache lines, so no vector load is split.",
        "cpu/blocked", 121, 300, 90000, 2,
    ),
    "cpu/unrolled": (
        "Two rows by four vectors of C per step of k: each loaded value is used several times.",
        "cpu/aligned", 168, 320, 90000, 2,
    ),
    "cpu/register_tile": (
        "A tile of C lives in registers for KC steps of k; A and B are packed into panels.",
        "cpu/unrolled", 236, 180, 90000, 2,
    ),
    "cpu/strassen": (
        "Seven products of halves instead of eight, recursively, down to a leaf.",
        "cpu/register_tile", 180, 500, 90000, 2,
    ),
    "cpu/strassen_buffer": (
        "One buffer holds every level's temporaries.",
        "cpu/strassen", 249, 420, 90000, 2,
    ),
    "cpu/strassen_winograd": (
        "Winograd's form needs 15 additions instead of 18.",
        "cpu/strassen_buffer", 262, 420, 90000, 2,
    ),
    "ref/openblas": (
        "",
        None, 228, 300, 90000, 2,
    ),
    "ref/mkl": (
        "",
        None, 239, 240, 90000, 2,
    ),
}
# fmt: on

ENVIRONMENT: dict[str, Any] = {
    "processor": "Example Xeon 8400 @ 2.60 GHz",
    "usable_cores": 2,
    "logical_cores": 4,
    "memory_total": 16 << 30,
    "caches": [
        {"level": 1, "type": "Data", "size": 49152, "ways": 12, "line": 64, "shared_by": 1},
        {"level": 2, "type": "Unified", "size": 2 << 20, "ways": 16, "line": 64, "shared_by": 1},
    ],
    "isa": ["avx2", "fma", "avx512f"],
    "versions": {"python": "3.12.4", "numpy": "2.3.1", "numba": "0.62.0", "openblas": "0.3.29"},
    "thread_pools": [{"internal_api": "openblas", "num_threads": 2, "version": "0.3.29"}],
    "command": "tilewright bench --device cpu --sizes 16:8192:x2 --against openblas,mkl --json cpu.jsonl",
    "git_revision": "0123abc",
    "time": "2025-01-02T03:04:05+00:00",
    "clock_mhz_before": 2600.0,
    "clock_mhz_after": 3100.0,
}

PEAK = 290.0


def rate(kernel: str, n: int) -> float:
    """GFLOPS a kernel would reach at n: it warms up, and past some size memory slows it."""
    _, _, top, half, wall, _ = LADDER[kernel]
    wobble = 1 + 0.03 * (((n * 7919 + len(kernel) * 104729) % 97) / 97 - 0.5)
    return top * n / (n + half) / (1 + (n / wall) ** 1.5) * wobble


def measured(kernel: str, n: int, m: int | None = None, k: int | None = None, **changes: Any) -> BenchRecord:
    """One verified cell with raw samples and everything derived from them."""
    m, k = m or n, k or n
    side = round((m * n * k) ** (1 / 3))
    seconds = 2 * m * n * k / rate(kernel, side) / 1e9
    theirs = 2 * m * n * k / rate("ref/openblas", side) / 1e9
    idea, parent, *_, threads = LADDER[kernel]
    about = {"idea": idea, "parent": parent, "row": "S1", "order": list(LADDER).index(kernel) + 1}
    reference = kernel.startswith("ref/")
    fields: dict[str, Any] = {
        "threads": threads,
        "about": {} if reference else about,
        "samples_s": [seconds * f for f in (0.985, 1.0, 1.02, 1.07)],
        "reference": None if reference else "ref/openblas",
        "reference_samples_s": [] if reference else [theirs * f for f in (0.99, 1.0, 1.01)],
        "peak_gflops": PEAK if threads == 2 else PEAK / 2,
        "max_abs_error": 3e-7 * k**0.5,
        "error_over_bound": 0.02,
        "seed": 20250102,
        "environment": ENVIRONMENT,
        **changes,
    }
    return BenchRecord(kernel, "cpu", m, n, k, "float32", "ok", **fields).with_rates()


def failed(kernel: str, n: int, verdict: str, reason: str = "", **changes: Any) -> BenchRecord:
    """One cell without a result."""
    idea, parent, *_, threads = LADDER[kernel]
    about = {"idea": idea, "parent": parent, "row": "S1", "order": list(LADDER).index(kernel) + 1}
    fields: dict[str, Any] = {"threads": threads, "about": about, "environment": ENVIRONMENT, **changes}
    return BenchRecord(kernel, "cpu", n, n, n, "float32", verdict, reason=reason, **fields)


def campaign(limit_s: float = 10.0) -> list[BenchRecord]:
    """A whole run: every kernel at every size, with the cells that did not run."""
    records = []
    for kernel in LADDER:
        for n in SIZES:
            record = measured(kernel, n)
            if kernel == "cpu/strassen" and n == 8192:
                record = failed(kernel, n, "out_of_memory", "needs 5.2 GiB, 4.0 GiB are free")
            elif (record.median_s or 0) > limit_s:
                reason = f"predicted {record.median_s:.0f} s from {n // 2}, the limit is {limit_s:.0f} s"
                record = failed(kernel, n, "time_limit", reason)
            records.append(record)
    return records


def oblong() -> list[BenchRecord]:
    """Products that are not square."""
    kernels = ("cpu/ikj_threads", "cpu/register_tile", "ref/openblas")
    return [
        measured(kernel, n, m, k)
        for kernel in kernels
        for m, n, k in ((6, 2000, 4), (64, 4096, 4096), (4096, 64, 4096))
    ]
