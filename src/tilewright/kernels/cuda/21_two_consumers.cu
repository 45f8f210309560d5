/*
idea = "Two warpgroups multiply a tile of 128×256 with registers that the producer's warps give up, and the wgmma of the next step starts before that of the current step has ended."
parent = "cuda/producer"
row = "S2"
block = [384]
grid = ["cdiv(m, 128) * cdiv(n, BN)"]
shared = "STAGES * ((128 + BN) * 128 + 16)"
dtypes = ["bfloat16"]
capability = "9.0a"
constraints = ["STAGES * ((128 + BN) * 128 + 16) <= 232448"]
tile = ["BN", "128"]
notes = ["A multiprocessor has 65,536 registers: 128 threads with 40 and 256 with 232 take 64,512."]

[boxes]
a = ["128", "64"]
b = ["64", "64"]

[params]
BN = { default = 256, values = [64, 128, 192, 256] }
STAGES = { default = 4, min = 2, max = 8 }
*/
#include "wgmma_bf16.cuh"

constexpr int BM = 128;

struct Shared {
    unsigned char a[STAGES][BM * 128];
    unsigned char b[STAGES][BN * 128];
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(384, 1)
two_consumers(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, unsigned short* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int across = (n - 1) / BN + 1, top = blockIdx.x / across * BM, left = blockIdx.x % across * BN;
    const int steps = (k + BK - 1) / BK, group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], 2);  // a thread of each group arrives
        }
        barrier_publish();
    }
    __syncthreads();

    if (group == 0) {  // ---- GLOBAL → SHARED --------------------------------------------------------------------------------
        give_registers<40>();
        if (threadIdx.x == 0)
            for (int step = 0; step < steps; step++) {
                const int stage = step % STAGES;
                barrier_wait(s.empty[stage], step / STAGES % 2 ^ 1);
                barrier_expect(s.full[stage], (BM + BN) * 128);
                load_tile(s.a[stage], a, step * BK, top, 0, s.full[stage]);
                for (int i = 0; i < SLABS; i++)
                    load_tile(s.b[stage] + i * SLAB, b, left + i * 64, step * BK, 0, s.full[stage]);
            }
        return;
    }

    // ---- MULTIPLY: 64 rows for each group ------------------------------------------------------------------------------------
    take_registers<232>();
    const int half = group - 1;
    float d[BN / 2];  // 128 registers
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES;
        barrier_wait(s.full[stage], step / STAGES % 2);
        wgmma_fence();
        multiply_stage(d, s.a[stage] + half * 64 * 128, s.b[stage], step > 0);
        wgmma_commit();
        wgmma_wait<1>();  // the wgmmas of the step before have read their stage
        if (step > 0 && threadIdx.x % 128 == 0) barrier_arrive(s.empty[(step - 1) % STAGES]);
    }
    wgmma_wait<0>();
    sums_are_there(d);

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    store_sums(d, c, top + half * 64, left, m, n);
}
