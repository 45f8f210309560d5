// C = A·B by clusters of two blocks, one above the other: each block loads its own A and half of B, and sends that half to both.
// A and B are row-major bf16, so that the rows of a stage of B are rows of k.
#include "hopper.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 64, SLAB = 64, STAGES = 4, THREADS = 384;
struct Shared {
    Half a[STAGES][TILE_M][TILE_K];      // 16 KiB a stage
    Half b[STAGES][2][TILE_K][SLAB];     // two slabs of 64 columns, 8 KiB each
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __cluster_dims__(1, 2) __launch_bounds__(THREADS, 1)
multicast(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int group = threadIdx.x / 128, top = blockIdx.y * TILE_M, left = blockIdx.x * TILE_N, steps = (k + TILE_K - 1) / TILE_K;
    const int rank = cluster_rank();

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], 4);  // two consumer groups of each of the two blocks
        }
        barrier_publish();
    }
    cluster_sync();  // the barriers of both blocks are there

    if (group == 0) {  // ---- PRODUCER
        give_registers<40>();
        if (threadIdx.x == 0)
            for (int step = 0; step < steps; step++) {
                const int slot = step % STAGES, parity = step / STAGES % 2;
                barrier_wait(s.empty[slot], parity ^ 1);  // in both blocks: this one writes to both
                barrier_expect(s.full[slot], sizeof(s.a[0]) + sizeof(s.b[0]));
                load_tile(s.a[slot], a, step * TILE_K, top, s.full[slot]);
                load_tile_multicast(s.b[slot][rank], b, left + rank * SLAB, step * TILE_K, s.full[slot], 0b11);
            }
    } else {  // ---- CONSUMERS: 64 rows each
        take_registers<232>();
        const int half = group - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        float d[64];
        for (int step = 0; step < steps; step++) {
            const int slot = step % STAGES, parity = step / STAGES % 2;
            barrier_wait(s.full[slot], parity);
            const unsigned long long x = descriptor(s.a[slot][half * 64], 16, 1024);
            const unsigned long long y = descriptor(s.b[slot], sizeof(s.b[0][0]), 1024);
            wgmma_fence();
            #pragma unroll
            for (int q = 0; q < 4; q++)  // 16 of k: 32 bytes of a row of A, 16 rows of B
                wgmma_bf16_rows(d, x + 2 * q, y + 128 * q, step > 0 || q > 0);
            wgmma_commit();
            wgmma_wait<1>(d);  // the step before is done
            if (step > 0 && threadIdx.x % 128 < 2)
                barrier_arrive_at(s.empty[(step - 1) % STAGES], threadIdx.x % 128);
        }
        wgmma_wait<0>(d);

        const int row = top + half * 64 + warp * 16 + lane / 4, col = left + lane % 4 * 2;
        #pragma unroll
        for (int i = 0; i < 64; i += 4) {
            if (col + i * 2 < n && row < m)
                *(float2*)&c[(long long)row * n + col + i * 2] = {d[i], d[i + 1]};
            if (col + i * 2 < n && row + 8 < m)
                *(float2*)&c[(long long)(row + 8) * n + col + i * 2] = {d[i + 2], d[i + 3]};
        }
    }
    cluster_sync();  // no block ends while the other still writes to its shared memory
}
