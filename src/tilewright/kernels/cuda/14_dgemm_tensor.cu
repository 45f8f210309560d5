/*
idea = "Tensor cores multiply float64 too: a warp computes 16×8 elements of C over MMA_K steps of k with one instruction, and copies run ahead as in cuda/register_banks."
parent = "cuda/dgemm_column"
row = "S3"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * (BM * (BK + 4) + BK * (BN + 4)) * 8"
dtypes = ["float64"]
capability = "8.0"
adds = true
suits = "1"
constraints = [
    "BM % WM == 0", "BN % WN == 0", "BM // WM * (BN // WN) <= 32", "BK % (2 * MMA_K) == 0",
    "BM * BK % (BM // WM * (BN // WN) * 64) == 0", "BN * BK % (BM // WM * (BN // WN) * 64) == 0",
    "BM // WM * (BN // WN) * 32 % BN * (BN % (BM // WM * (BN // WN) * 32)) == 0",
    "BM // WM * (BN // WN) * 64 % BN * (BN % (BM // WM * (BN // WN) * 64)) == 0",
    "BLOCKS * STAGES * (BM * (BK + 4) + BK * (BN + 4)) * 8 <= 232448",
]
tile = ["BN", "BM"]
notes = [
    "Small tiles, so that a multiprocessor holds four blocks: one multiplies while another waits at its barrier. 128×128 with MMA_K=8 is faster on a cool card, and draws more power.",
]

[formulas]
global_load_sectors = "m * n * k // 4 // BN + m * n * k // 4 // BM"

[[presets]]
rate = 105
when = "cdiv(m, 64) * cdiv(n, 64) < 800"
params = { WM = 32, WN = 32 }

[[presets]]
rate = 94
when = "cdiv(m, 64) * cdiv(n, 64) < 800"
params = { BN = 32, WM = 32, WN = 16, MMA_K = 8, STAGES = 4 }

[[presets]]
rate = 75
when = "cdiv(m, 64) * cdiv(n, 64) < 800"
params = { BM = 32, BN = 32, BK = 32, WM = 16, WN = 16, MMA_K = 8, STAGES = 4 }

[params]
BM = { default = 64, values = [32, 64, 128, 256] }
BN = { default = 64, values = [32, 64, 128, 256] }
BK = { default = 16, values = [16, 32] }
WM = { default = 32, values = [16, 32, 64] }
WN = { default = 64, values = [16, 32, 64] }
MMA_K = { default = 4, values = [4, 8, 16] }
STAGES = { default = 3, min = 2, max = 6 }
BLOCKS = { default = 1, values = [1, 2, 3] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
#include "prelude.cuh"

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;  // by default 2·1 warps: 64 threads
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8;                                       // MMAs of a warp's tile: 2·8
constexpr int STEPS = BK / MMA_K;                                                      // MMAs along k of a tile: 16/4 = 4

struct Stage {
    double a_tile[BM][BK + 4];  // 64·20 doubles: 10 KiB
    double b_tile[BK][BN + 4];  // 16·68 doubles: 8.5 KiB; both, in three stages, 55.5 KiB: four blocks
};

// For 128-bit accesses the matrix's address and the length of a row in bytes must be multiples of 16.
__device__ bool rows_are_aligned(const double* matrix, int columns)
{
    return ((unsigned long long)matrix | (unsigned long long)columns * 8) % 16 == 0;
}

// One tile of C at (top, left). A is copied A_WIDTH elements at a time, B B_WIDTH: 2, or 1 where rows are not aligned.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(
    const double* a, const double* b, double* c, int m, int n, int k, unsigned top, unsigned left, Stage* stages)
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    // As in register_banks: rows and columns beyond the edge repeat the last one, and along k the first tile is the short one.
    constexpr int A_ROWS = THREADS * A_WIDTH / BK, A_COPIES = BM / A_ROWS;  // a pass of the block copies 8 rows of A: 8 passes
    constexpr int PASS = THREADS * B_WIDTH;                                 // elements of B that a pass copies: 128
    constexpr int B_ROWS = PASS > BN ? PASS / BN : 1;                       // rows a pass: 2; 1 if a row takes several passes
    constexpr int PARTS = PASS > BN ? 1 : BN / PASS;
    const int a_step = thread * A_WIDTH % BK, a_row = thread * A_WIDTH / BK;
    const int b_step = thread * B_WIDTH / BN, b_col = thread * B_WIDTH % BN;

    const double* a_from[A_COPIES];
    #pragma unroll
    for (int l = 0; l < A_COPIES; l++)
        a_from[l] = a + (size_t)min(top + a_row + l * A_ROWS, m - 1) * k + a_step;
    const double* b_from[PARTS];
    #pragma unroll
    for (int l = 0; l < PARTS; l++)
        b_from[l] = b + (size_t)b_step * n + min(left + b_col + l * PASS, n - B_WIDTH);

    // If steps is BK, as it is in the loop, the compiler knows that everything is inside.
    auto fetch = [&](Stage& stage, int steps) {
        #pragma unroll
        for (int l = 0; l < A_COPIES; l++) {
            const bool inside = steps == BK || a_step < steps;
            double* to = &stage.a_tile[a_row + l * A_ROWS][a_step];
            if (A_WIDTH == 2) copy_async_16(to, inside ? a_from[l] : a, inside);
            else copy_async_8(to, inside ? a_from[l] : a, inside);
            a_from[l] += steps;
        }
        #pragma unroll
        for (int i = 0; i < BK; i += B_ROWS)
            #pragma unroll
            for (int l = 0; l < PARTS; l++) {
                const bool inside = steps == BK || b_step + i < steps;
                double* to = &stage.b_tile[b_step + i][b_col + l * PASS];
                if (B_WIDTH == 2) copy_async_16(to, inside ? b_from[l] : b, inside);
                else copy_async_8(to, inside ? b_from[l] : b, inside);
                b_from[l] += (size_t)(steps == BK ? B_ROWS : min(max(steps - i, 0), B_ROWS)) * n;  // in all, `steps` rows
            }
    };

    const int tiles = k > 0 ? (k - 1) / BK + 1 : 0;
    #pragma unroll
    for (int tile = 0; tile < STAGES; tile++) {
        if (tile < tiles) fetch(stages[tile], tile == 0 ? k - (tiles - 1) * BK : BK);
        copy_async_commit();
    }

    // ---- SHARED → REGISTERS ----------------------------------------------------------------------------------------------
    // With g = lane / 4 and t = lane % 4: for every 4 steps of k the instruction takes three elements from each lane, all at step
    // t: those of rows g and g + 8 of A, and that of column g of B. A load of 64 bits serves half a warp at a time: 4 rows of 4
    // doubles, which cover the banks once if rows lie 4 doubles more than a multiple of 16 apart: they lie 20 and 68 apart.
    const int g = lane / 4, t = lane % 4, y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;

    double of_a[2][MMAS_M][MMA_K / 2], of_b[2][MMAS_N][MMA_K / 4];  // of this step and of the next
    const double *a_at = &stages[0].a_tile[y + g][t], *b_at = &stages[0].b_tile[t][x + g];
    auto load = [&](int i, int buffer) {
        #pragma unroll
        for (int j = 0; j < MMA_K / 4; j++) {
            #pragma unroll
            for (int r = 0; r < 2 * MMAS_M; r++)
                of_a[buffer][r / 2][2 * j + r % 2] = a_at[r * 8 * (BK + 4) + i * MMA_K + 4 * j];
            #pragma unroll
            for (int s = 0; s < MMAS_N; s++)
                of_b[buffer][s][j] = b_at[(i * MMA_K + 4 * j) * (BN + 4) + s * 8];
        }
    };

    copy_async_wait<STAGES - 1>();
    __syncthreads();
    if (tiles > 0) load(0, 0);

    // ---- MULTIPLY ----------------------------------------------------------------------------------------------------------
    double sum[MMAS_M][MMAS_N][4] = {};  // 64 doubles: 128 registers
    int now = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int old = now;
        #pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (i == STEPS - 1) {
                copy_async_wait<STAGES - 2>();  // this thread's part of the next tile has arrived
                __syncthreads();                // and all other threads' parts; all have read this tile's last step
                if (tile + 1 < tiles) now = now + 1 == STAGES ? 0 : now + 1;
                a_at = &stages[now].a_tile[y + g][t];
                b_at = &stages[now].b_tile[t][x + g];
            }
            load((i + 1) % STEPS, (i + 1) % 2);

            #pragma unroll
            for (int r = 0; r < MMAS_M; r++)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++)
                    multiply_f64(sum[r][s], of_a[i % 2][r], of_b[i % 2][s]);
        }
        if (tile + STAGES < tiles) fetch(stages[old], BK);
        copy_async_commit();
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    const bool c_aligned = rows_are_aligned(c, n);
    #pragma unroll
    for (int r = 0; r < 2 * MMAS_M; r++) {
        const unsigned row = top + y + r * 8 + g;
        if (row >= m) break;
        #pragma unroll
        for (int s = 0; s < MMAS_N; s++) {
            const unsigned col = left + x + s * 8 + 2 * t;
            const double *v = &sum[r / 2][s][r % 2 * 2];
            double* to = c + (size_t)row * n + col;
            if (c_aligned && col < n) store((double2*)to, make_double2(v[0], v[1]));
            else {
                if (col < n) store(&to[0], v[0]);
                if (col + 1 < n) store(&to[1], v[1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dgemm_tensor(const double* a, const double* b, double* c, int m, int n, int k)
{
    extern __shared__ __align__(16) char memory[];
    Stage* stages = (Stage*)memory;
    if (ACCUMULATE && k == 0) return;  // C stays unchanged, also its −0

    // Blocks are numbered down GROUP tiles, then across: those that run together share rows and columns in the L2 cache.
    const unsigned down = (m - 1) / BM + 1, across = (n - 1) / BN + 1;
    const unsigned group = blockIdx.x / (GROUP * across), place = blockIdx.x % (GROUP * across);
    const unsigned rows = min(GROUP, down - group * GROUP);
    const unsigned top = (group * GROUP + place % rows) * BM, left = place / rows * BN;

    const bool a_aligned = rows_are_aligned(a, k), b_aligned = rows_are_aligned(b, n);
    if (a_aligned && b_aligned) multiply<2, 2>(a, b, c, m, n, k, top, left, stages);
    else if (a_aligned) multiply<2, 1>(a, b, c, m, n, k, top, left, stages);
    else if (b_aligned) multiply<1, 2>(a, b, c, m, n, k, top, left, stages);
    else multiply<1, 1>(a, b, c, m, n, k, top, left, stages);
}
