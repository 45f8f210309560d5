/*
idea = "float64 and complex128 by products of int8 on cards other than Hopper: residues_hopper with cp.async and mma.sync."
row = "S0.9, S2"
dtypes = ["int8x13"]
stores = ["float64"]
precision = "int8x13"
capability = "8.0"
suits = "(m >= 512) * (n >= 512) * (k >= 512) * (k <= 65536)"
triangle = ["128", "BN", "1"]
block = ["max(128, BN)"]
grid = ["cdiv(m, 128) * cdiv(n, BN)"]
shared = "STAGES * (128 + BN) * BK"
tile = ["BN", "128"]
constraints = ["STAGES * (128 + BN) * BK <= 101376"]

costs = ["share", "clock", "cache_rate", "generation_s", "bound_s", "memory_rate", "launch_s"]

# The operands whose residues are found first, and that are multiplied again where the bound would not hold.
[strides]
a = "either"
b = "either"
c = "rows"

# `size` is the number of planes: one for each modulus, of complex numbers two. Tensor cores do `share` of `int8_rate`
# multiply-adds a clock; stages come from the second-level cache. The bound is a quarter of a product more, or more
# if k is short. No card was measured: these costs are assumptions.
[time]
step = "max(128 * BN * 128 / (int8_rate * share * clock), (128 + BN) * 128 / cache_rate)"
tiles = "cdiv(size * blocks, sms) * (cdiv(k, 128) * step + generation_s)"
bound = "cdiv(blocks, sms) * (cdiv(k // max(1, min(4, k // 2048)), 128) * step + bound_s)"
memory = "(m * k + k * n + m * n) * size / memory_rate * memory_ratio"
seconds = "launch_s + max(tiles, memory) + bound"

[[presets]]
rate = 80
params = { BN = 128, STAGES = 3 }

[params]
BN = { default = 256, values = [64, 128, 256] }
BK = { default = 64, values = [64, 128] }
STAGES = { default = 4, min = 2, max = 6 }
GROUP = { default = 8, values = [1, 2, 4, 8, 16, 32] }
*/
#include "../../kernels/cuda/prelude.cuh"
#define CLUSTER 1
#include "banded_tiles.cuh"
#include "launches.cuh"
#include "residue_sums.cuh"

// A warp has 64 rows, one half of the tile, and WN columns; all threads copy PASS lines at once.
constexpr int WN = BN < 128 ? 32 : 64, THREADS = 2 * BN / WN * 32, PASS = THREADS * 16 / BK;
constexpr int MMAS_M = 64 / 16, MMAS_N = WN / 8;

// BK residues of each line. Their groups of 16 bytes are exchanged, so that those of eight lines lie in different banks.
struct Stage { unsigned char a[TILE_ROWS * BK], b[BN * BK]; };
extern __shared__ __align__(128) unsigned char memory[];

__device__ __forceinline__ int place_of(int line, int group)  // of 16 bytes, in a stage
{
    return line * BK + (group ^ line / (128 / BK) % (BK / 16)) * 16;
}

// The copies of a thread of LINES lines a stage, from line `first` of `count` on. Lines beyond are zero; k has whole stages.
template <int LINES>
struct Copies {
    static constexpr int COUNT = LINES / PASS;
    static_assert(LINES % PASS == 0, "copies cover the stage");
    const unsigned char* from;
    long long pass;  // bytes to the next line that it copies
    int to, inside;  // its first place in a stage; lines of the operand from its first one on

    __device__ __forceinline__ Copies(const unsigned char* plane, int first, int count, int pitch)
    {
        const int line = threadIdx.x / (BK / 16), group = threadIdx.x % (BK / 16);
        from = plane + (long long)(first + line) * pitch + group * 16;
        pass = (long long)PASS * pitch;
        to = place_of(line, group);
        inside = count - first - line;
    }
    __device__ __forceinline__ void copy(unsigned char* stage, int k) const
    {
        static_assert(PASS % (128 / BK * (BK / 16)) == 0, "all lines of a thread are exchanged alike");
        #pragma unroll
        for (int l = 0; l < COUNT; l++) {
            const bool is_inside = l * PASS < inside;
            copy_async_16(stage + to + l * PASS * BK, is_inside ? from + l * pass + k : from, is_inside);
        }
    }
};

__device__ __forceinline__ void multiply_add(int (&sum)[4], const unsigned (&a)[4], unsigned b_0, unsigned b_1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_0), "r"(b_1));
}

