// Functions for Hopper's asynchronous instructions (sm_90a), one instruction each, as the PTX ISA describes them.
#pragma once

#include "../../kernels/cuda/prelude.cuh"

typedef unsigned long long Barrier;  // an mbarrier: it counts arrivals, and bytes that copies bring

struct alignas(128) TensorMap { unsigned char opaque[128]; };  // made by cuTensorMapEncodeTiled on the host

// ---- mbarriers ------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(Barrier& barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// Makes the initialised barriers visible to the other blocks of the cluster and to the copy engine.
__device__ __forceinline__ void barrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}

// Arrives at the barrier of the same name in block `rank` of the cluster: says that a copy may write where wgmmas have read.
// Ordinary writes that the other block then reads would need .release.cluster, which waits for all memory of the GPU.
__device__ __forceinline__ void barrier_arrive_at(Barrier& barrier, int rank)
{
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(&barrier)), "r"(rank));
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier& barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrives as soon as all earlier copies of this thread by cp.async have arrived. The thread does not wait for them.
__device__ __forceinline__ void barrier_arrive_after_copies(Barrier& barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Waits until the phase of this parity has completed; the phases of a new barrier have the parities 0, 1, 0, 1, ...
__device__ __forceinline__ void barrier_wait(Barrier& barrier, int parity)
{
    int done;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(&barrier)), "r"(parity) : "memory");
    while (!done);
}

// Whether the phase of this parity has completed, the same for all threads of a warp.
__device__ __forceinline__ bool barrier_passed(Barrier& barrier, int parity)
{
    int done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared_address(&barrier)), "r"(parity) : "memory");
    return __all_sync(0xFFFFFFFF, done);
}

// ---- copies of the copy engine --------------------------------------------------------------------------------------------

// Loads the box of a tensor map whose first element is at column x of row y of matrix z.
__device__ __forceinline__ void load_tile(void* to, const TensorMap& map, int x, int y, int z, Barrier& barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)) : "memory");
}

// Loads it into the same place of every block of the cluster whose bit is set, and completes the barrier of each.
__device__ __forceinline__ void load_tile_multicast(
    void* to, const TensorMap& map, int x, int y, int z, Barrier& barrier, unsigned short blocks)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)), "h"(blocks) : "memory");
}

__device__ __forceinline__ void store_tile(const TensorMap& map, const void* from, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(&map), "r"(shared_address(from)), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void store_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most N of this thread's stores still read shared memory.
template <int N> __device__ __forceinline__ void store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

// Waits until at most N of this thread's stores have not been written.
template <int N> __device__ __forceinline__ void store_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// Makes this thread's writes to shared memory visible to copies and tensor cores that are started after the next barrier.
__device__ __forceinline__ void publish_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- roles ----------------------------------------------------------------------------------------------------------------

template <int REGISTERS> __device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// __syncthreads for some warps of the block; the number of the barrier is 1 to 15.
__device__ __forceinline__ void group_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Takes part in it without waiting.
__device__ __forceinline__ void group_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ int cluster_rank()
{
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same in two steps. Of what a thread wrote before it arrives, others may read only barriers that are published.
__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- tensor cores ---------------------------------------------------------------------------------------------------------

// Where an operand is: its address, and the distances in bytes between its atoms, in 128-byte swizzle.
__device__ __forceinline__ unsigned long long descriptor(const void* tile, int leading, int stride)
{
    return (unsigned long long)(shared_address(tile) >> 4 & 0x3FFF) | (unsigned long long)(leading >> 4) << 16 |
           (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

// Orders earlier accesses to the accumulators before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most N groups are under way.
template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// ---- matrices of 8 × 8 16-bit numbers: each thread holds two numbers of a row, and gives the address of a row ------------

template <bool TRANSPOSED = false> __device__ __forceinline__ void store_matrices(void* row, unsigned a, unsigned b, unsigned c, unsigned d)
{
    if (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(shared_address(row)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
    else asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                      ::"r"(shared_address(row)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

template <bool TRANSPOSED = false> __device__ __forceinline__ void store_matrices(void* row, unsigned a, unsigned b)
{
    if (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)), "r"(a), "r"(b) : "memory");
    else asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)), "r"(a), "r"(b) : "memory");
}
