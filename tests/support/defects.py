"""Launches of the kernels in ``data/right``, and what can be planted in them: each defect is a change of a right kernel.

A line that must be named ends in ``// !! kind``; ``// !! kind, kind`` names two.
"""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Dim = tuple[int, int, int]
RIGHT = Path(__file__).parents[1] / "data" / "right"


@dataclass(frozen=True)
class Kernel:
    """How a right kernel is launched; ``right`` gives, from its arguments, what argument ``output`` must hold."""

    grid: Any
    block: Any
    args: Callable[[], list[Any]]
    right: Callable[..., np.ndarray]
    output: int = 2
    shared_bytes: int = 0


@dataclass(frozen=True)
class Defect:
    """A change of a right kernel. ``thread`` is the first one to be named, ``at`` the operand and its byte: an argument
    by position, a shared variable by name. ``options`` are of the launch."""

    name: str
    kernel: str
    changes: Sequence[tuple[str, str]]
    block: Dim = (0, 0, 0)
    thread: Dim = (0, 0, 0)
    at: tuple[int | str, int] | None = None
    says: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    nowhere: str = ""  # the kind of a finding without a line

    @property
    def source(self) -> str:
        text = source(self.kernel)
        for old, new in self.changes:
            assert text.count(old) == 1, f"{self.name}: {text.count(old)} of {old!r}"
            text = text.replace(old, new)
        return text


def source(kernel: str) -> str:
    return (RIGHT / f"{kernel.replace(' ', '_').replace('-', '_')}.cu").read_text(encoding="utf-8")


def numbers(*shape: int) -> np.ndarray:
    """Small whole numbers: products and sums of them are exact in every float type, in any order."""
    return np.random.default_rng(list(shape)).integers(-3, 4, shape).astype(np.float32)


def operands(m: int, n: int, k: int, *more: Any, kind: Any = np.float32) -> Callable[[], list[Any]]:
    return lambda: [
        numbers(m, k).astype(kind),
        numbers(k, n).astype(kind),
        np.full((m, n), np.nan, np.float32),
        m,
        n,
        k,
        *more,
    ]


def product(a: np.ndarray, b: np.ndarray, *_: Any) -> np.ndarray:
    return (a.astype(np.float64) @ b).astype(np.float32)


def transposed(a: np.ndarray, *_: Any) -> np.ndarray:
    return a.T


def flagged(a: np.ndarray, b: np.ndarray, _: Any, limit: float) -> np.ndarray:
    return a if (a * b[0] > limit).any() else a * b[0]


