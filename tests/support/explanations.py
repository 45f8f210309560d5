"""Explanations for the tests of their page, made in code: what the microscope says of three rungs, and of bad manners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.records.explanation import Access, Bound, Defect, Explanation, Formula

H200: dict[str, Any] = {
    "name": "H200",
    "compute_capability": "9.0",
    "sms": 132,
    "clock_mhz": 1980,
    "peak_gflops": 66908.16,
    "bandwidth_gbs": 4800,
}
HEADER = '/*\nidea = "What it does <differently>."\nblock = [32, 32]\ngrid = ["cdiv(n, 32)", "cdiv(m, 32)"]\n*/\n\n'

NAIVE = (
    HEADER
    + """extern "C" __global__ void
naive(const float* a, const float* b, float* c, int m, int n, int k)
{
    // One thread an element of C: 32 lanes, 32 neighbours.
    const int ROW = blockIdx.ROW_AXIS * 32 + threadIdx.ROW_AXIS, COL = blockIdx.COL_AXIS * 32 + threadIdx.COL_AXIS;
    if (ROW >= m || COL >= n) return;
    float sum = 0.0f;
    for (int p = 0; p < k; p++)
        sum += a[ROW * k + p] * b[p * n + COL];
    c[ROW * n + COL] = sum;
}
"""
)
TILE = (
    HEADER
    + """extern "C" __global__ void
shared_tile(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float a_tile[32][32], b_tile[32][32];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, col = blockIdx.x * 32 + x;
    float sum = 0;
    for (int p = 0; p < k; p += 32) {
        a_tile[y][x] = a[row * k + p + x];
        b_tile[x][y] = b[(p + x) * n + blockIdx.x * 32 + y];
        __syncthreads();
        for (int i = 0; i < 32; i++)
            sum += a_tile[y][i] * b_tile[x][i];
    }
    c[row * n + col] = sum;
}
"""
)


def line_of(source: str, part: str) -> int:
    """The number of the first line that has ``part``."""
    return next(i for i, line in enumerate(source.splitlines(), 1) if part in line)


def access(
    line: int,
    space: str,
    kind: str,
    lane: Callable[[int], int | None],
    cost: int,
    requests: int,
    least: int,
    nbytes: int = 4,
) -> Access:
    """``requests`` times the same: ``cost`` and ``least`` are those of one, ``lane`` gives a lane's address."""
    sums: dict[str, int] = {"sectors": cost * requests}
    if space == "shared":
        sums = {"wavefronts": cost * requests, "conflicts": (cost - least) * requests}
    lanes = [lane(i) for i in range(32)]
    moved = requests * nbytes * sum(at is not None for at in lanes)
    return Access(
        line, space, kind, nbytes, requests, moved, **sums, least=least * requests, origin=1 << 36, lanes=lanes
    )


