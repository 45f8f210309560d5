/*
idea = "Tensor cores multiply operands that are bfloat16 in memory: half the bytes of float32, twice as many multiply-adds in an instruction, and sums in float32."
parent = "cuda/tf32"
row = ""
entry = "bf16_tensor"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * (BM * (BK + 8) + BK * (BN + 8)) * 2"
dtypes = ["bfloat16"]
capability = "8.0"
constraints = [
    "BM % WM == 0", "BN % WN == 0", "BM // WM * (BN // WN) <= 32",
    "BM * BK % (BM // WM * (BN // WN) * 256) == 0", "BN * BK % (BM // WM * (BN // WN) * 256) == 0",
    "BM // WM * (BN // WN) * 256 % BN == 0",
    "BLOCKS * STAGES * (BM * (BK + 8) + BK * (BN + 8)) * 2 <= 232448",
]
notes = [
    "Elements are their 16 bits, unsigned short; sums are float32 in the tensor core, and C is rounded to bfloat16 once, at the end.",
    "Where rows are not aligned to 16 bytes, elements are copied through registers one by one, which is slow.",
]
tile = ["BN", "BM"]

[params]
BM = { default = 128, values = [64, 128, 256] }
BN = { default = 256, values = [64, 128, 256] }
BK = { default = 32, values = [32, 64] }
WM = { default = 64, values = [32, 64, 128] }
WN = { default = 64, values = [32, 64, 128] }
STAGES = { default = 4, min = 2, max = 6 }
BLOCKS = { default = 1, values = [1, 2, 3] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
#include "prelude.cuh"

typedef unsigned short bf16;

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;  // 2·4 warps: 256
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8, STEPS = BK / 16;                      // of a warp's tile: 4·8; of k: 2

// Rows are 16 bytes longer than a multiple of 64, so that 8 rows, 16 bytes of each, cover the 32 banks once.
struct Stage {
    bf16 a_tile[BM][BK + 8];  // 128·40 elements: 10 KiB
    bf16 b_tile[BK][BN + 8];  // 32·264 elements: 16.5 KiB; both, in four stages, 106 KiB
};

// For 128-bit accesses the matrix's address and the length of a row in bytes must be multiples of 16.
__device__ bool rows_are_aligned(const bf16* matrix, int columns)
{
    return ((unsigned long long)matrix | (unsigned long long)columns * 2) % 16 == 0;
}

// One tile of C at (top, left). If all rows are aligned, 8 elements are copied asynchronously; else each is loaded and stored.
template <bool ALIGNED>
__device__ __forceinline__ void multiply(
    const bf16* a, const bf16* b, bf16* c, int m, int n, int k, unsigned top, unsigned left, Stage* stages)
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int tiles = k > 0 ? (k - 1) / BK + 1 : 0, head = k - (tiles - 1) * BK;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    // As in register_banks: rows and columns beyond the edge repeat the last one, and the first tile is the short one.
    constexpr int A_ROWS = THREADS * 8 / BK, A_COPIES = BM / A_ROWS;  // a pass of the block over A: 64 rows; 2 passes
    constexpr int B_ROWS = THREADS * 8 / BN;                          // and over B: 8 rows; 4 passes
    const int a_step = thread * 8 % BK, a_row = thread * 8 / BK, b_step = thread * 8 / BN, b_col = thread * 8 % BN;
    const bf16* a_from[A_COPIES];
    #pragma unroll
    for (int l = 0; l < A_COPIES; l++) a_from[l] = a + (size_t)min(top + a_row + l * A_ROWS, m - 1) * k + a_step;
    const bf16* b_from = b + (size_t)b_step * n + min(left + b_col, n - 8);

    auto fetch = [&](Stage& stage, int steps) {
        #pragma unroll
        for (int l = 0; l < A_COPIES; l++) {
            const bool inside = steps == BK || a_step < steps;
            copy_async_16(&stage.a_tile[a_row + l * A_ROWS][a_step], inside ? a_from[l] : a, inside);
            a_from[l] += steps;
        }
        #pragma unroll
        for (int i = 0; i < BK; i += B_ROWS) {
            const bool inside = steps == BK || b_step + i < steps;
            copy_async_16(&stage.b_tile[b_step + i][b_col], inside ? b_from : b, inside);
            b_from += (size_t)(steps == BK ? B_ROWS : min(max(steps - i, 0), B_ROWS)) * n;  // steps rows in all
        }
    };
    auto fetch_singly = [&](Stage& stage, int tile) {
        const int steps = tile == 0 ? head : BK;
        const unsigned p = tile == 0 ? 0 : head + (tile - 1) * BK;
        #pragma unroll 2
        for (int e = thread; e < BM * BK; e += THREADS) {
            const unsigned row = min(top + e / BK, m - 1), i = e % BK;
            stage.a_tile[e / BK][i] = i < steps ? a[(size_t)row * k + p + i] : 0;
        }
        #pragma unroll 2
        for (int e = thread; e < BK * BN; e += THREADS) {
            const unsigned i = e / BN, col = min(left + e % BN, n - 1);
            stage.b_tile[i][e % BN] = i < steps ? b[(size_t)(p + i) * n + col] : 0;
        }
    };

    #pragma unroll
    for (int tile = 0; tile < STAGES; tile++) {
        if (tile < tiles) {
            if (ALIGNED) fetch(stages[tile], tile == 0 ? head : BK);
            else fetch_singly(stages[tile], tile);
        }
        copy_async_commit();
    }

    // ---- SHARED → REGISTERS ----------------------------------------------------------------------------------------------
    // load_matrix gives each lane its elements: of A, four 8×8 quarters of a 16×16 part; of B, whose rows in shared memory are
    // steps of k, the transposes of four 8×8 parts, which two instructions multiply.
    const int y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;
    unsigned of_a[2][MMAS_M][4], of_b[2][MMAS_N / 2][4];  // of this step and of the next
    auto load = [&](const Stage& stage, int i, int buffer) {
        #pragma unroll
        for (int r = 0; r < MMAS_M; r++)
            load_matrix_x4(of_a[buffer][r], &stage.a_tile[y + r * 16 + lane % 16][i * 16 + lane / 16 * 8]);
        #pragma unroll
        for (int s = 0; s < MMAS_N / 2; s++)
            load_matrix_x4_transposed(of_b[buffer][s], &stage.b_tile[i * 16 + lane % 16][x + s * 16 + lane / 16 * 8]);
    };

    copy_async_wait<STAGES - 1>();
    __syncthreads();
    if (tiles > 0) load(stages[0], 0, 0);

    // ---- MULTIPLY ----------------------------------------------------------------------------------------------------------
    float sum[MMAS_M][MMAS_N][4] = {};  // 128 registers
    int now = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int old = now;
        #pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (i == STEPS - 1) {
                copy_async_wait<STAGES - 2>();  // this thread's part of the next tile has arrived
                __syncthreads();                // and all other threads' parts; all have read this tile's last step
                if (tile + 1 < tiles) now = now + 1 == STAGES ? 0 : now + 1;
            }
            load(stages[now], (i + 1) % STEPS, (i + 1) % 2);

            #pragma unroll
            for (int r = 0; r < MMAS_M; r++)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) {
                    const unsigned(&two)[4] = of_b[i % 2][s / 2];
                    multiply_bf16(sum[r][s], of_a[i % 2][r], {two[s % 2 * 2], two[s % 2 * 2 + 1]});
                }
        }
        if (tile + STAGES < tiles) {
            if (ALIGNED) fetch(stages[old], BK);
            else fetch_singly(stages[old], tile + STAGES);
        }
        copy_async_commit();
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    // The lane holds two neighbouring elements of a row, 4 bytes together.
    const bool pairs = ((unsigned long long)c | (unsigned long long)n * 2) % 4 == 0;
    #pragma unroll
    for (int r = 0; r < 2 * MMAS_M; r++) {
        const unsigned row = top + y + r * 8 + lane / 4;
        if (row >= m) break;
        #pragma unroll
        for (int s = 0; s < MMAS_N; s++) {
            const unsigned col = left + x + s * 8 + lane % 4 * 2;
            const unsigned v = round_bf16x2(sum[r / 2][s][r % 2 * 2], sum[r / 2][s][r % 2 * 2 + 1]);
            bf16* to = c + (size_t)row * n + col;
            if (pairs && col < n) *(unsigned*)to = v;
            else {
                if (col < n) to[0] = (bf16)v;
                if (col + 1 < n) to[1] = (bf16)(v >> 16);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
bf16_tensor(const bf16* a, const bf16* b, bf16* c, int m, int n, int k)
{
    extern __shared__ __align__(16) char memory[];
    Stage* stages = (Stage*)memory;

    // Blocks are numbered down GROUP tiles, then across: those that run together share rows and columns in the L2 cache.
    const unsigned down = (m - 1) / BM + 1, across = (n - 1) / BN + 1;
    const unsigned group = blockIdx.x / (GROUP * across), place = blockIdx.x % (GROUP * across);
    const unsigned rows = min(GROUP, down - group * GROUP);
    const unsigned top = (group * GROUP + place % rows) * BM, left = place / rows * BN;

    if (rows_are_aligned(a, k) && rows_are_aligned(b, n)) multiply<true>(a, b, c, m, n, k, top, left, stages);
    else multiply<false>(a, b, c, m, n, k, top, left, stages);
}