KERNELS: dict[str, Kernel] = {
    "tiled": Kernel((2, 3), (16, 16), operands(33, 20, 35), product),
    "dynamic tiles": Kernel((2, 2), (8, 8), operands(13, 9, 11), product, shared_bytes=512),
    "vectors": Kernel((3, 1), (2, 8), operands(7, 19, 5), product),
    "double-buffered": Kernel((2, 2), (16, 16), operands(32, 32, 64), product),
    "asynchronous": Kernel((2, 1), (16, 16), operands(16, 32, 96), product),
    "tensor cores": Kernel(1, 32, operands(16, 8, 64, kind=np.float16), product),
    "specialised warps": Kernel(1, 96, operands(2, 32, 7), product),
    "swizzled": Kernel(1, (32, 8), operands(32, 32, 32), transposed),
    "split": Kernel((2, 5, 3), 32, lambda: [numbers(5, 17), numbers(17, 40), np.zeros((5, 40), np.float32), 5, 40, 17], product),
    "last block": Kernel((1, 5, 3), 64, lambda: [*operands(5, 64, 17)(), np.zeros((3, 5, 64), np.float32)], product),
    "persistent": Kernel(3, 64, lambda: [*operands(11, 64, 9)(), np.zeros(1, np.int32)], product),
    "chain": Kernel(6, 32, lambda: [*operands(1, 32, 24)(), np.zeros(6, np.int32)], product),
    "locked": Kernel(2, 48, lambda: [numbers(48), numbers(48)[::-1], np.zeros(1, np.float32), np.zeros(1, np.int32)],
                     lambda a, b, *_: np.array([2 * (a * b).sum()])),
    "warp sum": Kernel(3, (32, 4), operands(12, 1, 100), product),
    "shuffle": Kernel(9, 32, operands(9, 1, 100), product),
    "flag": Kernel(1, 96, lambda: [numbers(96), np.full(1, 3, np.float32), np.zeros(96, np.float32), np.float32(8)], flagged),
    "shared flag": Kernel(1, 64, operands(1, 32, 1), lambda a, b, *_: a[0, 0] * b[:, ::-1]),
    "two ways of a warp": Kernel(1, 32, lambda: [numbers(32), np.zeros(32, np.float32)],
                                 lambda a, _: np.concatenate([2 * a[16:], a[:16]]), 1),
    "histogram": Kernel(3, 64, lambda: [(numbers(500) + 3).astype(np.int32), np.zeros(16, np.int32), 500],
                        lambda a, *_: np.bincount(a, minlength=16), 1),
    "grid barrier": Kernel(100, 256, lambda: [numbers(25600), *(np.zeros(25600, np.float32) for _ in range(2)), 25600],
                           lambda a, *_: 2 * a[::-1]),
    "in place": Kernel(1, 32, lambda: [same := numbers(256), same, 1],
                       lambda x, *_: np.roll(x.reshape(32, 8)[:, [0, 3, 6, 1, 4, 7, 2, 5]], 1, axis=1), 1),
    "look back": Kernel(16, 64, lambda: [numbers(1024).astype(np.int32), np.zeros(1024, np.int32), np.zeros(16, np.uint64), np.zeros(1, np.uint32)],
                        lambda x, *_: np.cumsum(x), 1),
    "taking turns": Kernel(1, 128, lambda: [np.zeros(1, np.int32), np.zeros(1, np.int32), 2], lambda *_: np.array([0 * 3**7 + 1 * 3**6 + 2 * 3**5 + 3 * 3**4 + 0 * 3**3 + 1 * 3**2 + 2 * 3 + 3]), 1),
    "relaxation": Kernel(1, 64, lambda: [numbers(64).astype(np.int32), np.zeros(64, np.int32)], lambda x, _: np.maximum.accumulate(x), 1),
    "reversed": Kernel(1, 64, lambda: [numbers(64), np.zeros(64, np.float32)], lambda x, _: x[::-1], 1),
    "copied": Kernel(1, 64, lambda: [numbers(48), np.zeros(48, np.float32), 48], lambda x, *_: x, 1),
    "turned": Kernel(1, 64, lambda: [numbers(48), np.zeros(48, np.float32), 48], lambda x, *_: x[::-1], 1),
    "pairs": Kernel(1, 64, lambda: [numbers(64), np.zeros(64, np.float32), 64], lambda x, *_: x.reshape(32, 2)[:, ::-1], 1),
    "quads": Kernel(1, 16, lambda: [numbers(64), np.zeros(16, np.float32), 64], lambda x, *_: x.reshape(16, 4).sum(axis=1), 1),
}  # fmt: skip


# ---- what can be wrong ------------------------------------------------------------------------------------------------

_SUM = "sum += a_tile[y][i] * b_tile[i][x];"
_A, _B = "a[row * k + t + x] : 0;", "b[(t + y) * n + column] : 0;"


def named(line: str, kinds: str) -> tuple[str, str]:
    """A line that must be named, as it is."""
    return line, f"{line} // !! {kinds}"


_READ = "sum += a_tile[t % STAGES][y][i] * b_tile[t % STAGES][i][x];"
_COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from) : "memory");'
_LDMATRIX = 'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"'

