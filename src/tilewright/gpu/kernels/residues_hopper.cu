/*
idea = "float64 and complex128 by products of int8 on tensor cores for each of some moduli: sums are whole numbers that their residues determine."
row = "S0.9, S3"
entry = "residues_hopper"
dtypes = ["int8x13"]
stores = ["float64"]
precision = "int8x13"
capability = "9.0a"
persistent = true
triangle = ["128 * CLUSTER", "BN", "CLUSTER"]
suits = "(m >= 512) * (n >= 512) * (k >= 512) * (k <= 65536)"
block = ["384"]
grid = ["CLUSTER * cdiv(m, 128 * CLUSTER) * cdiv(n, BN)"]
shared = "STAGES * (128 + BN) * 128 + 16 * BN + 16 * STAGES"
tile = ["BN", "128"]
constraints = ["STAGES * (128 + BN) * 128 + 16 * BN + 16 * STAGES <= 232448"]

costs = [
    "multiply_rate", "power", "power_groups", "power_above", "lone", "narrow", "generation_s", "bound_s", "memory_rate",
    "launch_s",
]

[boxes]
a = ["128", "128"]
b_down = ["BN // CLUSTER", "128"]

# The operands whose residues are found first, and that are multiplied again where the bound would not hold.
[strides]
a = "either"
b = "either"
c = "rows"

# `size` is the number of planes: one for each modulus, of complex numbers two. A step is 128×256×128; power allows less for long. The bound is a quarter of a product more, or more if k is short.
[time]
rate = "multiply_rate * (1 - (power + power_groups * (GROUP < 16)) * (m * n * k > power_above))"
step = "BN * 128 * 128 * 2 / (rate / sms)"
tiles = "cdiv(size * blocks, sms) * (cdiv(k, 128) * step * (1 + lone * (CLUSTER == 1) + narrow * (BN < 256)) + generation_s)"
bound = "cdiv(blocks, sms) * (cdiv(k // max(1, min(4, k // 2048)), 128) * step + bound_s)"
memory = "(m * k + k * n + m * n) * size / memory_rate * memory_ratio"
seconds = "launch_s + max(tiles, memory) + bound"

[[presets]]
rate = 100
params = { GROUP = 16 }

[[presets]]
rate = 100
params = { CLUSTER = 1, GROUP = 16 }

[params]
BN = { default = 256, values = [64, 128, 256] }
STAGES = { default = 4, min = 2, max = 8 }
CLUSTER = { default = 2, values = [1, 2] }
GROUP = { default = 8, values = [1, 2, 4, 8, 16, 32] }
*/
#include "banded_tiles.cuh"
#include "hopper.cuh"
#include "launches.cuh"
#include "residue_sums.cuh"
#include "ring.cuh"

#define WIDTH BN
#define SUM int
#define LETTER "+r"
#define SHAPE_K "k32"
#define TYPES ".s32.s8.s8"
#define TAIL ""
#include "wgmma.cuh"

constexpr int LINE = 128;  // of k in a stage: 128 bytes, the width of the swizzle
constexpr int GROUPS = TILE_ROWS / 64, THREADS = 128 * (GROUPS + 1), PARTS = BN / FLAGGED_COLUMNS;

struct Shared {
    unsigned char a[STAGES][TILE_ROWS * 128];
    unsigned char b[STAGES][BN * 128];
    Barrier full[STAGES], empty[STAGES];
    float2 columns[GROUPS][BN];  // of each column of C what is lost where A is rounded, and whether B is
};
extern __shared__ __align__(1024) unsigned char memory[];

// Whether all parts of a tile, of all blocks of the cluster, are flagged or outside.
__device__ __forceinline__ bool is_flagged(const Tiles<TILE_ROWS>& tiles, int tile, const int* flags, const Call& call)
{
    if (BOUND || tile >= tiles.count) return false;
    const Tile at = tiles.place(tile, 0);
    return are_flagged<CLUSTER * FLAGGED_ROWS, BN>(at.top, at.left, flags, call);
}

