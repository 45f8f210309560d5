// C = A·Bᵀ, rounded to bf16: stmatrix writes a tile of C to shared memory in 128-byte swizzle, and the copy engine stores it.
#include "hopper.cuh"

constexpr int TILE_M = 64, TILE_N = 128, TILE_K = 64, SLAB = 64, STAGES = 3;
constexpr int THREADS = 128 + 32;  // a warp group multiplies, a warp loads
struct Shared {
    Half a[STAGES][TILE_M][TILE_K], b[STAGES][TILE_N][TILE_K];
    Half c[TILE_N / SLAB][TILE_M][SLAB];  // two slabs of 64 columns: their rows have 128 bytes
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(THREADS) store_epilogue(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                                                                     const __grid_constant__ TensorMap c, int k)
{
    Shared& s = *(Shared*)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = (k + TILE_K - 1) / TILE_K;
    const int top = blockIdx.y * TILE_M, left = blockIdx.x * TILE_N;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], 1);
        }
        barrier_publish();
    }
    __syncthreads();  // the barriers are there

    if (warp == 4) {  // ---- PRODUCER
        if (elected())
            for (int step = 0; step < steps; step++) {
                const int slot = step % STAGES, parity = step / STAGES % 2;
                barrier_wait(s.empty[slot], parity ^ 1);
                barrier_expect(s.full[slot], sizeof(s.a[0]) + sizeof(s.b[0]));
                load_tile(s.a[slot], a, step * TILE_K, top, s.full[slot]);
                load_tile(s.b[slot], b, step * TILE_K, left, s.full[slot]);
            }
        return;
    }
    // ---- CONSUMER
    float d[64];
    for (int step = 0; step < steps; step++) {
        const int slot = step % STAGES, parity = step / STAGES % 2;
        barrier_wait(s.full[slot], parity);
        const unsigned long long x = descriptor(s.a[slot], 16, 1024), y = descriptor(s.b[slot], 16, 1024);
        wgmma_fence();
        #pragma unroll
        for (int q = 0; q < 4; q++)
            wgmma_bf16(d, x + 2 * q, y + 2 * q, step > 0 || q > 0);
        wgmma_commit();
        wgmma_wait<0>(d);
        if (threadIdx.x == 0)
            barrier_arrive(s.empty[slot]);
    }

    // ---- EPILOGUE: four matrices at once, 16 rows of 16 columns of the warp
    const int row = warp * 16 + lane % 16;  // the row whose address this lane gives
    #pragma unroll
    for (int i = 0; i < 64; i += 8) {
        const int chunk = i / 4 + lane / 16;  // of 8 columns, 16 bytes
        store_matrices(&s.c[chunk / 8][row][(chunk % 8 ^ row % 8) * 8], pack_bf16(d[i], d[i + 1]), pack_bf16(d[i + 2], d[i + 3]),
                       pack_bf16(d[i + 4], d[i + 5]), pack_bf16(d[i + 6], d[i + 7]));
    }
    publish_shared();
    group_sync(1, 128);  // the tile is written
    if (threadIdx.x == 0) {
        store_tile(c, s.c[0], left, top);  // what is outside of C is not stored
        store_tile(c, s.c[1], left + SLAB, top);
        store_commit();
        store_wait_read();
    }
}
