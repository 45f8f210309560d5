"""CUDA sources of asynchronous kernels: thin wrappers of the instructions, and how such kernels are run and compared."""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from support.cuda_sources import HEAD
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import Run, RunOptions, simulate

#: One line each, so that a kernel's own lines keep their numbers after the first PRELUDE_LINES.
PRELUDE = r"""
typedef unsigned long long u64; typedef unsigned int u32;
#define DEV __device__ __forceinline__
DEV u32 sm(const void* p) { return (u32)__cvta_generic_to_shared(p); }
#define INIT(b, n) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(sm(b)), "r"(n) : "memory")
#define INVAL(b) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(sm(b)) : "memory")
#define ARRIVE(b) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(sm(b)) : "memory")
#define ARRIVE_EXPECT(b, n) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(sm(b)), "r"(n) : "memory")
#define EXPECT(b, n) asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(sm(b)), "r"(n) : "memory")
#define WAIT(b, p) asm volatile("{ .reg .pred P; L: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1; @P bra D; bra L; D: }" :: "r"(sm(b)), "r"(p) : "memory")
#define COPY(d, s) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(sm(d)), "l"(s) : "memory")
#define ARRIVE_AFTER_COPIES(b) asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(sm(b)) : "memory")
#define FENCE() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define FENCE_INIT() asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define LOAD(d, s, n, b) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(sm(d)), "l"(s), "r"(n), "r"(sm(b)) : "memory")
#define STORE(d, s, n) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(d), "r"(sm(s)), "r"(n) : "memory")
#define COMMIT() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define WAIT_READ(n) asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(n) : "memory")
struct alignas(128) TensorMap { u64 opaque[16]; };
#define MAP const __grid_constant__ TensorMap
#define BOX(d, m, x, y, b) asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(sm(d)), "l"(&m), "r"(x), "r"(y), "r"(sm(b)) : "memory")
#define STORE_BOX(m, x, y, s) asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" :: "l"(&m), "r"(x), "r"(y), "r"(sm(s)) : "memory")
#define REDUCE_BOX(op, m, x, y, s) asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." op ".tile.bulk_group [%0, {%1, %2}], [%3];" :: "l"(&m), "r"(x), "r"(y), "r"(sm(s)) : "memory")
#define WAIT_ALL(n) asm volatile("cp.async.bulk.wait_group %0;" :: "n"(n) : "memory")
"""
PRELUDE_LINES = PRELUDE.count("\n")


def compiled_async(source: str) -> str:
    """The PTX of a source with the wrappers before it; line 1 is the source's own first line."""
    try:
        return compile_source(f'{PRELUDE}#line 1 "test.cu"\n{source}', name="test.cu", arch="sm_90a").ptx
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")


def run_async(source: str, args: Sequence[Any], grid: Any = 1, block: Any = 128, **options: Any) -> Run:
    """Run kernel ``k`` of a source that begins with its parameters."""
    given = {"max_steps": 200_000} | options
    return simulate(compiled_async(HEAD + source), "k", grid, block, args, RunOptions(**given))


def ring(source: str, n: int = 16, blocks: int = 3) -> tuple[Run, np.ndarray]:
    """The run of a ring of stages, which one warp fills and three others add up, each lane those of another lane; and what it
    should give."""
    x = np.random.default_rng(3).integers(0, 64, (blocks, n, 32)).astype(np.float32)
    run = run_async(source, [x, np.zeros((blocks, 96), np.float32), n], blocks, 128, outputs=[1])
    sums = x.sum(axis=1)
    return run, np.concatenate([np.roll(sums, -shift, axis=1) for shift in (1, 2, 3)], axis=1)


def found(run: Run) -> list[tuple[int, str]]:
    """Line and kind of every finding."""
    return sorted((f.line, f.kind) for f in run.findings)


def marked(source: str) -> list[tuple[int, str]]:
    """The findings that the marks of a source name: ``// !! race`` at the end of the line."""
    return sorted(
        (number, kind.strip())
        for number, line in enumerate(source.splitlines(), 1)
        if "// !! " in line
        for kind in line.split("// !! ")[1].split(",")
    )
