/*
idea = "Tensor cores multiply float32 numbers that are rounded from 23 to 10 bits of fraction (TF32), at several times the rate of float32."
parent = "cuda/register_banks"
row = ""
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * (BM * (BK + 4) + BK * (BN + 8)) * 4"
dtypes = ["float32"]
capability = "8.0"
constraints = [
    "BM % WM == 0", "BN % WN == 0", "BM // WM * (BN // WN) <= 32",
    "BM * BK % (BM // WM * (BN // WN) * 128) == 0", "BN * BK % (BM // WM * (BN // WN) * 128) == 0",
    "BM // WM * (BN // WN) * 32 % BN * (BN % (BM // WM * (BN // WN) * 32)) == 0",
    "BM // WM * (BN // WN) * 128 % BN * (BN % (BM // WM * (BN // WN) * 128)) == 0",
    "BLOCKS * STAGES * (BM * (BK + 4) + BK * (BN + 8)) * 4 <= 232448",
]
notes = ["Operands are rounded to TF32, products are exact, sums are the tensor core's: the result does not have the accuracy of float32."]
tile = ["BN", "BM"]
precision = "tf32"

[params]
BM = { default = 128, values = [64, 128, 256] }
BN = { default = 256, values = [64, 128, 256] }
BK = { default = 32, values = [16, 32] }
WM = { default = 64, values = [32, 64, 128] }
WN = { default = 64, values = [32, 64, 128] }
STAGES = { default = 4, min = 2, max = 6 }
BLOCKS = { default = 1, values = [1, 2, 3] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
#include "prelude.cuh"

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;  // 2·4 warps: 256
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8, STEPS = BK / 8;                       // of a warp's tile: 4·8; of k: 4

struct Stage {
    float a_tile[BM][BK + 4];  // 128·36 floats: 18 KiB
    float b_tile[BK][BN + 8];  // 32·264 floats: 33 KiB; both, in four stages, 204 KiB
};

// For 128-bit accesses the matrix's address and the length of a row in bytes must be multiples of 16.
__device__ bool rows_are_aligned(const float* matrix, int columns)
{
    return ((unsigned long long)matrix | (unsigned long long)columns * 4) % 16 == 0;
}

// One tile of C at (top, left). A is copied A_WIDTH elements at a time, B B_WIDTH: 4, or 1 where rows are not aligned.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(
    const float* a, const float* b, float* c, int m, int n, int k, unsigned top, unsigned left, Stage* stages)
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    // As in register_banks: rows and columns beyond the edge repeat the last one, and the first tile is the short one.
    constexpr int A_ROWS = THREADS * A_WIDTH / BK, A_COPIES = BM / A_ROWS;  // a pass of the block over A: 32 rows; 4 passes
    constexpr int PASS = THREADS * B_WIDTH;                                 // elements of B a pass: 1024, which are
    constexpr int B_ROWS = PASS > BN ? PASS / BN : 1;                       // 4 rows (if a pass is less than a row: part of one)
    constexpr int PARTS = PASS > BN ? 1 : BN / PASS;
    const int a_step = thread * A_WIDTH % BK, a_row = thread * A_WIDTH / BK;
    const int b_step = thread * B_WIDTH / BN, b_col = thread * B_WIDTH % BN;

    const float* a_from[A_COPIES];
    #pragma unroll
    for (int l = 0; l < A_COPIES; l++)
        a_from[l] = a + (size_t)min(top + a_row + l * A_ROWS, m - 1) * k + a_step;
    const float* b_from[PARTS];
    #pragma unroll
    for (int l = 0; l < PARTS; l++)
        b_from[l] = b + (size_t)b_step * n + min(left + b_col + l * PASS, n - B_WIDTH);

    // If steps is BK, as it is in the loop, the compiler knows that everything is inside.
    auto fetch = [&](Stage& stage, int steps) {
        #pragma unroll
        for (int l = 0; l < A_COPIES; l++) {
            const bool inside = steps == BK || a_step < steps;
            float* to = &stage.a_tile[a_row + l * A_ROWS][a_step];
            if (A_WIDTH == 4) copy_async_16(to, inside ? a_from[l] : a, inside);
            else copy_async_4(to, inside ? a_from[l] : a, inside);
            a_from[l] += steps;
        }
        #pragma unroll
        for (int i = 0; i < BK; i += B_ROWS)
            #pragma unroll
            for (int l = 0; l < PARTS; l++) {
                const bool inside = steps == BK || b_step + i < steps;
                float* to = &stage.b_tile[b_step + i][b_col + l * PASS];
                if (B_WIDTH == 4) copy_async_16(to, inside ? b_from[l] : b, inside);
                else copy_async_4(to, inside ? b_from[l] : b, inside);
                b_from[l] += (size_t)(steps == BK ? B_ROWS : min(max(steps - i, 0), B_ROWS)) * n;  // steps rows in all
            }
    };

    const int tiles = k > 0 ? (k - 1) / BK + 1 : 0;
    #pragma unroll
    for (int tile = 0; tile < STAGES; tile++) {
        if (tile < tiles) fetch(stages[tile], tile == 0 ? k - (tiles - 1) * BK : BK);
        copy_async_commit();
    }

    // ---- SHARED → REGISTERS ----------------------------------------------------------------------------------------------
    // With g = lane / 4 and t = lane % 4 the instruction needs from the lane steps t and t + 4 of k, of rows g and g + 8 of A
    // and of column g of B. load_matrix loads A: 8 rows of 4 floats, 36 apart, in place of 8 rows of 8 halves. Any column of B
    // may serve as column g, if C's is stored to the same column: the columns g of four instructions are columns
    // 4·g … 4·g + 3, one load of 128 bits. The 8 lanes served together read 4 rows of 8 floats, 264 apart: each of 32 banks once.
    const int g = lane / 4, t = lane % 4, y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;

    unsigned of_a[2][MMAS_M][4], of_b[2][MMAS_N][2];  // of this step and of the next
    auto load = [&](const Stage& stage, int i, int buffer) {
        #pragma unroll
        for (int r = 0; r < MMAS_M; r++)
            load_matrix_x4(of_a[buffer][r], &stage.a_tile[y + r * 16 + lane % 16][i * 8 + lane / 16 * 4]);
        #pragma unroll
        for (int s = 0; s < MMAS_N; s += 4)
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint4 v = *(const uint4*)&stage.b_tile[i * 8 + j * 4 + t][x + s * 8 + g * 4];
                of_b[buffer][s + 0][j] = v.x;
                of_b[buffer][s + 1][j] = v.y;
                of_b[buffer][s + 2][j] = v.z;
                of_b[buffer][s + 3][j] = v.w;
            }
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
            for (int s = 0; s < MMAS_N; s++)
                #pragma unroll
                for (int j = 0; j < 2; j++) of_b[i % 2][s][j] = round_tf32(__uint_as_float(of_b[i % 2][s][j]));
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++) {
                #pragma unroll
                for (int j = 0; j < 4; j++) of_a[i % 2][r][j] = round_tf32(__uint_as_float(of_a[i % 2][r][j]));
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) multiply_tf32(sum[r][s], of_a[i % 2][r], of_b[i % 2][s]);
            }
        }
        if (tile + STAGES < tiles) fetch(stages[old], BK);
        copy_async_commit();
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    // The lane holds columns 2·t and 2·t + 1 of four instructions, which are columns 8·t … 8·t + 7 of C.
    const bool c_aligned = rows_are_aligned(c, n);
    #pragma unroll
    for (int r = 0; r < 2 * MMAS_M; r++) {
        const unsigned row = top + y + r * 8 + g;
        if (row >= m) break;
        #pragma unroll
        for (int s = 0; s < MMAS_N; s += 4)
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned col = left + x + s * 8 + t * 8 + h * 4;
                float *to = c + (size_t)row * n + col, v[4];
                #pragma unroll
                for (int j = 0; j < 4; j++) v[j] = sum[r / 2][s + j][r % 2 * 2 + h];
                if (c_aligned) {
                    if (col < n) *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
                } else
                    #pragma unroll
                    for (int j = 0; j < 4; j++)
                        if (col + j < n) to[j] = v[j];
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tf32(const float* a, const float* b, float* c, int m, int n, int k)
{
    extern __shared__ __align__(16) char memory[];
    Stage* stages = (Stage*)memory;

    // Blocks are numbered down GROUP tiles, then across: those that run together share rows and columns in the L2 cache.
    const unsigned down = (m - 1) / BM + 1, across = (n - 1) / BN + 1;
    const unsigned group = blockIdx.x / (GROUP * across), place = blockIdx.x % (GROUP * across);
    const unsigned rows = min(GROUP, down - group * GROUP);
    const unsigned top = (group * GROUP + place % rows) * BM, left = place / rows * BN;

    const bool a_aligned = rows_are_aligned(a, k), b_aligned = rows_are_aligned(b, n);
    if (a_aligned && b_aligned) multiply<4, 4>(a, b, c, m, n, k, top, left, stages);
    else if (a_aligned) multiply<4, 1>(a, b, c, m, n, k, top, left, stages);
    else if (b_aligned) multiply<1, 4>(a, b, c, m, n, k, top, left, stages);
    else multiply<1, 1>(a, b, c, m, n, k, top, left, stages);
}
