/*
idea = "One block for each multiprocessor computes tile after tile, in an order that lets blocks share rows of A and columns of B in the L2 cache, and copies go on while it stores C."
parent = "cuda/two_consumers"
row = "S2"
persistent = true
block = [384]
grid = ["cdiv(m, 128) * cdiv(n, BN)"]
shared = "STAGES * ((128 + BN) * 128 + 16)"
dtypes = ["bfloat16"]
capability = "9.0a"
constraints = ["STAGES * ((128 + BN) * 128 + 16) <= 232448"]
tile = ["BN", "128"]

[boxes]
a = ["128", "64"]
b = ["64", "64"]

[params]
BN = { default = 256, values = [64, 128, 192, 256] }
STAGES = { default = 4, min = 2, max = 8 }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#include "wgmma_bf16.cuh"
#include "wgmma_tiles.cuh"

constexpr int BM = 128;

struct Shared {
    unsigned char a[STAGES][BM * 128];
    unsigned char b[STAGES][BN * 128];
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(384, 1)
persistent(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, unsigned short* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int steps = (k + BK - 1) / BK, group = threadIdx.x / 128;
    const Tiles tiles(m, n, BM);
    Ring ring;  // goes on from tile to tile
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], 2);
        }
        barrier_publish();
    }
    __syncthreads();

    if (group == 0) {  // ---- GLOBAL → SHARED --------------------------------------------------------------------------------
        give_registers<40>();
        if (threadIdx.x == 0)
            for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
                const auto [top, left] = tiles.place(tile);
                for (int step = 0; step < steps; step++, ring.advance()) {
                    Barrier& full = s.full[ring.stage];
                    barrier_wait(s.empty[ring.stage], ring.parity ^ 1);
                    barrier_expect(full, (BM + BN) * 128);
                    load_tile(s.a[ring.stage], a, step * BK, top, 0, full);
                    for (int i = 0; i < SLABS; i++)
                        load_tile(s.b[ring.stage] + i * SLAB, b, left + i * 64, step * BK, 0, full);
                }
            }
        return;
    }

    take_registers<232>();
    const int half = group - 1;
    float d[BN / 2];
    for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        // ---- MULTIPLY ----------------------------------------------------------------------------------------------------
        int before = 0;
        for (int step = 0; step < steps; step++, ring.advance()) {
            barrier_wait(s.full[ring.stage], ring.parity);
            wgmma_fence();
            multiply_stage(d, s.a[ring.stage] + half * 64 * 128, s.b[ring.stage], step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (step > 0 && threadIdx.x % 128 == 0) barrier_arrive(s.empty[before]);
            before = ring.stage;
        }
        wgmma_wait<0>();
        sums_are_there(d);
        if (threadIdx.x % 128 == 0) barrier_arrive(s.empty[before]);

        // ---- REGISTERS → GLOBAL: meanwhile the producer fills the ring for the next tile -------------------------------------
        const auto [top, left] = tiles.place(tile);
        store_sums(d, c, top + half * 64, left, m, n);
    }
}