DEFECTS = [
    # ---- out of bounds
    Defect("row guard is <=", "tiled", [("row < m && column < n)\n    c[row * n + column] = sum;", "row <= m && column < n)\n    c[row * n + column] = sum; // !! out of bounds")],
           (0, 2, 0), (0, 1, 0), (2, 33 * 20 * 4), "argument 2 (float32, shape (33, 20), 2640 bytes), 4 beyond its end"),
    Defect("column guard is <=, and only the last row is outside", "tiled", [("column < n ? " + _B, "column <= n ? " + _B + " // !! out of bounds")],
           (1, 0, 0), (4, 2, 0), (1, 35 * 20 * 4), "4 beyond its end"),
    Defect("no guard on k", "tiled", [("row < m && t + x < k ? " + _A, "row < m ? " + _A + " // !! out of bounds")],
           (0, 2, 0), (3, 0, 0), (0, 33 * 35 * 4), "4 beyond its end"),
    Defect("a row before the operand", "tiled", [(_A, "a[(row - 1) * k + t + x] : 0; // !! out of bounds")],
           at=(0, -35 * 4), says="140 before its start"),
    Defect("a tile one row short", "tiled", [("a_tile[TILE][TILE];", "a_tile[TILE - 1][TILE];"), named(_A, "out of bounds"), named(_SUM, "out of bounds")],
           thread=(0, 15, 0), at=("a_tile", 15 * 64), says="a_tile (960 bytes), 4 beyond its end"),
    Defect("dynamic shared memory for one tile of two", "dynamic tiles", [named(_B, "out of bounds"), named("sum += a_tile[y * TILE + i] * b_tile[i * TILE + x];", "out of bounds")],
           at=("tiles", 256), says="of dynamic shared tiles (256 bytes)", options={"shared_bytes": 256}),
    Defect("a guard that lets two too many by", "copied", [("if (i < n)\n    y[i] = v;", "if (i <= n + 1)\n    y[i] = v; // !! out of bounds")],
           thread=(48, 0, 0), at=(1, 192)),
    Defect("every store one too far", "copied", [("y[i] = v;", "y[i + 1] = v; // !! out of bounds")],
           thread=(47, 0, 0), at=(1, 192), nowhere="output never written"),
    Defect("every load one too early", "copied", [("v = x[i];", "v = x[i - 1]; // !! out of bounds")],
           at=(0, -4)),
    Defect("shared memory beyond its end", "reversed", [("s[i] = x[i];", "s[i + 8] = x[i]; // !! out of bounds"), named("y[i] = s[63 - i] + t[63 - i];", "unwritten read")],
           thread=(56, 0, 0), at=("s", 256)),
    # ---- misaligned
    Defect("float4 at odd n", "vectors", [("n % 4 == 0", "true"), named("float4 v = *(const float4*)&b[i * n + column];", "misaligned, out of bounds")],
           at=(1, 19 * 4), says="12 off a multiple of 16"),
    Defect("float4 one float off", "quads", [("x + i * 4", "x + i * 4 + 1"), named("float4 v = *(const float4*)(x + i * 4 + 1);", "misaligned")],
           at=(0, 4), says="4 off a multiple of 16"),
    # ---- unwritten shared memory
    Defect("a guard without its zero", "tiled", [("a_tile[y][x] = row < m && t + x < k ? " + _A, "if (row < m && t + x < k) a_tile[y][x] = a[row * k + t + x];"), named(_SUM, "unwritten read")],
           (0, 2, 0), (0, 1, 0), ("a_tile", 64), "which no thread of the block has written"),
    Defect("the end of a row is not filled", "reversed", [("s[i] = x[i];", "if (i < 60) s[i] = x[i];"), named("y[i] = s[63 - i] + t[63 - i];", "unwritten read")],
           at=("s", 63 * 4)),
    Defect("no wait_group", "asynchronous", [('    asm volatile("cp.async.wait_group 1;" ::: "memory");\n', ""), named(_COPY, "race"), named(_READ, "unwritten read")],
           at=("a_tile", 0), says="to which the copy at line 5 is still under way (two copies arrive in any order; wait for its group first)"),
    Defect("wait_group one too lax", "asynchronous", [("wait_group 1", "wait_group 2"), named(_READ, "unwritten read")],
           at=("b_tile", 0), says="which the copy at line 5 is still writing"),
    Defect("a stage is refilled while it is read", "asynchronous", [("#define STAGES 3", "#define STAGES 2"), ("wait_group 1", "wait_group 0"), ("t + STAGES - 1", "t + STAGES"), named(_READ, "unwritten read")],
           at=("b_tile", 0), says="which the copy at line 5 is still writing"),
    Defect("ldmatrix of the stage that is being filled", "tensor cores", [("a_tile[t % 2][lane % 16]", "a_tile[(t + 1) % 2][lane % 16]"), named(_LDMATRIX, "unwritten read")],
           at=("a_tile", 512), says="which the copy at line 14 is still writing"),
    Defect("a shuffle in half a warp", "shuffle", [("sum += __shfl_xor_sync(~0u, sum, d);", "if (lane < 16) sum += __shfl_xor_sync(~0u, sum, d); // !! unwritten read")],
           says="from a lane that does not take part"),
    # ---- output never written
    Defect("the last column is left out", "tiled", [("row < m && column < n)\n", "row < m && column < n - 1)\n")],
           at=(2, 19 * 4), says="132 of 2640 bytes", nowhere="output never written"),
    Defect("no block is ever last", "last block", [("== parts - 1", "== parts")],
           at=(2, 0), says="1280 of 1280 bytes", nowhere="output never written"),
    # ---- races between the warps of a block
    Defect("no barrier before the tile is used", "tiled", [("    __syncthreads(); // full\n", ""), named(_SUM, "race")],
           thread=(0, 1, 0), at=("b_tile", 0), says="which thread (0, 0, 0) wrote at line 10, and nothing orders the threads of a warp"),
    Defect("no barrier before the tile is filled again", "tiled", [("    __syncthreads(); // free\n", ""), named(_A, "race"), named(_B, "race")],
           at=("a_tile", 0), says="which thread (15, 0, 0) read at line 13"),
    Defect("only a warp waits for the tile", "tiled", [("__syncthreads(); // full", "__syncwarp();"), named(_SUM, "race")],
           thread=(0, 2, 0), at=("b_tile", 0), says="which thread (0, 0, 0) wrote at line 10, with no barrier between"),
    Defect("the stage in use is filled", "double-buffered", [("next = stage ^ 1", "next = stage"), named("sum += a_tile[stage][y][i] * b_tile[stage][i][x];", "race")],
           thread=(0, 1, 0), at=("b_tile", 0), says="wrote at line 14"),
    Defect("no barrier between two stages", "double-buffered", [("    __syncthreads(); // turn\n", ""), named("sum += a_tile[stage][y][i] * b_tile[stage][i][x];", "race"), named("a_tile[next][y][x] = a[row * k + t + TILE + x];", "race"), named("b_tile[next][y][x] = b[(t + TILE + y) * n + column];", "race")],
           at=("a_tile", 0), says="read at line 17"),
    Defect("copies waited for, but no barrier", "asynchronous", [("    __syncthreads();\n", ""), named(_COPY, "race"), named(_READ, "race")],
           at=("a_tile", 0), says="read at line 25"),
    Defect("the producer does not wait", "specialised warps", [("      if (i >= 2) meet(3 + i % 2);\n", ""), ("      if (i + 2 < k) arrive(3 + i % 2);\n", ""), named("stage[i % 2][lane] = b[i * n + lane];", "race")],
           thread=(1, 0, 0), at=("stage", 4), says="which thread (65, 0, 0) read at line 18, with no barrier between"),
    Defect("the next row is fetched before all know this one", "persistent", [("    __syncthreads(); // all know\n", ""), named("row = atomicAdd(counter, 1);", "race")],
           at=("row", 0), says="which thread (63, 0, 0) read at line 8"),
    Defect("a flag is read before all could set it", "flag", [("  __syncthreads();\n  c[i]", "  c[i]"), named("c[i] = found ? a[i] : a[i] * scale;", "race")],
           at=("found", 0), says="wrote at line 9"),
    Defect("atomics and a plain read without a barrier", "histogram", [("  __syncthreads(); // counted\n", ""), named("atomicAdd(&c[threadIdx.x], count[threadIdx.x]);", "race")],
           at=("count", 0), says="updated atomically at line 6, with no barrier between"),
    Defect("no fence before the flag", "shared flag", [("    __threadfence_block(); // before the flag\n", ""), named("c[lane] = row[31 - lane];", "race")],
           thread=(32, 0, 0), at=("row", 124), says="which thread (31, 0, 0) wrote at line 9"),
    Defect("no fence before the turn is handed on", "taking turns", [("    __threadfence(); // before it is handed on\n", ""), named("y[0] = 3 * y[0] + warp;", "race")],
           thread=(32, 0, 0), at=(1, 0), says="which thread (0, 0, 0) wrote at line 8, with no barrier between"),
    Defect("a warp waits where the block must", "reversed", [("__syncthreads()", "__syncwarp()"), named("y[i] = s[63 - i] + t[63 - i];", "race")],
           at=("s", 63 * 4), says="which thread (63, 0, 0) wrote at line 5"),
    Defect("global memory read before it is written", "turned", [("  __syncthreads(); // written\n", ""), named("float v = i < n ? y[n - 1 - i] : 0;", "race")],
           at=(1, 47 * 4), says="reads element [47] of argument 1, which thread (47, 0, 0) wrote at line 3"),
    Defect("global memory written before it is read", "turned", [("  __syncthreads(); // read\n", ""), named("if (i < n) y[i] = v;", "race")],
           at=(1, 0), says="writes element [0] of argument 1, which thread (47, 0, 0) read at line 5"),
    # ---- races within a warp
    Defect("two threads write one element", "copied", [("y[i] = v;", "y[i / 2] = v; // !! race")],
           at=(1, 0), says="and thread (1, 0, 0) writes another value there in the same instruction", nowhere="output never written"),
    Defect("no __syncwarp after the write", "warp sum", [("  __syncwarp(); // written\n", ""), named("mine[lane] += mine[lane + d];", "race")],
           at=("parts", 64), says="which thread (16, 0, 0) wrote at line 8, and nothing orders the threads of a warp"),
    Defect("no __syncwarp after the sum", "warp sum", [("    __syncwarp(); // added\n", ""), named("mine[lane] += mine[lane + d];", "race")],
           at=("parts", 32), says="which thread (8, 0, 0) wrote at line 12"),
    Defect("neighbours read too early", "pairs", [("  __syncwarp();\n", ""), named("y[i] = s[i ^ 1];", "race")],
           at=("s", 4), says="which thread (1, 0, 0) wrote at line 4"),
    # ---- races between blocks
    Defect("a plain sum over blocks", "split", [("atomicAdd(&c[row * n + column], sum);", "c[row * n + column] += sum; // !! race")],
           at=(2, 0), says="which thread (0, 0, 0) of block (0, 0, 2) read at line 8, and nothing orders two blocks"),
    Defect("one block sets what others add to", "split", [("atomicAdd(&c[row * n + column], sum);", "if (blockIdx.z == 0) c[row * n + column] = sum; // !! race\n  else atomicAdd(&c[row * n + column], sum);")],
           at=(2, 0), says="which thread (0, 0, 0) of block (0, 0, 2) updated atomically at line 9"),
    Defect("no fence before the ticket", "last block", [("  __threadfence();\n  __syncthreads();\n", "  __syncthreads();\n"), ("  if (!last) return;\n  __threadfence();\n", "  if (!last) return;\n"), named("all += part[(z * m + row) * n + column];", "race")],
           (0, 0, 2), at=(6, 0), says="which thread (0, 0, 0) of block (0, 0, 0) wrote at line 9, and nothing orders two blocks"),
    Defect("nobody waits for the block before", "chain", [("      while (atomicAdd(&done[blockIdx.x + 1], 0) == 0) {}\n", ""), named("  c[column] = sum;", "race")],
           at=(2, 0), says="of block (4, 0, 0) read at line 11"),
    Defect("the fence comes before what it is to publish", "grid barrier", [("  c[i] = 2 * a[i];\n  __threadfence(); // for all to see\n", "  __threadfence();\n  c[i] = 2 * a[i];\n"), named("d[i] = c[n - 1 - i];", "race")],
           at=(1, 25599 * 4), says="which thread (255, 0, 0) of block (99, 0, 0) wrote at line 6"),
    # ---- divergent barriers
    Defect("early return before a barrier", "tiled", [("  float sum = 0;\n", "  float sum = 0;\n  if (row >= m || column >= n) return;\n"), named("__syncthreads(); // full", "divergent barrier"), named(_SUM, "unwritten read"), named("__syncthreads(); // free", "divergent barrier")],
           (1, 0, 0), says="192 of 256 threads of the block left the kernel without reaching it, the first (4, 0, 0)"),
    Defect("a barrier in a branch", "copied", [("  __syncthreads();", "  if (i < 40) __syncthreads(); // !! divergent barrier")],
           says="24 of 64 threads"),
    Defect("a few threads leave first", "copied", [("  float v = 0;", "  float v = 0;\n  if (i >= 60) return;"), named("__syncthreads();", "divergent barrier")],
           says="4 of 64 threads"),
    Defect("half a warp waits for the half that waits at a barrier", "tiled", [("    __syncthreads(); // full", "    if (x < 8) __syncwarp(); // !! divergent barrier\n    __syncthreads();")],
           says="waits for 16 other threads of its warp that never arrive (mask 0xff00ff00)"),
    # ---- endless waits
    Defect("three warps come where four must meet", "specialised warps", [('96;" :: "r"(barrier) : "memory"); }\n__device__ void arrive', '128;" :: "r"(barrier) : "memory"); } // !! endless wait\n__device__ void arrive')],
           thread=(32, 0, 0), says="64 threads of the block wait for ever where 128 must meet"),
    Defect("one warp comes where two must meet", "copied", [("bar.sync 1, 32", "bar.sync 1, 64"), named('if (i < 32) asm volatile("bar.sync 1, 64;");', "endless wait")],
           says="32 threads of the block wait for ever where 64 must meet"),
    Defect("a lock that is held while the warp meets", "locked", [("      __threadfence();\n      c[0]", "      __syncwarp();\n      c[0]"), named("if (atomicCAS(lock, 0, 1) == 0) {", "endless wait")],
           thread=(1, 0, 0), says="95 threads loop for ever: nothing that they read changes any more, and 1 wait at a barrier"),
    Defect("a lock that nobody gives back", "locked", [("      atomicExch(lock, 0);\n", ""), named("if (atomicCAS(lock, 0, 1) == 0) {", "endless wait")],
           thread=(1, 0, 0), says="95 threads loop for ever"),
    Defect("a wait for a block that is not run", "chain", [named("while (atomicAdd(&done[blockIdx.x + 1], 0) == 0) {}", "endless wait")],
           says="(only 2 of 6 blocks are run)", options={"blocks": [0, 1]}),
    Defect("volatile data in place of a fence", "shared flag", [("__shared__ float row", "__shared__ volatile float row"), ("    __threadfence_block(); // before the flag\n", ""), named("c[lane] = row[31 - lane];", "volatile race")],
           thread=(32, 0, 0), at=("row", 124), says="volatile orders no two warps"),
    Defect("a flag that is not volatile", "shared flag", [("volatile int full", "int full"), named("c[lane] = row[31 - lane];", "race")],
           thread=(32, 0, 0), at=("row", 124), nowhere="race"),
    Defect("a loop that steps over its end", "tiled", [("for (int t = 0; t < k; t += TILE) {", "for (int t = 0; t != k; t += TILE) { // !! step limit")],
           says="still running after 20,000 steps", options={"max_steps": 20000}),
]  # fmt: skip
