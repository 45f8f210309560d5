/*
idea = "The copy engine fills a ring of tiles in shared memory, tensor cores multiply from there, and no thread does both."
row = "S0.9, S2"
entry = "hopper"
dtypes = ["bfloat16", "float16", "tf32", "int8", "float8_fast"]
stores = ["bfloat16", "float16", "float32", "int8", "int32"]
capability = "9.0a"
persistent = true
step = "LINE"
block = ["128 * (BM // 64 + 1)"]
grid = ["CLUSTER * cdiv(m, BM * CLUSTER) * cdiv(n, BN)"]
shared = "STAGES * (BM + BN) * 128 + BM // 64 * 16384 + 16 * STAGES"
tile = ["BN", "BM"]
constraints = ["STAGES * (BM + BN) * 128 + BM // 64 * 16384 + 16 * STAGES <= 232448"]

[boxes]
a = ["BM", "LINE"]
a_down = ["LINE", "64"]
b = ["LINE // CLUSTER", "64"]
b_down = ["BN // CLUSTER", "LINE"]
c = ["64", "LINE"]

# A step of a tile takes as long as the slower of tensor cores, and of the second-level cache, from which every block of a cluster
# gets its rows of A and its share of B. The rates are those of an H200, as its power allows for long.
[time]
multiply = "BM * BN * LINE / (5.5e12 / size) * (1 + 0.03 * (CLUSTER > 1)) / (1 + 0.1 * (blocks <= sms))"
operands = "(m * k + k * n) * size * batch"
cache = "106e9 - 34e9 * (operands > 40e6) - 10e9 * (operands > 600e6)"
load = "(BM + BN / CLUSTER) * 128 / (lines * cache + (1 - lines) * min(cache, 46e9))"
tiles = "cdiv(blocks, sms) * (1.3e-6 + cdiv(part, LINE) * (max(multiply, load) + load / 100))"
across = "min(1, sqrt(min(BN, n) * size / 512))"
memory = "((m * k + k * n / across) * size / 3.9e12 + m * n * out_size / 3.3e12) * batch"
seconds = "2.5e-6 + max(tiles, memory) + 0.1 * min(tiles, memory)"

[[presets]]
rate = 100
params = { CLUSTER = 2, GROUP = 8 }

[[presets]]
rate = 100
params = { BN = 192 }

[[presets]]
rate = 100
params = { BN = 192, CLUSTER = 2, GROUP = 8 }

[[presets]]
rate = 100
params = { BN = 128, STAGES = 6 }

[[presets]]
rate = 100
params = { BN = 128, STAGES = 6, CLUSTER = 2, GROUP = 8 }

[[presets]]
rate = 100
params = { BN = 64, STAGES = 8 }

[[presets]]
rate = 100
params = { BM = 64, STAGES = 5 }

[[presets]]
rate = 100
params = { BM = 64, BN = 128, STAGES = 8 }

[[presets]]
rate = 100
params = { BM = 64, BN = 64, STAGES = 8 }

[params]
BM = { default = 128, values = [64, 128] }
BN = { default = 256, values = [64, 128, 192, 256] }
STAGES = { default = 4, min = 2, max = 8 }
CLUSTER = { default = 1, values = [1, 2] }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#include "hopper.cuh"

// ---- the types of operands and result ---------------------------------------------------------------------------------------
#include "types.cuh"
#if TYPE == BFLOAT16 || TYPE == FLOAT16
#define SIZE 2
#define SHAPE_K "k16"
#define TAIL ", 1, 1, " TEXT(A_DOWN) ", " TEXT(B_ACROSS)
#elif TYPE == TF32
#define SIZE 4
#define SHAPE_K "k8"
#define TAIL ", 1, 1"
#else
#define SIZE 1
#define SHAPE_K "k32"
#define TAIL ", 1, 1"
#endif
#if TYPE == INT8
#define SUM int
#define LETTER "+r"
#undef TAIL
#define TAIL ""
#else
#define SUM float
#define LETTER "+f"
#endif
#if TYPE == BFLOAT16
#define TYPES ".f32.bf16.bf16"
#elif TYPE == FLOAT16
#define TYPES ".f32.f16.f16"
#elif TYPE == TF32
#define TYPES ".f32.tf32.tf32"
#elif TYPE == INT8
#define TYPES ".s32.s8.s8"
#elif TYPE_A == FLOAT8_E4M3FN && TYPE_B == FLOAT8_E4M3FN
#define TYPES ".f32.e4m3.e4m3"
#elif TYPE_A == FLOAT8_E4M3FN
#define TYPES ".f32.e4m3.e5m2"
#elif TYPE_B == FLOAT8_E4M3FN
#define TYPES ".f32.e5m2.e4m3"
#else
#define TYPES ".f32.e5m2.e5m2"
#endif
// Sums of float8 in a tensor core keep 13 bits. Each step's are added up in float32 instead, WIDTH columns while those of the next
// WIDTH are formed.
#ifndef PROMOTED
#define PROMOTED 0
#define WIDTH BN
#endif
#include "wgmma.cuh"

#define HALF (OUT == BFLOAT16 || OUT == FLOAT16)
#if HALF
typedef unsigned short Out;  // its bits
#elif OUT == INT8
typedef signed char Out;
#elif OUT == INT32
typedef int Out;
#else
typedef float Out;
#endif
struct alignas(2 * sizeof(Out)) Pair { Out x, y; };

constexpr int LINE = 128 / SIZE;  // of k in a stage: 128 bytes, the width of the swizzle
constexpr int GROUPS = BM / 64, THREADS = 128 * (GROUPS + 1), PIECES = BN / WIDTH;
constexpr int SLAB = 128 / sizeof(Out);  // columns of C that are stored at once

struct Shared {
    unsigned char a[STAGES][BM * 128];
    unsigned char b[STAGES][BN * 128];
    unsigned char c[GROUPS][2][64 * 128];  // two slabs for each group
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

// What one call multiplies: C[m×n] of `batch` products, whose rows are `row_c` elements apart, and the next C `next_c`.
// `moves_a` and `moves_b` are 1 where each product has its own operand, 0 where all have the same. Of a long k each block may sum
// one of `parts`, of `part_steps` steps; the sums of all parts follow each other like the products of a batch.
// Up to RAGGED products may have rows of their own number: `tops` are the first rows of each in A and in C, in which their rows follow
// each other, and `bands` its first row of tiles.
#ifndef RAGGED
#define RAGGED 0
#endif
struct Call {
    long long row_c, next_c;
    int m, n, k, batch, moves_a, moves_b, parts, part_steps;
#if RAGGED
    int tops[RAGGED + 1], bands[RAGGED + 1];
#endif
};

struct Ring {  // the next stage, and the parity of its phase
    int slot = 0, parity = 0;
    __device__ __forceinline__ void advance()
    {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// Says that the copies of all blocks of the cluster may write where this group's wgmmas have read.
__device__ __forceinline__ void release(Shared& s, int slot)
{
    const int thread = threadIdx.x % 128;
    if (CLUSTER > 1) {
        if (thread < CLUSTER) barrier_arrive_at(s.empty[slot], thread);
    } else if (thread == 0) barrier_arrive(s.empty[slot]);
}

#if PROMOTED
struct Sums { SUM of[2][WIDTH / 2]; };

__device__ __forceinline__ void add_piece(SUM (&d)[BN / 2], int piece, SUM (&sums)[WIDTH / 2])
{
    #pragma unroll
    for (int j = 0; j < WIDTH / 2; j++) {
        asm volatile("" : LETTER(sums[j])::"memory");  // read only from here on
        d[piece * (WIDTH / 2) + j] += sums[j];
    }
}

// Adds COUNT steps of k to d, whose rows are those of group `half`. While the wgmmas of a piece run, the sums of the one before are
// added; ptxas allows that within straight code only, so nothing is under way at the end.
template <int COUNT> __device__ __forceinline__ void add_steps(Shared& s, Ring& ring, int half, SUM (&d)[BN / 2], Sums& sums)
{
    int before = 0;
    #pragma unroll
    for (int i = 0; i < COUNT * PIECES; i++) {
        if (i % PIECES == 0) barrier_wait(s.full[ring.slot], ring.parity);
        const unsigned long long x = descriptor(s.a[ring.slot] + half * 8192, 16, 1024);
        const unsigned long long y = descriptor(s.b[ring.slot] + i % PIECES * WIDTH * 128, 16, 1024);
        wgmma_fence();
        #pragma unroll
        for (int q = 0; q < 4; q++) wgmma(sums.of[i % 2], x + 2 * q, y + 2 * q, q > 0);
        wgmma_commit();
        if (i > 0) {
            wgmma_wait<1>();
            if (i % PIECES == 0) release(s, before);
            add_piece(d, (i - 1) % PIECES, sums.of[(i - 1) % 2]);
        }
        if (i % PIECES == PIECES - 1) {
            before = ring.slot;
            ring.advance();
        }
    }
    wgmma_wait<0>();
    release(s, before);
    add_piece(d, PIECES - 1, sums.of[(COUNT * PIECES - 1) % 2]);
}
#endif

struct Place {  // of a tile: its first row and column, its number among all products and parts, its steps of k, the end of C's rows
    int top, left, z, first_step, steps, bottom;
};

// The tiles of all products in the order in which clusters take them. Those that run together should share rows of A and columns of
// B in the second-level cache, so they are numbered down GROUP rows of tiles, then across.
struct Tiles {
    const Call& call;
    int rows, cols, steps, count;
    __device__ Tiles(const Call& call)
        : call(call), rows((call.m - 1) / (CLUSTER * BM) + 1), cols((call.n - 1) / BN + 1), steps((call.k - 1) / LINE + 1),
          count(rows * cols * call.batch * call.parts)
    {
#if RAGGED
        rows = call.bands[call.batch];
        count = rows * cols;
#endif
    }
    __device__ __forceinline__ Place place(int tile, int rank) const
    {
        const int z = tile / (rows * cols), first = z % call.parts * call.part_steps;
        tile -= z * (rows * cols);
        const int band = tile / (GROUP * cols), height = min(GROUP, rows - band * GROUP), inside = tile - band * GROUP * cols;
        const int row = band * GROUP + inside % height, left = inside / height * BN, length = min(call.part_steps, steps - first);
#if RAGGED
        int product = 0;  // the last one whose first row of tiles is this one or before it
        for (int count = call.batch; count > 1;) {
            const int half = count / 2;
            const bool after = call.bands[product + half] <= row;
            product += after ? half : 0;
            count = after ? count - half : half;
        }
        const int top = call.tops[product] + ((row - call.bands[product]) * CLUSTER + rank) * BM;
        return { top, left, product, first, length, call.tops[product + 1] };
#endif
        return { (row * CLUSTER + rank) * BM, left, z, first, length, call.m };
    }
};

__device__ __forceinline__ unsigned packed(float low, float high)
{
    unsigned both;
    if (OUT == BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

#if HALF
// A warp stores 16 rows of up to 64 elements, of which each lane has a word of two; in `from` chunks of 16 bytes are swizzled. A row
// that begins within a word of C takes one half of each from the lane before.
__device__ __forceinline__ void store_rows(Out* to, long long step, const Out (*from)[64], int rows, int columns)
{
    const int lane = threadIdx.x % 32, i = 2 * lane;
    #pragma unroll
    for (int r = 0; r < 16; r++) {
        const unsigned word = ((const unsigned*)from[r])[(lane / 4 ^ r % 8) * 4 + lane % 4];
        const unsigned before = __shfl_up_sync(0xFFFFFFFF, word, 1);
        if (r >= rows) continue;
        Out* row = to + r * step;
        if ((unsigned long long)row % 4 == 0) {
            if (i + 1 < columns) *(unsigned*)&row[i] = word;
            else if (i < columns) row[i] = (Out)word;
        } else {
            if (lane > 0 && i < columns) *(unsigned*)&row[i - 1] = before >> 16 | word << 16;
            else if (lane > 0 && i - 1 < columns) row[i - 1] = (Out)(before >> 16);
            else if (lane == 0 && columns > 0) row[0] = (Out)word;
            if (lane == 31 && columns == 64) row[63] = (Out)(word >> 16);
        }
    }
}
#endif

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1)
hopper(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
       Out* elements_of_c, const __grid_constant__ Call call)
{
    Shared& s = *(Shared*)memory;
    const int group = threadIdx.x / 128, rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    const Tiles tiles(call);
    Ring ring;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], GROUPS * CLUSTER);
        }
        barrier_publish();
    }
    if (CLUSTER > 1) cluster_sync();  // the barriers of both blocks are there
    else __syncthreads();

    if (group == 0) {  // ---- GLOBAL → SHARED: one thread ------------------------------------------------------------------------
        if (GROUPS > 1) give_registers<40>();
        if (threadIdx.x == 0)
            for (int tile = first; tile < tiles.count; tile += stride) {
                const auto [top, left, z, first_step, steps, bottom] = tiles.place(tile, rank);
                const int of_a = z / call.parts * call.moves_a, of_b = z / call.parts * call.moves_b;
                for (int step = first_step; step < first_step + steps; step++, ring.advance()) {
                    Barrier& full = s.full[ring.slot];
                    unsigned char *to_a = s.a[ring.slot], *to_b = s.b[ring.slot];
                    barrier_wait(s.empty[ring.slot], ring.parity ^ 1);
                    barrier_expect(full, (BM + BN) * 128);
                    if (A_DOWN)
                        #pragma unroll
                        for (int i = 0; i < BM / 64; i++) load_tile(to_a + i * 8192, a, top + i * 64, step * LINE, of_a, full);
                    else load_tile(to_a, a, step * LINE, top, of_a, full);
                    // Each block of a cluster loads some rows of B, as they lie in memory, for both.
                    auto load_b = [&](int at, int x, int y) {
                        if (CLUSTER > 1) load_tile_multicast(to_b + at, b, x, y, of_b, full, (1 << CLUSTER) - 1);
                        else load_tile(to_b + at, b, x, y, of_b, full);
                    };
                    constexpr int ROWS = (B_ACROSS ? LINE : BN) / CLUSTER;
                    if (B_ACROSS)
                        #pragma unroll
                        for (int i = 0; i < BN / 64; i++) load_b(i * 8192 + rank * ROWS * 128, left + i * 64, step * LINE + rank * ROWS);
                    else load_b(rank * ROWS * 128, step * LINE, left + rank * ROWS);
                }
            }
    } else {  // ---- MULTIPLY: 64 rows for each group ----------------------------------------------------------------------------
        if (GROUPS > 1) take_registers<232>();
        const int half = group - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        SUM d[BN / 2];
#if PROMOTED
        Sums sums;
#endif
        int buffer = 0;
        for (int tile = first; tile < tiles.count; tile += stride) {
            const auto [tile_top, left, z, first_step, steps, bottom] = tiles.place(tile, rank);
#if PROMOTED
            #pragma unroll
            for (int i = 0; i < BN / 2; i++) d[i] = 0;
            int step = 0;
            for (; step + CHUNK <= steps; step += CHUNK) add_steps<CHUNK>(s, ring, half, d, sums);
            for (; CHUNK > 1 && step < steps; step++) add_steps<1>(s, ring, half, d, sums);
#else
            int before = 0;
            for (int step = 0; step < steps; step++, ring.advance()) {
                barrier_wait(s.full[ring.slot], ring.parity);
                const unsigned long long x = descriptor(s.a[ring.slot] + half * 8192, 16, 1024);
                const unsigned long long y = descriptor(s.b[ring.slot], B_ACROSS ? 8192 : 16, 1024);
                wgmma_fence();
                #pragma unroll
                for (int q = 0; q < 4; q++) wgmma(d, x + (A_DOWN ? 128 : 2) * q, y + (B_ACROSS ? 128 : 2) * q, step > 0 || q > 0);
                wgmma_commit();
                wgmma_wait<1>();  // the wgmmas of the step before have read their stage
                if (step > 0) release(s, before);
                before = ring.slot;
            }
            wgmma_wait<0>();
            #pragma unroll
            for (int i = 0; i < BN / 2; i++) asm volatile("" : LETTER(d[i])::"memory");  // read only from here on
            release(s, before);
#endif

            // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------
            const int top = tile_top + half * 64;
#if HALF || STORE_BOXES
            // Through shared memory: by the copy engine, which goes on while the next tile is multiplied, or row by row.
            #pragma unroll
            for (int slab = 0; slab < BN / SLAB; slab++, buffer ^= 1) {
                Out(*to)[SLAB] = (Out(*)[SLAB])s.c[half][buffer];
                if (STORE_BOXES && thread == 0) store_wait_read<1>();  // the slab before the last has left
                if (STORE_BOXES) group_sync(1 + half, 128);
#if HALF
                const int row = warp * 16 + lane % 16;
                #pragma unroll
                for (int i = 0; i < 4; i++) {  // 16 columns: 8×8 matrices of rows 0-7 and 8-15, then of the next 8 columns
                    const int at = slab * 32 + i * 8, chunk = i * 2 + lane / 16;
                    store_matrices(&to[row][(chunk ^ row % 8) * 8], packed(d[at], d[at + 1]), packed(d[at + 2], d[at + 3]),
                                   packed(d[at + 4], d[at + 5]), packed(d[at + 6], d[at + 7]));
                }
#else
                #pragma unroll
                for (int i = 0; i < SLAB / 2; i += 2) {
                    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2, chunk = col / 4 ^ row % 8;
                    const int at = slab * (SLAB / 2) + i;
                    *(Pair*)&to[row][chunk * 4 + col % 4] = Pair{ (Out)d[at], (Out)d[at + 1] };
                }
#endif
                if (STORE_BOXES) {
                    publish_shared();
                    group_sync(1 + half, 128);
                    if (thread == 0) {
                        store_tile(c, to, left + slab * SLAB, top, z);
                        store_commit();
                    }
                }
#if HALF
                else {
                    __syncwarp();  // a warp stores the rows that it has written
                    const int columns = min(64, call.n - left - slab * 64);
                    Out* rows = elements_of_c + z * call.next_c + (top + warp * 16) * call.row_c + left + slab * 64;
                    store_rows(rows, call.row_c, &to[warp * 16], bottom - top - warp * 16, columns);
                }
#endif
            }
#else
            const int row = top + warp * 16 + lane / 4, col = left + lane % 4 * 2;
            Out* to = elements_of_c + z * call.next_c + row * call.row_c + col;
            #pragma unroll
            for (int i = 0; i < BN / 2; i += 2) {
                const int r = i / 2 % 2 * 8, j = i / 4 * 8;
                const Pair pair = { (Out)d[i], (Out)d[i + 1] };
                if (row + r >= bottom || col + j >= call.n) continue;
                Out* at = to + r * call.row_c + j;
                if (STORE_PAIRS) *(Pair*)at = pair;  // then n is even
                else {
                    at[0] = pair.x;
                    if (col + j + 1 < call.n) at[1] = pair.y;
                }
            }
#endif
        }
        if (STORE_BOXES && thread == 0) store_wait<0>();
    }
    if (CLUSTER > 1) cluster_sync();  // no block leaves while the other writes to its memory
}
