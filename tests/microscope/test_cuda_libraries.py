"""The abstractions of CUDA's headers run: pipelines, barriers, cooperative groups, matrix fragments."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.simulator.microscope import Observation

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: What is found and computed does not depend on the binary.
pytestmark = pytest.mark.usefixtures("without_disassembly")

#: All kernels in one source: compiling the headers takes longer than compiling the kernels. Each that takes ``n`` and
#: ``waits`` reverses 64 floats at a time through shared memory, and doubles them.
SOURCE = """
#include <cuda/pipeline>
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <mma.h>
namespace cg = cooperative_groups;
using namespace nvcuda;

__global__ void pipeline_of_the_block(const float* x, float* y, int n, bool waits)
{
    __shared__ float tile[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    for (int now = 0, next = 0; now < n / 64; ++now) {
        for (; next < n / 64 && next < now + 2; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tile[next % 2], x + next * 64, sizeof(float) * 64, pipe);
            pipe.producer_commit();
        }
        if (waits) pipe.consumer_wait();
        y[now * 64 + threadIdx.x] = 2 * tile[now % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
}

__global__ void pipeline_of_a_thread(const float* x, float* y, int n, bool waits)
{
    __shared__ float tile[2][64];
    auto pipe = cuda::make_pipeline();
    for (int now = 0, next = 0; now < n / 64; ++now) {
        for (; next < n / 64 && next < now + 2; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tile[next % 2][threadIdx.x], x + next * 64 + threadIdx.x, sizeof(float), pipe);
            pipe.producer_commit();
        }
        if (waits) pipe.consumer_wait();
        __syncthreads();
        y[now * 64 + threadIdx.x] = 2 * tile[now % 2][63 - threadIdx.x];
        __syncthreads();
        pipe.consumer_release();
    }
}

__global__ void barrier(const float* x, float* y, int n, bool waits)
{
    __shared__ float tile[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    for (int now = 0; now < n / 64; ++now) {
        tile[threadIdx.x] = x[now * 64 + threadIdx.x];
        if (waits) barrier.arrive_and_wait();
        y[now * 64 + threadIdx.x] = 2 * tile[63 - threadIdx.x];
        barrier.arrive_and_wait();
    }
}

__global__ void barrier_that_counts_copies(const float* x, float* y, int n, bool waits)
{
    __shared__ float tile[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    for (int now = 0; now < n / 64; ++now) {
        cuda::memcpy_async(&tile[threadIdx.x], &x[now * 64 + threadIdx.x], sizeof(float), barrier);
        if (waits) barrier.arrive_and_wait();
        y[now * 64 + threadIdx.x] = 2 * tile[63 - threadIdx.x];
        barrier.arrive_and_wait();
    }
}

__global__ void groups(const float* x, float* y, int n, bool waits)
{
    __shared__ float tile[64];
    auto block = cg::this_thread_block();
    auto eight = cg::tiled_partition<8>(block);
    for (int now = 0; now < n / 64; ++now) {
        cg::memcpy_async(block, tile, x + now * 64, sizeof(float) * 64);
        if (waits) cg::wait(block);
        float mine = tile[63 - block.thread_rank()];
        float sum = cg::reduce(eight, mine, cg::plus<float>());
        for (int i = 1; i < 8; i++) sum -= eight.shfl(mine, (eight.thread_rank() + i) % 8);
        y[now * 64 + threadIdx.x] = mine + sum;
        block.sync();
    }
}

__global__ void groups_of_active_threads(const float* x, float* y, int n, bool waits)
{
    for (int i = threadIdx.x; i < n; i += 64) {
        float twice = 2 * x[i];
        if (threadIdx.x % 3) {
            auto active = cg::coalesced_threads();
            twice += active.shfl((int)threadIdx.x, 0) - (threadIdx.x < 32 ? 1 : 32);  // the first that is active
            active.sync();
        }
        y[i / 64 * 64 + 63 - i % 64] = twice;
    }
}

__global__ void grid(const float* x, float* y, int n, bool waits)
{
    auto grid = cg::this_grid();
    for (int i = grid.thread_rank(); i < n; i += grid.size()) y[i] = 2 * x[n - 1 - i];
    if (waits) grid.sync();
    float last = y[n - 1 - threadIdx.x];
    grid.sync();
    if (grid.thread_rank() < 64) y[n - 1 - threadIdx.x] = last;
}

__global__ void __cluster_dims__(2) cluster(const float* x, float* y, bool waits)
{
    __shared__ float part[64];
    auto cluster = cg::this_cluster();
    part[threadIdx.x] = cluster.num_blocks();
    if (waits) cluster.barrier_wait(cluster.barrier_arrive());
    const float* other = cluster.map_shared_rank(part, cluster.block_rank() ^ 1);
    y[blockIdx.x * 64 + threadIdx.x] = other[63 - threadIdx.x] + cluster.num_threads() + 1000 * (blockIdx.x / 2);
    cluster.sync();
}

__global__ void fragments(const half* a, const half* b, float* c)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 1.0f);
    for (int step = 0; step < 2; step++) {
        wmma::load_matrix_sync(left, a + 16 * step, 32);
        wmma::load_matrix_sync(right, b + 16 * step, 32);
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 2;
    wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}"""

WITH_A_WAIT = ("pipeline_of_the_block", "pipeline_of_a_thread", "barrier", "barrier_that_counts_copies", "groups")
X = np.arange(256, dtype=np.float32)


def run(name: str, *launch: object) -> Observation:
    return tw.microscope(SOURCE, name, *launch)


@pytest.mark.slow_cases("barrier", "pipeline_of_a_thread", "pipeline_of_the_block")
@pytest.mark.parametrize("name", [*WITH_A_WAIT, "groups_of_active_threads"])
def test_libraries_run(name: str) -> None:
    seen = run(name, 1, 64, [X, np.zeros_like(X), 256, True])
    assert seen.findings == []
    np.testing.assert_allclose(seen.arrays[1], 2 * X.reshape(-1, 64)[:, ::-1].ravel(), rtol=1e-6)


@pytest.mark.parametrize("name", WITH_A_WAIT)
def test_without_the_wait_something_is_found(name: str) -> None:
    assert run(name, 1, 64, [X, np.zeros_like(X), 256, False]).findings


def test_a_grid_synchronises() -> None:
    seen = run("grid", 2, 64, [X, np.zeros_like(X), 256, True])
    assert seen.findings == []
    np.testing.assert_array_equal(seen.arrays[1], 2 * X[::-1])
    assert run("grid", 2, 64, [X, np.zeros_like(X), 256, False]).findings


def test_a_grid_that_cannot_run_at_once() -> None:
    args = [X, np.zeros_like(X), 256, True]
    with pytest.raises(UsageError, match="synchronises its grid: all 90 blocks must be run, not a sample"):
        tw.microscope(SOURCE, "grid", 90, 64, args, sampled=True)
    with pytest.raises(UsageError, match=r"a block .* of which all 90 run at once"):
        tw.microscope(SOURCE, "grid", 90, 64, args, max_bytes=2_000_000)
    seen = tw.microscope(
        SOURCE, "grid", 133, 64, args, shared_bytes=200 << 10
    )  # one block on each of 132 multiprocessors
    assert [f.kind for f in seen.findings] == ["launch"]
    assert "of its 133 blocks at most 132 run at once" in seen.findings[0].text


def test_a_cluster_and_its_parts() -> None:
    seen = run("cluster", 8, 64, [X, np.zeros(512, np.float32), True])
    assert seen.findings == []
    np.testing.assert_array_equal(seen.arrays[1], np.arange(512) // 128 * 1000 + 128 + 2)
    assert run("cluster", 8, 64, [X, np.zeros(512, np.float32), False]).findings


def test_fragments() -> None:
    a, b = (np.random.default_rng(i).integers(-4, 5, (16, 32)).astype(np.float16) for i in range(2))
    seen = run("fragments", 1, 32, [a, b, np.zeros((16, 16), np.float32)])
    assert seen.findings == []
    np.testing.assert_array_equal(seen.arrays[2], 2 * (a.astype(np.float32) @ b.astype(np.float32).T + 1))
