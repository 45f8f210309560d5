// C = A·Bᵀ, warp-specialised: one warp group loads stages of A and B, two multiply 64 × 128 of C each.
// OPERAND is Bf16, Tf32, E4m3 or S8. A row of a stage is 128 bytes of k for each of them, so only the instruction differs.
#include "hopper.cuh"

struct Bf16 {
    typedef float Sum;
    static constexpr int bytes = 2;
    static __device__ void multiply(Sum (&d)[64], unsigned long long a, unsigned long long b, int keep) { wgmma_bf16(d, a, b, keep); }
};
struct Tf32 {
    typedef float Sum;
    static constexpr int bytes = 4;
    static __device__ void multiply(Sum (&d)[64], unsigned long long a, unsigned long long b, int keep) { wgmma_tf32(d, a, b, keep); }
};
struct E4m3 {
    typedef float Sum;
    static constexpr int bytes = 1;
    static __device__ void multiply(Sum (&d)[64], unsigned long long a, unsigned long long b, int keep) { wgmma_e4m3(d, a, b, keep); }
};
struct S8 {
    typedef int Sum;
    static constexpr int bytes = 1;
    static __device__ void multiply(Sum (&d)[64], unsigned long long a, unsigned long long b, int keep) { wgmma_s8(d, a, b, keep); }
};

typedef OPERAND::Sum Sum;
constexpr int TILE_M = 128, TILE_N = 128, ROW = 128, STAGES = 4, THREADS = 384;
constexpr int TILE_K = ROW / OPERAND::bytes;  // elements: 64, 32 or 128
struct Shared {
    unsigned char a[STAGES][TILE_M][ROW], b[STAGES][TILE_N][ROW];  // 16 KiB a stage each
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                                                                 Sum* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int group = threadIdx.x / 128, top = blockIdx.y * TILE_M, left = blockIdx.x * TILE_N, steps = (k + TILE_K - 1) / TILE_K;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);   // the producer, and the bytes that it announces
            barrier_init(s.empty[i], 2);  // one thread of each consumer group
        }
        barrier_publish();
    }
    __syncthreads();  // the barriers are there

    if (group == 0) {  // ---- PRODUCER
        give_registers<40>();
        if (threadIdx.x == 0)
            for (int step = 0; step < steps; step++) {
                const int slot = step % STAGES, parity = step / STAGES % 2;
                barrier_wait(s.empty[slot], parity ^ 1);
                barrier_expect(s.full[slot], sizeof(s.a[0]) + sizeof(s.b[0]));
                load_tile(s.a[slot], a, step * TILE_K, top, s.full[slot]);
                load_tile(s.b[slot], b, step * TILE_K, left, s.full[slot]);
            }
    } else {  // ---- CONSUMERS: 64 rows each
        take_registers<232>();
        const int half = group - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        Sum d[64];
        for (int step = 0; step < steps; step++) {
            const int slot = step % STAGES, parity = step / STAGES % 2;
            barrier_wait(s.full[slot], parity);
            const unsigned long long x = descriptor(s.a[slot][half * 64], 16, 1024), y = descriptor(s.b[slot], 16, 1024);
            wgmma_fence();
            #pragma unroll
            for (int q = 0; q < 4; q++)  // 32 bytes of k each
                OPERAND::multiply(d, x + 2 * q, y + 2 * q, step > 0 || q > 0);
            wgmma_commit();
            wgmma_wait<1>(d);  // the step before is done: its stage may be filled again
            if (step > 0 && threadIdx.x % 128 == 0)
                barrier_arrive(s.empty[(step - 1) % STAGES]);
        }
        wgmma_wait<0>(d);

        const int row = top + half * 64 + warp * 16 + lane / 4, col = left + lane % 4 * 2;
        struct alignas(8) Two { Sum first, second; };
        #pragma unroll
        for (int i = 0; i < 64; i += 4) {
            if (col + i * 2 < n && row < m)  // n is even
                *(Two*)&c[(long long)row * n + col + i * 2] = {d[i], d[i + 1]};
            if (col + i * 2 < n && row + 8 < m)
                *(Two*)&c[(long long)(row + 8) * n + col + i * 2] = {d[i + 2], d[i + 3]};
        }
    }
}
