// Functions for Hopper's asynchronous instructions, one instruction each, as the PTX ISA describes them (sm_90a).
#pragma once

typedef unsigned long long Barrier;  // an mbarrier: it counts arrivals, and bytes that copies bring
typedef unsigned short Half;         // the bits of a bf16 or fp16 number

struct alignas(128) TensorMap { unsigned char opaque[128]; };  // made by cuTensorMapEncodeTiled on the host

__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
    return (unsigned)__cvta_generic_to_shared(pointer);
}

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

__device__ __forceinline__ void barrier_arrive(Barrier& barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrives at the barrier of the same name in block `rank` of the cluster: says that a copy may write where wgmmas have read.
// Ordinary writes that the other block then reads would need .release.cluster, which waits for all memory of the GPU.
__device__ __forceinline__ void barrier_arrive_at(Barrier& barrier, int rank)
{
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(&barrier)), "r"(rank));
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
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

// ---- copies of the copy engine: addresses and sizes are multiples of 16 bytes --------------------------------------------

__device__ __forceinline__ void load_bulk(void* to, const void* from, int bytes, Barrier& barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(&barrier)) : "memory");
}

__device__ __forceinline__ void store_bulk(void* to, const void* from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}

// Loads the box of a tensor map whose first element is at column x of row y.
__device__ __forceinline__ void load_tile(void* to, const TensorMap& map, int x, int y, Barrier& barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier)) : "memory");
}

// Loads it into the same place of every block of the cluster whose bit is set, and completes the barrier of each.
__device__ __forceinline__ void load_tile_multicast(void* to, const TensorMap& map, int x, int y, Barrier& barrier, Half blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier)), "h"(blocks) : "memory");
}

__device__ __forceinline__ void store_tile(const TensorMap& map, const void* from, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(&map), "r"(shared_address(from)), "r"(x), "r"(y) : "memory");
}

// Adds the tile to what global memory holds.
__device__ __forceinline__ void add_tile(const TensorMap& map, const void* from, int x, int y)
{
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(&map), "r"(shared_address(from)), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void store_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until no store of this thread reads shared memory any more.
__device__ __forceinline__ void store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Makes this thread's writes to shared memory visible to copies and tensor cores that are started after the next barrier.
__device__ __forceinline__ void publish_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

// True in one thread of the warp.
__device__ __forceinline__ bool elected()
{
    int chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen;
}

// __syncthreads for some warps of the block; the number of the barrier is 1 to 15.
__device__ __forceinline__ void group_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ int cluster_rank()
{
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- tensor cores ---------------------------------------------------------------------------------------------------------
// d[64 rows][128 columns] = a·b + (keep ? d : 0), by the four warps of a group. Thread t of warp w holds in d[i] row
// 16·w + t/4 + 8·(i/2 % 2), column 8·(i/4) + 2·(t % 4) + i % 2.

// Where an operand is: its address, and the distances in bytes between its atoms, in 128-byte swizzle.
__device__ __forceinline__ unsigned long long descriptor(const void* tile, int leading, int stride)
{
    return (unsigned long long)(shared_address(tile) >> 4 & 0x3FFF) | (unsigned long long)(leading >> 4) << 16 |
           (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

#define EIGHT_OF(letter, d, i) \
    letter(d[i]), letter(d[i + 1]), letter(d[i + 2]), letter(d[i + 3]), letter(d[i + 4]), letter(d[i + 5]), letter(d[i + 6]), letter(d[i + 7])
#define ALL_64(letter, d) \
    EIGHT_OF(letter, d, 0), EIGHT_OF(letter, d, 8), EIGHT_OF(letter, d, 16), EIGHT_OF(letter, d, 24), \
    EIGHT_OF(letter, d, 32), EIGHT_OF(letter, d, 40), EIGHT_OF(letter, d, 48), EIGHT_OF(letter, d, 56)
#define NUMBERS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define DEFINE_WGMMA(name, instruction, Sum, letter, more) \
    __device__ __forceinline__ void name(Sum (&d)[64], unsigned long long a, unsigned long long b, int keep) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned." instruction " {" NUMBERS_64 "}, %64, %65, p" more ";\n}" \
                     : ALL_64(letter, d) : "l"(a), "l"(b), "r"(keep)); \
    }
// A and B hold k contiguously: rows of A, columns of B.
DEFINE_WGMMA(wgmma_bf16, "m64n128k16.f32.bf16.bf16", float, "+f", ", 1, 1, 0, 0")
DEFINE_WGMMA(wgmma_tf32, "m64n128k8.f32.tf32.tf32", float, "+f", ", 1, 1")
DEFINE_WGMMA(wgmma_e4m3, "m64n128k32.f32.e4m3.e4m3", float, "+f", ", 1, 1")
DEFINE_WGMMA(wgmma_s8, "m64n128k32.s32.s8.s8", int, "+r", "")
// B is row-major.
DEFINE_WGMMA(wgmma_bf16_rows, "m64n128k16.f32.bf16.bf16", float, "+f", ", 1, 1, 0, 1")
DEFINE_WGMMA(wgmma_f16_rows, "m64n128k16.f32.f16.f16", float, "+f", ", 1, 1, 0, 1")

// Orders earlier accesses to the accumulators before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most N groups are under way; with the accumulators, so that the compiler reads them after it.
template <int N> __device__ __forceinline__ void wgmma_wait(float (&d)[64])
{
    asm volatile("wgmma.wait_group.sync.aligned %64;" : ALL_64("+f", d) : "n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait(int (&d)[64])
{
    asm volatile("wgmma.wait_group.sync.aligned %64;" : ALL_64("+r", d) : "n"(N) : "memory");
}

// ---- matrices of 8 × 8 16-bit numbers: each thread holds two numbers of a row, and gives the address of a row ------------

__device__ __forceinline__ void store_matrix(void* row, unsigned a)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(shared_address(row)), "r"(a) : "memory");
}

__device__ __forceinline__ void store_matrices(void* row, unsigned a, unsigned b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ void store_matrices(void* row, unsigned a, unsigned b, unsigned c, unsigned d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(row)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(void* row, unsigned a, unsigned b, unsigned c, unsigned d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(row)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Two numbers, rounded to bf16: `low` in the low half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high)
{
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
