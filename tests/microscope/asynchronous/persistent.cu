// C = A·B by as many clusters of two blocks as the GPU can hold: each goes from tile to tile of 256 × 128, in steps of the
// number of clusters, and its ring of stages runs on from one tile to the next. A and B are row-major fp16.
#include "hopper.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 64, SLAB = 64, STAGES = 4, THREADS = 384;
struct Shared {
    Half a[STAGES][TILE_M][TILE_K];
    Half b[STAGES][2][TILE_K][SLAB];
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

struct Ring {  // the next stage, and the parity of its phase
    int slot = 0, parity = 0;
    __device__ void advance()
    {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(THREADS, 1)
persistent(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int group = threadIdx.x / 128, rank = cluster_rank(), cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
    const int rows = (m + 2 * TILE_M - 1) / (2 * TILE_M), cols = (n + TILE_N - 1) / TILE_N, steps = (k + TILE_K - 1) / TILE_K;
    Ring ring;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], 4);
        }
        barrier_publish();
    }
    cluster_sync();  // the barriers of both blocks are there

    if (group == 0) {  // ---- PRODUCER
        give_registers<40>();
        if (threadIdx.x == 0)
            for (int tile = cluster; tile < rows * cols; tile += clusters) {
                const int top = (tile % rows * 2 + rank) * TILE_M, left = tile / rows * TILE_N;
                for (int step = 0; step < steps; step++, ring.advance()) {
                    barrier_wait(s.empty[ring.slot], ring.parity ^ 1);
                    barrier_expect(s.full[ring.slot], sizeof(s.a[0]) + sizeof(s.b[0]));
                    load_tile(s.a[ring.slot], a, step * TILE_K, top, s.full[ring.slot]);
                    load_tile_multicast(s.b[ring.slot][rank], b, left + rank * SLAB, step * TILE_K, s.full[ring.slot], 0b11);
                }
            }
    } else {  // ---- CONSUMERS: 64 rows each
        take_registers<232>();
        const int half = group - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        float d[64];
        for (int tile = cluster; tile < rows * cols; tile += clusters) {
            const int top = (tile % rows * 2 + rank) * TILE_M, left = tile / rows * TILE_N;
            int before = 0;
            for (int step = 0; step < steps; step++, ring.advance()) {
                barrier_wait(s.full[ring.slot], ring.parity);
                const unsigned long long x = descriptor(s.a[ring.slot][half * 64], 16, 1024);
                const unsigned long long y = descriptor(s.b[ring.slot], sizeof(s.b[0][0]), 1024);
                wgmma_fence();
                #pragma unroll
                for (int q = 0; q < 4; q++)
                    wgmma_f16_rows(d, x + 2 * q, y + 128 * q, step > 0 || q > 0);
                wgmma_commit();
                wgmma_wait<1>(d);
                if (step > 0 && threadIdx.x % 128 < 2)
                    barrier_arrive_at(s.empty[before], threadIdx.x % 128);
                before = ring.slot;
            }
            wgmma_wait<0>(d);
            if (threadIdx.x % 128 < 2)
                barrier_arrive_at(s.empty[before], threadIdx.x % 128);  // the producer loads the next tile meanwhile

            const int row = top + half * 64 + warp * 16 + lane / 4, col = left + lane % 4 * 2;
            #pragma unroll
            for (int i = 0; i < 64; i += 4) {
                if (col + i * 2 < n && row < m)
                    *(float2*)&c[(long long)row * n + col + i * 2] = {d[i], d[i + 1]};
                if (col + i * 2 < n && row + 8 < m)
                    *(float2*)&c[(long long)(row + 8) * n + col + i * 2] = {d[i + 2], d[i + 3]};
            }
        }
    }
    cluster_sync();  // no block ends while the other still arrives at its barriers
}
