/*
idea = "The copy engine copies boxes of A and B to shared memory: one thread requests them, and no thread computes addresses of elements."
parent = "cuda/first_wgmma"
row = "S2"
block = [128]
grid = ["cdiv(m, 64) * cdiv(n, BN)"]
shared = "(64 + BN) * 128 + 8"
dtypes = ["bfloat16"]
capability = "9.0a"
tile = ["BN", "64"]
notes = ["A copy is asked for, awaited and multiplied, one after the other: only other blocks of the multiprocessor work meanwhile."]

[boxes]
a = ["64", "64"]
b = ["64", "64"]

[params]
BN = { default = 64, values = [64, 128, 192, 256] }
*/
#include "wgmma_bf16.cuh"

struct Shared {
    unsigned char a[64 * 128];   // 64 rows: 8 KiB
    unsigned char b[BN * 128];
    Barrier full;
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(128)
copied_boxes(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, unsigned short* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int across = (n - 1) / BN + 1, top = blockIdx.x / across * 64, left = blockIdx.x % across * BN;
    if (threadIdx.x == 0) {
        barrier_init(s.full, 1);
        barrier_publish();
    }
    __syncthreads();

    float d[BN / 2];
    for (int step = 0; step < (k + BK - 1) / BK; step++) {
        // ---- GLOBAL → SHARED: one thread asks, the copy engine copies; beyond the edges it writes zeros --------------------
        if (threadIdx.x == 0) {
            barrier_expect(s.full, (64 + BN) * 128);
            load_tile(s.a, a, step * BK, top, 0, s.full);
            for (int i = 0; i < SLABS; i++) load_tile(s.b + i * SLAB, b, left + i * 64, step * BK, 0, s.full);
        }
        barrier_wait(s.full, step % 2);

        // ---- MULTIPLY ----------------------------------------------------------------------------------------------------
        wgmma_fence();
        multiply_stage(d, s.a, s.b, step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // all four warps have read the tiles
    }
    sums_are_there(d);

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    store_sums(d, c, top, left, m, n);
}
