// C += A·Bᵀ, k in gridDim.z slices: every block computes a tile of C for its slice, and the copy engine adds it to C.
#include "hopper.cuh"

constexpr int TILE_M = 64, TILE_N = 128, TILE_K = 64, SLAB = 32, STAGES = 3;
constexpr int THREADS = 128 + 32;  // a warp group multiplies, a warp loads
struct Shared {
    Half a[STAGES][TILE_M][TILE_K], b[STAGES][TILE_N][TILE_K];
    float c[TILE_N / SLAB][TILE_M][SLAB];  // four slabs of 32 columns: their rows have 128 bytes
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(THREADS) split_k(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                                                              const __grid_constant__ TensorMap c, int k)
{
    Shared& s = *(Shared*)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = (k + TILE_K - 1) / TILE_K;
    const int top = blockIdx.y * TILE_M, left = blockIdx.x * TILE_N;
    const int first = all * blockIdx.z / gridDim.z, steps = all * (blockIdx.z + 1) / gridDim.z - first;

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
                load_tile(s.a[slot], a, (first + step) * TILE_K, top, s.full[slot]);
                load_tile(s.b[slot], b, (first + step) * TILE_K, left, s.full[slot]);
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

    // ---- EPILOGUE: pairs of numbers, in the order of the tensor map
    #pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2, chunk = col % SLAB / 4;
        *(float2*)&s.c[col / SLAB][row][(chunk ^ row % 8) * 4 + col % 4] = {d[i], d[i + 1]};
    }
    publish_shared();
    group_sync(1, 128);  // the tile is written
    if (threadIdx.x == 0) {
        for (int slab = 0; slab < TILE_N / SLAB; slab++)
            add_tile(c, s.c[slab], left + slab * SLAB, top);
        store_commit();
        store_wait_read();
    }
}