extern "C" __global__ void __launch_bounds__(THREADS, BN < 256 ? 2 : 1)
residues_mma(const unsigned char* a, const unsigned char* b, unsigned char* residues, const Line* of_a, const Line* of_b,
             int* flags, const __grid_constant__ Call call)
{
    Stage* stages = (Stage*)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, x = warp / 2 * WN;  // of the warp's tile
    const Tiles<TILE_ROWS> tiles(call.m, call.n, call.planes);
    const auto [top, left, z] = tiles.place(blockIdx.x, 0);
    let_next_launch_begin();
    wait_for_launch_before();
    if (!BOUND && are_flagged<TILE_ROWS, BN>(top, left, flags, call)) return;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    const int pitch = (call.k - 1) / 128 * 128 + 128, steps = pitch / BK;
    const Copies<TILE_ROWS> from_a(a + (long long)z * call.m * pitch, top, call.m, pitch);
    const Copies<BN> from_b(b + (long long)z * call.n * pitch, left, call.n, pitch);
    auto copy = [&](int step) {
        if (step < steps) {
            Stage& stage = stages[step % STAGES];
            from_a.copy(stage.a, step * BK);
            from_b.copy(stage.b, step * BK);
        }
        copy_async_commit();
    };
    #pragma unroll
    for (int step = 0; step < STAGES - 1; step++) copy(step);

    // ---- MULTIPLY --------------------------------------------------------------------------------------------------------
    // A fragment is four matrices of 8 lines and 16 bytes: of A of 16 rows the first half of k, then the second; of B of 8
    // columns both halves, then of the next 8.
    const int line_a = half * 64 + lane % 16, line_b = x + lane / 16 * 8 + lane % 8;
    int sum[MMAS_M][MMAS_N][4] = {};
    for (int step = 0; step < steps; step++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // all parts of this stage have arrived, and all threads have read the stage before
        copy(step + STAGES - 1);
        const Stage& stage = stages[step % STAGES];
        #pragma unroll
        for (int q = 0; q < BK / 32; q++) {
            const int at_a = place_of(line_a, 2 * q + lane / 16), at_b = place_of(line_b, 2 * q + lane / 8 % 2);
            unsigned of_a[MMAS_M][4], of_b[MMAS_N / 2][4];
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++) load_matrix_x4(of_a[r], stage.a + at_a + r * 16 * BK);
            #pragma unroll
            for (int s = 0; s < MMAS_N / 2; s++) load_matrix_x4(of_b[s], stage.b + at_b + s * 16 * BK);
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) {
                    const unsigned* b = of_b[s / 2] + s % 2 * 2;
                    multiply_add(sum[r][s], of_a[r], b[0], b[1]);
                }
        }
    }

    // ---- REGISTERS → GLOBAL ----------------------------------------------------------------------------------------------
#if BOUND
    float2* columns = (float2*)memory;  // of those of the tile
    copy_async_wait<0>();
    __syncthreads();  // all have read the last stage
    for (int i = threadIdx.x; i < BN; i += THREADS) columns[i] = loss_of_line(of_b, left + i, call.n, call);
    __syncthreads();
    bool fits = true;
    #pragma unroll
    for (int r = 0; r < MMAS_M; r++)
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = top + half * 64 + r * 16 + h * 8 + lane / 4;
            const float2 of_row = loss_of_line(of_a, row, call.m, call);
            #pragma unroll
            for (int s = 0; s < MMAS_N; s++)
                #pragma unroll
                for (int l = 0; l < 2; l++) {
                    const int at = x + s * 8 + lane % 4 * 2 + l;
                    const bool inside = row < call.m && left + at < call.n;
                    fits &= !inside || (float)sum[r][s][h * 2 + l] >= loss_of(of_row, columns[at]);
                }
        }
    static_assert(FLAGGED_COLUMNS % WN == 0, "a warp has columns of one part");
    if (!__all_sync(~0u, fits) && lane == 0)
        atomicOr(&flags[top / FLAGGED_ROWS * parts_across(call) + (left + x) / FLAGGED_COLUMNS], 1);
#else
    constexpr int CHUNKS = BN / CHUNK_COLUMNS;
    const int p = divisor_of_plane(z), inverse = inverse_of_divisor(p);
    const long long at = ((long long)z * tiles.rows + top / TILE_ROWS) * tiles.cols + left / BN;
    unsigned char* to = residues + ((at * 2 + half) * CHUNKS + x / CHUNK_COLUMNS) * CHUNK_BYTES + lane * 16;
    #pragma unroll
    for (int chunk = 0; chunk < WN / CHUNK_COLUMNS; chunk++)
        #pragma unroll
        for (int r = 0; r < MMAS_M; r++)
            *(uint4*)(to + chunk * CHUNK_BYTES + r * 512) =
                residues_of([&](int i) { return sum[r][chunk * 4 + i / 4][i % 4]; }, p, inverse);
#endif
}