def uncoalesced(n: int = 64) -> Explanation:
    """Neighbouring lanes on neighbouring rows: 32 sectors a load of A."""
    source = NAIVE.replace("ROW_AXIS", "x").replace("COL_AXIS", "y").replace("ROW", "row").replace("COL", "col")
    load, store = line_of(source, "sum +="), line_of(source, "= sum;")
    steps = n * n * n // 32
    return explanation(
        "cuda/uncoalesced", source, n,
        access(load, "global", "ld", lambda i: 4 * n * i, 32, steps, 4),
        access(load, "global", "ld", lambda i: 0, 1, steps, 1),
        access(store, "global", "st", lambda i: 4 * n * i, 32, n * n // 32, 4),
    )  # fmt: skip


def coalesced(n: int = 64) -> Explanation:
    """Neighbouring lanes on neighbouring columns: 5 sectors a step, as S0.3 says."""
    source = NAIVE.replace("ROW_AXIS", "y").replace("COL_AXIS", "x").replace("ROW", "row").replace("COL", "col")
    load, store = line_of(source, "sum +="), line_of(source, "= sum;")
    steps = n * n * n // 32
    return explanation(
        "cuda/coalesced", source, n,
        access(load, "global", "ld", lambda i: 4 * i, 4, steps, 4),
        access(load, "global", "ld", lambda i: 0, 1, steps, 1),
        access(store, "global", "st", lambda i: 4 * i, 4, n * n // 32, 4),
    )  # fmt: skip


def shared_tile(n: int = 64) -> Explanation:
    """Tiles in shared memory, one of them stored transposed: 32 lanes in one bank."""
    first, second = line_of(TILE, "a_tile[y][x]"), line_of(TILE, "b_tile[x][y]")
    loop, store = line_of(TILE, "sum +="), line_of(TILE, "= sum;")
    tiles, steps = n * n * n // 1024, n * n * n // 32
    made = explanation(
        "cuda/shared_tile", TILE, n,
        access(first, "global", "ld", lambda i: 4 * i, 4, tiles, 4),
        access(first, "shared", "st", lambda i: 4 * i, 1, tiles, 1),
        access(second, "global", "ld", lambda i: 4 * n * i, 32, tiles, 4),
        access(second, "shared", "st", lambda i: 128 * i, 32, tiles, 1),
        access(loop, "shared", "ld", lambda i: 0, 1, steps, 1),
        access(loop, "shared", "ld", lambda i: 128 * i, 32, steps, 1),
        access(store, "global", "st", lambda i: 4 * i, 4, n * n // 32, 4),
    )  # fmt: skip
    return replace(made, resources={**made.resources, "shared_bytes": 8192})


def explanation(kernel: str, source: str, n: int, *accesses: Access) -> Explanation:
    """What an explanation holds besides its accesses: totals and bounds that follow from them, and an H200."""
    wavefronts = sum(a.wavefronts for a in accesses)
    turns = sum(a.wavefronts if a.space == "shared" else max(a.requests, a.sectors // 4) for a in accesses)
    loads = sum(a.sectors for a in accesses if a.space == "global" and a.kind == "ld")
    counters = {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": loads}
    if wavefronts:
        counters["l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"] = wavefronts
    return Explanation(
        kernel=kernel,
        file=f"01_{kernel.rpartition('/')[2]}.cu",
        source=source,
        m=n,
        n=n,
        k=n,
        dtype="float32",
        params={"TILE": 32},
        about={"idea": "What it does <differently>.", "parent": None, "order": 1},
        gpu=H200,
        launch={"grid": [n // 32, n // 32, 1], "block": [32, 32, 1], "blocks": (n // 32) ** 2, "threads": 1024,
                "shared_bytes": 0},
        resources={"registers": 32, "local_bytes": 0, "shared_bytes": 0, "max_threads": 1024},
        occupancy={
            "blocks": 2, "warps": 64, "max_warps": 64, "fraction": 1.0, "limiting": ["threads", "registers"],
            "limits": {"threads": 2, "registers": 2, "shared": None, "blocks": 32},
            "by_registers": [[r, 64 if r <= 32 else 32 if r <= 64 else 0] for r in range(16, 256, 8)],
            "by_shared": [[b, 64 if b <= 114688 else 32] for b in range(0, 232449, 8192)],
        },
        accesses=list(accesses),
        counters=counters,
        formulas=[
            Formula("S0.3", "sectors loaded", "cdiv(n, 32) * m * k * 5", n // 32 * n * n * 5, loads),
            Formula("S3.1", "operations an access", "2 / (1/32 + 1/32)", 32.0),
            Formula("S9.9", "a formula without a value", "n / 0", None, 7),
        ],
        bounds=[
            Bound("arithmetic", 2 * n**3, "operations", 66908.16e9),
            Bound("device memory", 12 * n * n, "bytes", 4.8e12),
            Bound("L1 and shared memory", turns, "turns", 132 * 1.98e9),
        ],
        defects=[],
        verified={"ok": True, "reason": "", "error_over_bound": 0.013},
        run={"blocks_run": 4, "blocks_total": 4, "exact": True, "words": "every block was run", "seconds": 0.02},
        notes=["counts are those of the PTX"],
        environment={"compiler": "NVRTC 13.0", "command": f"tilewright explain {kernel} --size {n}"},
    )  # fmt: skip


def with_defect(made: Explanation) -> Explanation:
    """A race at its loop."""
    where = line_of(made.source, "sum +=")
    text = "byte 212 of shared a_tile: written by thread 33, read here by thread 1 with no barrier between"
    return replace(made, defects=[Defect("race", where, (0, 0, 0), (33, 0, 0), text)])


def measured(made: Explanation, off: int = 0) -> Explanation:
    """Beside a GPU's own counters, which say ``off`` more, and one that was not counted."""
    counters = {name: count + off for name, count in made.counters.items()}
    counters["dram__bytes_read.sum"] = 12345
    return replace(made, measured={"counters": counters, "by_line": {}, "environment": {"driver": "580.159"}})


def unrated(made: Explanation) -> Explanation:
    """On a GPU whose clock and rates are not known."""
    gpu = {**H200, "name": "GPU of tomorrow", "clock_mhz": None, "peak_gflops": None, "bandwidth_gbs": None}
    return replace(made, gpu=gpu, bounds=[])


def sampled(made: Explanation) -> Explanation:
    """Counted from a part of its blocks of which one kind gave different counts."""
    words = "14 of 5,000 blocks were run; blocks of one kind differ, so counts may be off by 2.1%"
    return replace(made, run={"blocks_run": 14, "blocks_total": 5000, "exact": False, "words": words, "seconds": 1.0})


def bare() -> Explanation:
    """Nothing in any list or dict."""
    made = explanation("cuda/bare", "", 32)
    nothing: dict[str, Any] = {}
    return replace(
        made, gpu=nothing, launch=nothing, resources=nothing, occupancy=nothing, counters={}, formulas=[], bounds=[],
        verified=nothing, run=nothing, notes=[], environment={}, about={}, params={},
    )  # fmt: skip
