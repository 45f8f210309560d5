// Kernels that measure one part of a pipelined kernel each: the ring with or without its copies or its products, the latency
// of a copy, the write of a tile, an empty block. Each block of the first two writes what its clocks showed.
#include "../tests/microscope/asynchronous/hopper.cuh"

#ifndef GROUPS
#define GROUPS 2    // consumer groups of 64 rows
#define PENDING 1   // groups of wgmmas that may be under way when a stage is released
#define STAGES 4
#define LOADS 1     // 0: the producer arrives without copying
#define MULTIPLY 1  // 0: the consumers arrive without multiplying
#endif

struct Times {
    long long begin, filled, end, began_ns, ended_ns, sm;
};

__device__ __forceinline__ long long nanoseconds()
{
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ int multiprocessor()
{
    int id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

constexpr int ROWS_A = 64 * GROUPS, THREADS = 128 * GROUPS + 128;
struct Shared {
    Half a[STAGES][ROWS_A][64], b[STAGES][128][64];
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

// The ring of product.cu. A block reads the box of A in row of boxes `block / across`, and of B in `block % across`, in column
// `step % period`; with across = 0 its own row of boxes of both.
extern "C" __global__ void __launch_bounds__(THREADS) ring(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                                                           Times* times, float* sums, int steps, int period, int across)
{
    Shared& s = *(Shared*)memory;
    const int group = threadIdx.x / 128, block = blockIdx.x;
    const int top = (across ? block / across : block) * ROWS_A, left = (across ? block % across : block) * 128;
    Times mine = {clock64(), 0, 0, nanoseconds(), 0, multiprocessor()};

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], GROUPS);
        }
        barrier_publish();
    }
    __syncthreads();

    if (group == 0) {  // ---- PRODUCER
        if (threadIdx.x == 0)
            for (int step = 0; step < steps; step++) {
                const int slot = step % STAGES, parity = step / STAGES % 2;
                barrier_wait(s.empty[slot], parity ^ 1);
                if (LOADS) {
                    barrier_expect(s.full[slot], sizeof(s.a[0]) + sizeof(s.b[0]));
                    load_tile(s.a[slot], a, step % period * 64, top, s.full[slot]);
                    load_tile(s.b[slot], b, step % period * 64, left, s.full[slot]);
                } else
                    barrier_arrive(s.full[slot]);
            }
        return;
    }
    float d[64];  // ---- CONSUMERS
    for (int step = 0; step < steps; step++) {
        const int slot = step % STAGES, parity = step / STAGES % 2;
        barrier_wait(s.full[slot], parity);
        if (step == 0)
            mine.filled = clock64();
        if (MULTIPLY) {
            const unsigned long long x = descriptor(s.a[slot][(group - 1) * 64], 16, 1024), y = descriptor(s.b[slot], 16, 1024);
            wgmma_fence();
            #pragma unroll
            for (int q = 0; q < 4; q++)
                wgmma_bf16(d, x + 2 * q, y + 2 * q, step > 0 || q > 0);
            wgmma_commit();
            wgmma_wait<PENDING>(d);
        }
        const int done = step - PENDING * MULTIPLY;
        if (done >= 0 && threadIdx.x % 128 == 0)
            barrier_arrive(s.empty[done % STAGES]);
    }
    if (MULTIPLY) {
        wgmma_wait<0>(d);
        float sum = 0;
        for (int i = 0; i < 64; i++)
            sum += d[i];
        if (sum == 12345)
            sums[threadIdx.x] = sum;
    }
    if (threadIdx.x == 128) {
        mine.end = clock64();
        mine.ended_ns = nanoseconds();
        times[block] = mine;
    }
}

// Cycles of one bulk copy of `bytes` from x, `count` of them one after the other, `apart` bytes apart.
extern "C" __global__ void copy_latency(const char* x, long long* cycles, int bytes, int count, int apart)
{
    __shared__ Barrier arrived;
    if (threadIdx.x == 0) {
        barrier_init(arrived, 1);
        barrier_publish();
        for (int i = 0; i < count; i++) {
            const long long begin = clock64();
            barrier_expect(arrived, bytes);
            load_bulk(memory, x + (long long)i * apart, bytes, arrived);
            barrier_wait(arrived, i % 2);
            cycles[i] = clock64() - begin;
        }
    }
}

// The write of a tile of 128 × 128 numbers as wgmma's accumulators hold it, by blocks of 256 threads.
extern "C" __global__ void write_tiles(float* c, int n)
{
    const int half = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int row = blockIdx.y * 128 + half * 64 + warp * 16 + lane / 4, col = blockIdx.x * 128 + lane % 4 * 2;
    #pragma unroll
    for (int i = 0; i < 64; i += 4) {
        *(float2*)&c[(long long)row * n + col + i * 2] = {1, 2};
        *(float2*)&c[(long long)(row + 8) * n + col + i * 2] = {3, 4};
    }
}

// A plain copy of 16 bytes a thread and round.
extern "C" __global__ void copy(const float4* x, float4* y, long long n)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (long long)blockDim.x)
        y[i] = x[i];
}

extern "C" __global__ void nothing()
{
}