#if BOUND
// Flags the parts of C in which some sum, a lower bound of |A||B|, is not at least what rounding of A and B may change.
__device__ __forceinline__ void flag(const int (&d)[BN / 2], float2 (&columns)[BN], const Line* of_a, const Line* of_b, int* flags,
                                     const Call& call, int half, int row, int left)
{
    const int thread = threadIdx.x % 128, lane = thread % 32;
    group_sync(1 + half, 128);  // all have read those of the tile before
    for (int i = thread; i < BN; i += 128) columns[i] = loss_of_line(of_b, left + i, call.n, call);
    const float2 upper = loss_of_line(of_a, row, call.m, call), lower = loss_of_line(of_a, row + 8, call.m, call);
    group_sync(1 + half, 128);
    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
        bool fits = true;
        #pragma unroll
        for (int j = 0; j < FLAGGED_COLUMNS / 8; j++)
            #pragma unroll
            for (int l = 0; l < 4; l++) {
                const int at = part * FLAGGED_COLUMNS + j * 8 + lane % 4 * 2 + l % 2;
                const float lost = loss_of(l < 2 ? upper : lower, columns[at]);
                const bool inside = left + at < call.n && row + l / 2 * 8 < call.m;
                fits &= !inside || (float)d[part * (FLAGGED_COLUMNS / 2) + j * 4 + l] >= lost;
            }
        const bool flagged = !__all_sync(~0u, fits);
        if (flagged && lane == 0) atomicOr(&flags[row / FLAGGED_ROWS * parts_across(call) + left / FLAGGED_COLUMNS + part], 1);
    }
}
#endif

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1)
residues_hopper(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, unsigned char* residues, const Line* of_a,
                const Line* of_b, int* flags, const __grid_constant__ Call call)
{
    Shared& s = *(Shared*)memory;
    const int group = threadIdx.x / 128, rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER, steps = (call.k - 1) / LINE + 1;
    const Tiles<TILE_ROWS> tiles(call.m, call.n, call.planes);
    Ring<STAGES> ring;

    if (threadIdx.x == 32) {
        prefetch_map(a);
        prefetch_map(b);
    }
    init_ring(s.full, s.empty, GROUPS * CLUSTER);
    if (CLUSTER > 1) cluster_arrive();
    __syncthreads();
    let_next_launch_begin();
    wait_for_launch_before();
    if (CLUSTER > 1) cluster_wait();  // the barriers of both blocks are there

    // A tile that is flagged as a whole is left out. The flags of the next tile are read while this one is multiplied.
    bool flagged = is_flagged(tiles, first, flags, call), next_flagged;
    if (group == 0) {  // ---- GLOBAL → SHARED: one thread ------------------------------------------------------------------------
        give_registers<40>();
        if (threadIdx.x == 0)
            for (int tile = first; tile < tiles.count; tile += stride, flagged = next_flagged) {
                next_flagged = is_flagged(tiles, tile + stride, flags, call);
                if (flagged) continue;
                const auto [top, left, z] = tiles.place(tile, rank);
                for (int step = 0; step < steps; step++, ring.advance()) {
                    Barrier& full = s.full[ring.slot];
                    barrier_wait(s.empty[ring.slot], ring.parity ^ 1);
                    barrier_expect(full, (TILE_ROWS + BN) * 128);
                    load_tile(s.a[ring.slot], a, step * LINE, top, z, full);
                    constexpr int ROWS = BN / CLUSTER;  // of B, which each block of the cluster loads for both
                    unsigned char* to = s.b[ring.slot] + rank * ROWS * 128;
                    if (CLUSTER > 1) load_tile_multicast(to, b, step * LINE, left + rank * ROWS, z, full, (1 << CLUSTER) - 1);
                    else load_tile(to, b, step * LINE, left, z, full);
                }
            }
    } else {  // ---- MULTIPLY: 64 rows for each group ----------------------------------------------------------------------------
        take_registers<232>();
        const int half = group - 1, thread = threadIdx.x % 128;
        auto release = [&](int slot) {
            if (CLUSTER > 1) {
                if (thread < CLUSTER) barrier_arrive_at(s.empty[slot], thread);
            } else if (thread == 0) barrier_arrive(s.empty[slot]);
        };
        for (int tile = first; tile < tiles.count; tile += stride, flagged = next_flagged) {
            next_flagged = is_flagged(tiles, tile + stride, flags, call);
            if (flagged) continue;
            const auto [top, left, z] = tiles.place(tile, rank);
            int d[BN / 2], before = -1;
            for (int step = 0; step < steps; step++, ring.advance()) {
                barrier_wait(s.full[ring.slot], ring.parity);
                const unsigned long long x = descriptor(s.a[ring.slot] + half * 8192, 16, 1024), y = descriptor(s.b[ring.slot], 16, 1024);
                wgmma_fence();
                #pragma unroll
                for (int q = 0; q < 4; q++) wgmma(d, x + 2 * q, y + 2 * q, step > 0 || q > 0);
                wgmma_commit();
                wgmma_wait<1>();  // the wgmmas of the step before have read their stage
                if (before >= 0) release(before);
                before = ring.slot;
            }
            wgmma_wait<0>();
            release(before);
            #pragma unroll
            for (int i = 0; i < BN / 2; i++) asm volatile("" : LETTER(d[i])::"memory");  // read only from here on

            // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------
            if (top >= call.m) continue;  // of a cluster whose second block has no rows
#if BOUND
            flag(d, s.columns[half], of_a, of_b, flags, call, half, top + half * 64 + thread / 32 * 16 + thread % 32 / 4, left);
#else
            const int p = divisor_of_plane(z), inverse = inverse_of_divisor(p);
            const long long at = (long long)z * ((call.m - 1) / TILE_ROWS + 1) * tiles.cols + top / TILE_ROWS * tiles.cols + left / BN;
            unsigned char* to = residues + (at * GROUPS + half) * (BN / CHUNK_COLUMNS * CHUNK_BYTES) + thread * 16;
            #pragma unroll
            for (int chunk = 0; chunk < BN / CHUNK_COLUMNS; chunk++)
                *(uint4*)(to + chunk * CHUNK_BYTES) = residues_of([&](int i) { return d[chunk * 16 + i]; }, p, inverse);
#endif
        }
    }
    if (CLUSTER > 1) cluster_sync();  // no block leaves while the other writes to its memory
}
