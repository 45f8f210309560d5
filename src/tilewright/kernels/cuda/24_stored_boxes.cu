/*
idea = "The kernel writes its tile of C to shared memory, and the copy engine stores it in whole rows of 128 bytes while the next tile is multiplied."
parent = "cuda/multicast"
row = "S2"
persistent = true
block = [384]
grid = ["CLUSTER * cdiv(m, 128 * CLUSTER) * cdiv(n, BN)"]
shared = "STAGES * ((128 + BN) * 128 + 16) + 32768"
dtypes = ["bfloat16"]
capability = "9.0a"
constraints = ["STAGES * ((128 + BN) * 128 + 16) + 32768 <= 232448"]
tile = ["BN", "128"]
notes = ["The engine's cuda/hopper is this kernel with other types, layouts, batches and parts of a long k."]

[boxes]
a = ["128", "64"]
b = ["64 // CLUSTER", "64"]
c = ["64", "64"]

[params]
BN = { default = 256, values = [64, 128, 192, 256] }
STAGES = { default = 4, min = 2, max = 8 }
GROUP = { default = 8, values = [1, 2, 4, 8, 16, 32] }
CLUSTER = { default = 2, values = [2, 4] }
*/
#include "wgmma_bf16.cuh"
#include "wgmma_tiles.cuh"

constexpr int BM = 128, SHARE = BK / CLUSTER;  // rows of a tile of B that a block copies: 32

struct Shared {
    unsigned char a[STAGES][BM * 128];
    unsigned char b[STAGES][BN * 128];
    unsigned short c[2][2][64][64];  // for each group two slabs of 64 columns: 32 KiB
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(384, 1)
stored_boxes(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
             int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int steps = (k + BK - 1) / BK, group = threadIdx.x / 128, rank = cluster_rank();
    const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;  // clusters take tiles of CLUSTER·128 rows
    const Tiles tiles(m, n, BM * CLUSTER);
    Ring ring;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], 2 * CLUSTER);
        }
        barrier_publish();
    }
    cluster_sync();  // the barriers of both blocks are there

    if (group == 0) {  // ---- GLOBAL → SHARED --------------------------------------------------------------------------------
        give_registers<40>();
        if (threadIdx.x == 0)
            for (int tile = first; tile < tiles.count; tile += stride) {
                const auto [top, left] = tiles.place(tile);
                for (int step = 0; step < steps; step++, ring.advance()) {
                    Barrier& full = s.full[ring.stage];
                    unsigned char* to_b = s.b[ring.stage] + rank * SHARE * 128;
                    barrier_wait(s.empty[ring.stage], ring.parity ^ 1);
                    barrier_expect(full, (BM + BN) * 128);  // what all blocks of the cluster bring
                    load_tile(s.a[ring.stage], a, step * BK, top + rank * BM, 0, full);
                    for (int i = 0; i < SLABS; i++)
                        load_tile_multicast(
                            to_b + i * SLAB, b, left + i * 64, step * BK + rank * SHARE, 0, full, (1 << CLUSTER) - 1);
                }
            }
    } else {
        take_registers<232>();
        const int half = group - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        int buffer = 0;
        float d[BN / 2];
        for (int tile = first; tile < tiles.count; tile += stride) {
            // ---- MULTIPLY --------------------------------------------------------------------------------------------------
            int before = 0;
            for (int step = 0; step < steps; step++, ring.advance()) {
                barrier_wait(s.full[ring.stage], ring.parity);
                wgmma_fence();
                multiply_stage(d, s.a[ring.stage] + half * 64 * 128, s.b[ring.stage], step > 0);
                wgmma_commit();
                wgmma_wait<1>();
                if (step > 0 && thread < CLUSTER) barrier_arrive_at(s.empty[before], thread);  // in every block
                before = ring.stage;
            }
            wgmma_wait<0>();
            sums_are_there(d);
            if (thread < CLUSTER) barrier_arrive_at(s.empty[before], thread);

            // ---- REGISTERS → SHARED → GLOBAL: slabs of 64 columns, by turns in two buffers ------------------------------------
            const auto [tile_top, left] = tiles.place(tile);
            const int top = tile_top + rank * BM + half * 64, row = warp * 16 + lane % 16;
            #pragma unroll
            for (int slab = 0; slab < SLABS; slab++, buffer ^= 1) {
                unsigned short(*to)[64] = s.c[half][buffer];
                if (thread == 0) store_wait_read<1>();  // the slab before the last has left
                group_sync(1 + half, 128);
                #pragma unroll
                for (int i = 0; i < 4; i++) {  // 16 columns: 8×8 matrices of rows 0-7 and 8-15, then of the next 8 columns
                    const float* v = &d[slab * 32 + i * 8];
                    store_matrices(&to[row][((i * 2 + lane / 16) ^ row % 8) * 8], rounded(v[0], v[1]), rounded(v[2], v[3]),
                                   rounded(v[4], v[5]), rounded(v[6], v[7]));
                }
                publish_shared();  // to the copy engine
                group_sync(1 + half, 128);
                if (thread == 0) {
                    store_tile(c, to, left + slab * 64, top, 0);
                    store_commit();
                }
            }
        }
        if (thread == 0) store_wait<0>();
    }
    cluster_sync();  // no block leaves while another writes to its memory
}
