/*
idea = "A separate warp requests the copies, several stages ahead of the warps that multiply, so that memory and tensor cores work at the same time."
parent = "cuda/large_wgmma"
row = "S2"
block = [160]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * ((BM + BN) * 128 + 16)"
dtypes = ["bfloat16"]
capability = "9.0a"
constraints = ["BM * BN <= 16384", "STAGES * ((BM + BN) * 128 + 16) <= 232448"]
tile = ["BN", "BM"]

[boxes]
a = ["BM", "64"]
b = ["64", "64"]

[params]
BM = { default = 128, values = [64, 128] }
BN = { default = 128, values = [64, 128, 256] }
STAGES = { default = 3, min = 2, max = 7 }
*/
#include "wgmma_bf16.cuh"

constexpr int PARTS = BM / 64;

struct Shared {
    unsigned char a[STAGES][BM * 128];
    unsigned char b[STAGES][BN * 128];
    Barrier full[STAGES], empty[STAGES];  // a stage has arrived; all warps have read it
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(160)
producer(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, unsigned short* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int across = (n - 1) / BN + 1, top = blockIdx.x / across * BM, left = blockIdx.x % across * BN;
    const int steps = (k + BK - 1) / BK;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], 128);
        }
        barrier_publish();
    }
    __syncthreads();

    if (threadIdx.x >= 128) {  // ---- GLOBAL → SHARED: the first thread of the fifth warp -----------------------------------------
        if (threadIdx.x == 128)
            for (int step = 0; step < steps; step++) {
                const int stage = step % STAGES;
                barrier_wait(s.empty[stage], step / STAGES % 2 ^ 1);  // at first at once: the phase before counts as complete
                barrier_expect(s.full[stage], (BM + BN) * 128);
                load_tile(s.a[stage], a, step * BK, top, 0, s.full[stage]);
                for (int i = 0; i < SLABS; i++)
                    load_tile(s.b[stage] + i * SLAB, b, left + i * 64, step * BK, 0, s.full[stage]);
            }
        return;
    }

    // ---- MULTIPLY --------------------------------------------------------------------------------------------------------
    float d[PARTS][BN / 2];
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES;
        barrier_wait(s.full[stage], step / STAGES % 2);
        wgmma_fence();
        #pragma unroll
        for (int i = 0; i < PARTS; i++) multiply_stage(d[i], s.a[stage] + i * 64 * 128, s.b[stage], step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        barrier_arrive(s.empty[stage]);
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    #pragma unroll
    for (int i = 0; i < PARTS; i++) {
        sums_are_there(d[i]);
        store_sums(d[i], c, top + i * 64, left, m, n);
    }
}
