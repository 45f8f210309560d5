/*
idea = "float32 by three float16 products on tensor cores: each number is two of float16, and partial sums are added up in float32."
row = "S0.9, S2"
entry = "split_hopper"
dtypes = ["float16x2"]
stores = ["float32"]
precision = "float16x2"
capability = "9.0a"
persistent = true
triangle = ["BM * CLUSTER", "BN", "CLUSTER"]
suits = "min(k >= 128, m >= 256, n >= 256, m * n * k * batch >= 250000000)"
block = ["128 * (BM // 64 + 1)"]
grid = ["CLUSTER * cdiv(m, BM * CLUSTER) * cdiv(n, BN)"]
shared = "SLOTS * (BM + BN) * 128 + 16 * SLOTS"
tile = ["BN", "BM"]
step = "LINE * CHUNK"
constraints = ["SLOTS * (BM + BN) * 128 + 16 * SLOTS <= 232448"]

costs = [
    "multiply_rate", "power", "power_above", "narrow", "paired", "store_s", "store_rate", "memory_rate", "launch_s",
    "unhidden",
]

[boxes]
a = ["BM", "LINE"]
a_down = ["LINE", "64"]
b = ["LINE // CLUSTER", "64"]
b_down = ["BN // CLUSTER", "LINE"]

# The operands that are split first, and multiplied again where splitting loses too much.
[strides]
a = "either"
b = "either"
c = "rows"

# Three products for each step. Multiplications do not hide the store of a tile: the sums take most registers. The numbers are fitted to
# records of an H200, whose power allows less for long.
[time]
work = "m * n * k * batch"
rate = "multiply_rate * (1 - power * (work > power_above) - narrow * (BN == 64) + paired * (CLUSTER > 1) * (2 * (work > power_above) - 1))"
store = "store_s + sms * BM * BN * 4 / store_rate"
tiles = "cdiv(blocks, sms) * (store + cdiv(part, LINE * CHUNK) * CHUNK * 3 * BM * BN * LINE / rate)"
memory = "(m * k + k * n + m * n * parts) * 4 * batch / memory_rate * memory_ratio"
seconds = "launch_s + max(tiles, memory) + unhidden * min(tiles, memory)"

[[presets]]
rate = 100
params = { BN = 64, SLOTS = 9 }

[[presets]]
rate = 100
params = { CLUSTER = 2, GROUP = 8 }

[params]
BM = { default = 128, values = [128] }
BN = { default = 128, values = [64, 128] }
CHUNK = { default = 2, values = [1, 2, 4] }
SLOTS = { default = 7, min = 4, max = 9 }
CLUSTER = { default = 1, values = [1, 2] }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#include "banded_tiles.cuh"
#include "flags.cuh"
#include "hopper.cuh"
#include "launches.cuh"
#include "powers.cuh"
#include "ring.cuh"

#ifndef PLANES
#define PLANES 2  // matrices of float16 for each operand: the high parts, and the low ones
#endif
#ifndef ADD
#define ADD 0  // 1 adds the products to C
#endif

#define WIDTH BN
#define SUM float
#define LETTER "+f"
#define SHAPE_K "k16"
#define TYPES ".f32.f16.f16"
#define TAIL ", 1, 1, " TEXT(A_DOWN) ", " TEXT(B_ACROSS)
#include "wgmma.cuh"

constexpr int HELD = PLANES == 1 ? 16 : 32;  // numbers of C that a thread reads at once, to add to them
constexpr int LINE = 64;  // of k in a slot: 128 bytes, the width of the swizzle
constexpr int GROUPS = BM / 64, THREADS = 128 * (GROUPS + 1);

struct Shared {  // a slot has the high or the low parts of A and B; a step of k takes PLANES of them
    unsigned char a[SLOTS][BM * 128];
    unsigned char b[SLOTS][BN * 128];
    Barrier full[SLOTS], empty[SLOTS];
};
extern __shared__ __align__(1024) unsigned char memory[];

// C[m×n] of `batch` products: the next row `row_c` elements further, the next C `next_c`. `moves_a` and `moves_b` are 1 where each
// product has its own operand, 0 where all have the same. Of each operand there are exponents of `groups_*` · 32 lines, and then the
// excesses of the groups. What the excesses of its rows and of its columns flag, more than `limit` together, is not stored. Of a long k
// each block may sum one of `parts`, of `part_steps` times CHUNK steps; the sums of all parts follow each other like products.
struct Call {
    long long row_c, next_c;
    int m, n, k, batch, moves_a, moves_b, groups_a, groups_b, limit, parts, part_steps, unused;
};

// Which parts of a tile are flagged, of all blocks of the cluster: a bit each. Those beyond the last row or column of C are.
constexpr int ACROSS = (BN - 1) / FLAGGED_COLUMNS + 1;
constexpr unsigned ALL_FLAGGED = (1u << GROUPS * CLUSTER * ACROSS) - 1;
__device__ __forceinline__ unsigned flags_of(const Tile& tile, const int* of_a, const int* of_b, const Call& call)
{
    const int product = tile.z / call.parts;
    const int* a_excesses = of_a + (product * call.moves_a * (LINES_OF_EXCESS + 1) + LINES_OF_EXCESS) * call.groups_a;
    const int* b_excesses = of_b + (product * call.moves_b * (LINES_OF_EXCESS + 1) + LINES_OF_EXCESS) * call.groups_b;
    int most[ACROSS];
    #pragma unroll
    for (int j = 0; j < ACROSS; j++) {
        const int column = tile.left + j * FLAGGED_COLUMNS;
        most[j] = column < call.n ? call.limit - largest_of_columns(b_excesses, column) : -1;
    }
    unsigned flags = 0;
    #pragma unroll
    for (int i = 0; i < GROUPS * CLUSTER; i++) {
        const int row = tile.top + i * FLAGGED_ROWS, inside = min(row, call.groups_a * LINES_OF_EXCESS - FLAGGED_ROWS);
        const int excess = largest_of_rows(a_excesses, inside);
        #pragma unroll
        for (int j = 0; j < ACROSS; j++)
            if (row >= call.m || excess > most[j]) flags |= 1u << i * ACROSS + j;
    }
    return flags;
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1)
split_hopper(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, const int* of_a, const int* of_b,
             const __grid_constant__ Call call)
{
    Shared& s = *(Shared*)memory;
    const int group = threadIdx.x / 128, rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    const int all_steps = ((call.k - 1) / (LINE * CHUNK) + 1) * CHUNK;  // beyond k the copy engine fills with zeros
    const Tiles<BM> tiles(call.m, call.n, call.batch * call.parts);
    Ring<SLOTS> ring;
    auto first_step = [&](int z) { return z % call.parts * call.part_steps * CHUNK; };
    auto steps_of = [&](int z) { return min(call.part_steps * CHUNK, all_steps - first_step(z)); };
    auto flags_at = [&](int tile) { return tile < tiles.count ? flags_of(tiles.place(tile, 0), of_a, of_b, call) : 0; };

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

    if (group == 0) {  // ---- GLOBAL → SHARED: one thread ------------------------------------------------------------------------
        give_registers<40>();
        if (threadIdx.x == 0) {
            // A tile that is flagged as a whole is left out. The first never is: to know its flags would delay the first copies. Those
            // of the next tile are read while this one is copied.
            unsigned flags = 0, next_flags;
            for (int tile = first; tile < tiles.count; tile += stride, flags = next_flags) {
                next_flags = flags_at(tile + stride);
                if (flags == ALL_FLAGGED) continue;
                const auto [top, left, z] = tiles.place(tile, rank);
                const int product = z / call.parts, from = first_step(z), steps = steps_of(z);
                for (int i = 0; i < steps * PLANES; i++, ring.advance()) {  // high parts, then low ones
                    Barrier& full = s.full[ring.slot];
                    const int plane = i % PLANES, at = (from + i / PLANES) * LINE;
                    const int plane_a = product * call.moves_a * PLANES + plane, plane_b = product * call.moves_b * PLANES + plane;
                    unsigned char *to_a = s.a[ring.slot], *to_b = s.b[ring.slot];
                    barrier_wait(s.empty[ring.slot], ring.parity ^ 1);
                    barrier_expect(full, (BM + BN) * 128);
                    if (A_DOWN)
                        #pragma unroll
                        for (int j = 0; j < BM / 64; j++) load_tile(to_a + j * 8192, a, top + j * 64, at, plane_a, full);
                    else load_tile(to_a, a, at, top, plane_a, full);
                    auto load_b = [&](int to, int x, int y) {
                        if (CLUSTER > 1) load_tile_multicast(to_b + to, b, x, y, plane_b, full, (1 << CLUSTER) - 1);
                        else load_tile(to_b + to, b, x, y, plane_b, full);
                    };
                    constexpr int ROWS = (B_ACROSS ? LINE : BN) / CLUSTER;  // of B, which each block of the cluster loads for both
                    if (B_ACROSS)
                        #pragma unroll
                        for (int j = 0; j < BN / 64; j++) load_b(j * 8192 + rank * ROWS * 128, left + j * 64, at + rank * ROWS);
                    else load_b(rank * ROWS * 128, at, left + rank * ROWS);
                }
            }
        }
    } else {  // ---- MULTIPLY: 64 rows for each group ----------------------------------------------------------------------------
        take_registers<232>();
        const int half = group - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        auto a_in = [&](int slot) { return descriptor(s.a[slot] + half * 8192, 16, 1024); };
        auto b_in = [&](int slot) { return descriptor(s.b[slot], B_ACROSS ? 8192 : 16, 1024); };
        auto release = [&](int slot) {
            if (CLUSTER > 1) {
                if (thread < CLUSTER) barrier_arrive_at(s.empty[slot], thread);
            } else if (thread == 0) barrier_arrive(s.empty[slot]);
        };
        constexpr int NEXT_A = A_DOWN ? 128 : 2, NEXT_B = B_ACROSS ? 128 : 2;  // 16 of k further, in units of 16 bytes
        unsigned flags = flags_at(first);
        for (int tile = first; tile < tiles.count; tile += stride) {
            if (flags == ALL_FLAGGED && tile != first) {
                flags = flags_at(tile + stride);
                continue;
            }
            const auto [tile_top, left, z] = tiles.place(tile, rank);
            const int product = z / call.parts, steps = steps_of(z);
            float sum[BN / 2];
#if PLANES == 1
            int before = -1;
            for (int step = 0; step < steps; step++) {
                const int slot = ring.slot;
                barrier_wait(s.full[slot], ring.parity);
                ring.advance();
                const unsigned long long from_a = a_in(slot), from_b = b_in(slot);
                wgmma_fence();
                #pragma unroll
                for (int q = 0; q < 4; q++) wgmma(sum, from_a + NEXT_A * q, from_b + NEXT_B * q, step > 0 || q > 0);
                wgmma_commit();
                wgmma_wait<1>();  // the wgmmas of the step before have read their slot
                if (before >= 0) release(before);
                before = slot;
            }
            wgmma_wait<0>();
            release(before);
#else
            // Products of high parts are summed over CHUNK steps and then added to `sum`. Those of a high and a low part, 2^11
            // times as large as they should be, are small enough that what tensor cores lose of their sums does not matter.
            float high[BN / 2], cross[BN / 2];
            #pragma unroll
            for (int i = 0; i < BN / 2; i++) sum[i] = 0;
            int before_high = -1, before_low = -1;
            for (int step = 0; step < steps; step += CHUNK) {
                // Straight code: with a condition about the additions ptxas would wait for each wgmma.
                #pragma unroll
                for (int i = 0; i < CHUNK; i++) {
                    const int at_high = ring.slot;
                    barrier_wait(s.full[at_high], ring.parity);
                    ring.advance();
                    const unsigned long long ah = a_in(at_high), bh = b_in(at_high);
                    wgmma_fence();
                    #pragma unroll
                    for (int q = 0; q < 4; q++) wgmma(high, ah + NEXT_A * q, bh + NEXT_B * q, i > 0 || q > 0);
                    wgmma_commit();
                    const int at_low = ring.slot;
                    barrier_wait(s.full[at_low], ring.parity);
                    ring.advance();
                    const unsigned long long al = a_in(at_low), bl = b_in(at_low);
                    wgmma_fence();
                    #pragma unroll
                    for (int q = 0; q < 4; q++) {
                        wgmma(cross, ah + NEXT_A * q, bl + NEXT_B * q, step > 0 || i > 0 || q > 0);
                        wgmma(cross, al + NEXT_A * q, bh + NEXT_B * q, 1);
                    }
                    wgmma_commit();
                    wgmma_wait<2>();  // the wgmmas of the step before have read their slots
                    if (before_high >= 0) {
                        release(before_high);
                        release(before_low);
                    }
                    before_high = at_high;
                    before_low = at_low;
                }
                wgmma_wait<1>();  // the high parts are done; cross products go on
                #pragma unroll
                for (int i = 0; i < BN / 2; i++) {
                    asm volatile("" : "+f"(high[i])::"memory");
                    sum[i] += high[i];
                }
            }
            wgmma_wait<0>();
            release(before_high);
            release(before_low);
#endif

            // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------
            const int row = tile_top + half * 64 + warp * 16 + lane / 4, col = left + lane % 4 * 2;
            const int* of_rows = of_a + product * call.moves_a * call.groups_a * (LINES_OF_EXCESS + 1) + row;
            const int* of_columns = of_b + product * call.moves_b * call.groups_b * (LINES_OF_EXCESS + 1) + col;
            float* to = c + z * call.next_c + row * call.row_c + col;
            auto is_in = [&](int i, int l) { return row + l / 2 * 8 < call.m && col + i * 2 + l % 2 < call.n; };
            // All that is read comes first, the flags of the next tile too: one latency of memory for all.
            const int upper = of_rows[0], lower = of_rows[8];
            int2 columns[BN / 8];
            #pragma unroll
            for (int i = 0; i < BN / 8; i++) columns[i] = *(const int2*)(of_columns + i * 8);
            const unsigned flagged = flags >> (rank * GROUPS + half) * ACROSS & (1u << ACROSS) - 1;
            flags = flags_at(tile + stride);
            if (flagged == (1u << ACROSS) - 1) continue;
            float held[HELD], kept[2];
            #pragma unroll
            for (int i = 0; i < BN / 2; i += 4) {
                const int j = i * 2;
                if (ACROSS > 1 && flagged >> j / FLAGGED_COLUMNS & 1) continue;
                if (ADD && i % HELD == 0)  // what C holds, some of it at once: the stores between would delay each load
                    #pragma unroll
                    for (int at = i; at < i + HELD; at += 2) {
                        const int l = at % 4;
                        const float* from = to + l / 2 * 8 * call.row_c + at / 4 * 8;
                        float2 pair = {};
                        if (STORE_PAIRS) {
                            if (is_in(at - l, l)) pair = *(const float2*)from;
                        } else {
                            if (is_in(at - l, l)) pair.x = from[0];
                            if (is_in(at - l, l + 1)) pair.y = from[1];
                        }
                        held[at - i] = pair.x;
                        held[at - i + 1] = pair.y;
                    }
                float v[4];
                #pragma unroll
                for (int l = 0; l < 4; l++) {
#if PLANES == 1
                    asm volatile("" : "+f"(sum[i + l])::"memory");
                    v[l] = sum[i + l];
#else
                    asm volatile("" : "+f"(cross[i + l])::"memory");
                    v[l] = sum[i + l] + cross[i + l] * (1.0f / 2048);
#endif
                }
                v[0] = scaled(v[0], upper + columns[i / 4].x);
                v[1] = scaled(v[1], upper + columns[i / 4].y);
                v[2] = scaled(v[2], lower + columns[i / 4].x);
                v[3] = scaled(v[3], lower + columns[i / 4].y);
                if (ADD)
                    #pragma unroll
                    for (int l = 0; l < 4; l++) v[l] += held[i % HELD + l];
                #pragma unroll
                for (int l = 0; l < 2; l++) {
                    float* at = to + l * 8 * call.row_c + j;
                    if (STORE_PAIRS) {  // then n is even
                        if (is_in(i, l * 2)) *(float2*)at = make_float2(v[l * 2], v[l * 2 + 1]);
                        continue;
                    }
                    // Where rows do not begin at whole pairs, a lane stores its second number with the first of the next lane. The
                    // last of four lanes does so with the columns before, when the next eight are here.
                    const bool odd = (unsigned long long)at / 4 % 2, last = lane % 4 == 3;
                    const bool begins = j % FLAGGED_COLUMNS == 0, ends = (j + 8) % FLAGGED_COLUMNS == 0 || j + 8 == BN;
                    const float next = __shfl_sync(~0u, v[l * 2], last ? lane - 3 : lane + 1);
                    const int shift = !odd ? 0 : last ? -7 : 1;
                    const float x = !odd ? v[l * 2] : last ? kept[l] : v[l * 2 + 1];
                    const bool in_row = row + l * 8 < call.m, is_pair = !(begins && odd && last);
                    if (in_row && is_pair && col + j + shift + 1 < call.n) *(float2*)(at + shift) = make_float2(x, odd ? next : v[l * 2 + 1]);
                    else if (in_row && is_pair && col + j + shift < call.n) at[shift] = x;
                    if (begins && odd && lane % 4 == 0 && is_in(i, l * 2)) at[0] = v[l * 2];
                    if (ends && odd && last && is_in(i, l * 2 + 1)) at[1] = v[l * 2 + 1];
                    kept[l] = v[l * 2 + 1];
                }
            }
        }
    }
    if (CLUSTER > 1) cluster_sync();  // no block leaves while the other writes to its memory
}
