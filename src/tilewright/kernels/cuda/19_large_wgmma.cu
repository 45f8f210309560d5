/*
idea = "A block computes a tile of 128×128: two wgmma instructions use each tile of B, so that each copied byte is used twice as often."
parent = "cuda/copied_boxes"
row = "S2"
block = [128]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "(BM + BN) * 128 + 8"
dtypes = ["bfloat16"]
capability = "9.0a"
constraints = ["BM * BN <= 16384"]
tile = ["BN", "BM"]
notes = ["A group of four warps has 64 rows in one instruction; its registers hold sums of at most 128×128 elements."]

[boxes]
a = ["BM", "64"]
b = ["64", "64"]

[params]
BM = { default = 128, values = [64, 128] }
BN = { default = 128, values = [64, 128, 256] }
*/
#include "wgmma_bf16.cuh"

constexpr int PARTS = BM / 64;  // of 64 rows: 2

struct Shared {
    unsigned char a[BM * 128];  // 16 KiB
    unsigned char b[BN * 128];  // 16 KiB
    Barrier full;
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(128)
large_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, unsigned short* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int across = (n - 1) / BN + 1, top = blockIdx.x / across * BM, left = blockIdx.x % across * BN;
    if (threadIdx.x == 0) {
        barrier_init(s.full, 1);
        barrier_publish();
    }
    __syncthreads();

    float d[PARTS][BN / 2];  // 128 registers
    for (int step = 0; step < (k + BK - 1) / BK; step++) {
        // ---- GLOBAL → SHARED -----------------------------------------------------------------------------------------------
        if (threadIdx.x == 0) {
            barrier_expect(s.full, (BM + BN) * 128);
            load_tile(s.a, a, step * BK, top, 0, s.full);
            for (int i = 0; i < SLABS; i++) load_tile(s.b + i * SLAB, b, left + i * 64, step * BK, 0, s.full);
        }
        barrier_wait(s.full, step % 2);

        // ---- MULTIPLY ----------------------------------------------------------------------------------------------------
        wgmma_fence();
        #pragma unroll
        for (int i = 0; i < PARTS; i++) multiply_stage(d[i], s.a + i * 64 * 128, s.b, step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // all four warps have read the tiles
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    #pragma unroll
    for (int i = 0; i < PARTS; i++) {
        sums_are_there(d[i]);
        store_sums(d[i], c, top + i * 64, left, m, n);
    }
}
