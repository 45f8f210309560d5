/*
idea = "A thread computes 8×16 elements of C in an order in which each multiply-add reuses an operand of the one before it, so that reads of registers do not conflict."
parent = "cuda/async_copy"
row = "S0.9, S1.20, S2"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + 4 + BN) * 4"
dtypes = ["float32"]
capability = "8.0"
adds = true
suits = "1"
constraints = [
    "BM % WM == 0", "BN % WN == 0", "WM % (2 * TM) == 0", "WN % (2 * TN) == 0", "WM // TM * (WN // TN) == 32",
    "BM // WM * (BN // WN) <= 32", "BM % (BM // WM * (BN // WN) * 4) == 0",
    "BN * BK % (BM // WM * (BN // WN) * 128) == 0",
    "BM // WM * (BN // WN) * 32 % BN * (BN % (BM // WM * (BN // WN) * 32)) == 0",
    "BM // WM * (BN // WN) * 128 % BN * (BN % (BM // WM * (BN // WN) * 128)) == 0",
    "BLOCKS * STAGES * BK * (BM + 4 + BN) * 4 <= 232448", "BLOCKS * BM * BN // (TM * TN) * (TM * TN + 56) <= 65536",
]
tile = ["BN", "BM"]

[given]
C_ALIGNED = "n % 4 == 0"
NO_STRIPS = "max(STRIPS == 0, ((m - 1) % BM >= 8) * ((n - 1) % BN >= 8))"

[formulas]
global_load_sectors = "m * n * k // 8 // BN + m * n * k // 8 // BM"

[[presets]]
rate = 100
when = "m <= 8"
params = { BM = 32, BN = 64, BK = 16, WM = 32, WN = 16, TM = 4, TN = 4, STAGES = 4, STRIPS = 0 }

[[presets]]
rate = 86
when = "cdiv(m, 128) * cdiv(n, 256) < 396"
params = { BM = 64, BN = 128, BK = 16, WM = 32, WN = 64, TM = 8, TN = 8, STAGES = 3 }

[[presets]]
rate = 70
when = "cdiv(m, 128) * cdiv(n, 256) < 396"
params = { BM = 32, BN = 64, BK = 16, WM = 32, WN = 16, TM = 4, TN = 4, STAGES = 4 }

[params]
BM = { default = 128, values = [32, 64, 128, 256] }
BN = { default = 256, values = [32, 64, 128, 256] }
BK = { default = 8, values = [8, 16, 32] }
WM = { default = 64, values = [16, 32, 64, 128] }
WN = { default = 64, values = [16, 32, 64, 128] }
TM = { default = 8, values = [4, 8, 16] }
TN = { default = 16, values = [4, 8, 16] }
STAGES = { default = 6, min = 2, max = 8 }
BLOCKS = { default = 1, values = [1, 2, 3, 4] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
STRIPS = { default = 1, values = [0, 1] }
*/
#include "edges.cuh"
#include "prelude.cuh"

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;  // 2·4 warps: 256
constexpr int LANES_M = WM / TM, LANES_N = WN / TN;                                                   // of a warp: 8·4

struct Stage {
    float a_tile[BK][BM + 4];  // transposed: 8·132 floats
    float b_tile[BK][BN];      // 8·256 floats; both together 12.125 KiB, six stages 72.75 KiB
};

// For 128-bit accesses the matrix's address and the length of a row in bytes must be multiples of 16.
__device__ bool rows_are_aligned(const float* matrix, int columns)
{
    return ((unsigned long long)matrix | (unsigned long long)columns * 4) % 16 == 0;
}

// One tile of C at (top, left). B is copied WIDTH elements at a time: 4, or 1 where its rows are not aligned.
template <int WIDTH>
__device__ __forceinline__ void multiply(
    const float* a, const float* b, float* c, int m, int n, int k, unsigned top, unsigned left, Stage* stages)
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    // Rows of A and columns of B beyond the edge repeat the last one: the elements of C that they give are not stored, and no
    // copy needs a guard. Only k must be exact, so the first tile is the short one, of 1 to BK steps: the loop below has
    // whole tiles only. A warp copies 8 steps of 4 rows of A, each to another bank; 4 such copies for each thread, and 2 of B.
    constexpr int A_ROWS = THREADS / 8, A_PASSES = BM / A_ROWS;  // a pass of the block over A: 32 rows of 8 steps; 4 passes
    constexpr int PASS = THREADS * WIDTH;                        // elements of B a pass: 1024, which are
    constexpr int B_ROWS = PASS > BN ? PASS / BN : 1;            // 4 rows (if a pass is less than a row: part of one)
    constexpr int PARTS = PASS > BN ? 1 : BN / PASS;
    const int a_step = lane % 8, a_row = thread / 8;
    const int b_step = thread * WIDTH / BN, b_col = thread * WIDTH % BN;

    const float* a_from[A_PASSES];
    #pragma unroll
    for (int l = 0; l < A_PASSES; l++)
        a_from[l] = a + (size_t)min(top + a_row + l * A_ROWS, m - 1) * k + a_step;
    const float* b_from[PARTS];
    #pragma unroll
    for (int l = 0; l < PARTS; l++)
        b_from[l] = b + (size_t)b_step * n + min(left + b_col + l * PASS, n - WIDTH);

    auto copy_b = [](float* to, const float* from, bool inside) {
        if (WIDTH == 4) copy_async_16(to, from, inside);
        else copy_async_4(to, from, inside);
    };
    // If steps is BK, as it is in the loop, the compiler knows that everything is inside.
    auto fetch = [&](Stage& stage, int steps) {
        #pragma unroll
        for (int l = 0; l < A_PASSES; l++) {
            #pragma unroll
            for (int i = 0; i < BK; i += 8) {
                const bool inside = steps == BK || a_step + i < steps;
                copy_async_4(&stage.a_tile[a_step + i][a_row + l * A_ROWS], inside ? a_from[l] + i : a, inside);
            }
            a_from[l] += steps;
        }
        #pragma unroll
        for (int i = 0; i < BK; i += B_ROWS)
            #pragma unroll
            for (int l = 0; l < PARTS; l++) {
                const bool inside = steps == BK || b_step + i < steps;
                copy_b(&stage.b_tile[b_step + i][b_col + l * PASS], inside ? b_from[l] : b, inside);
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
    // A load of 128 bits takes four passes; it takes two if every lane reads the same as its neighbour (lane ^ 1), or every
    // lane the same as the neighbour but one (lane ^ 2). So bit 0 of the lane selects columns, and bit 1 rows: the first is
    // then true for A, the second for B. With lane / 4 and lane % 4 a step cost 20 passes; this way it costs 12.
    const int lane_x = lane % 2 + lane / 4 % (LANES_N / 2) * 2, lane_y = lane / 2 % 2 + lane / 4 / (LANES_N / 2) * 2;
    const int y = warp % WARPS_M * WM + lane_y * 4, x = warp / WARPS_M * WN + lane_x * 4;
    auto row_of = [](int r) { return r / 4 * (LANES_M * 4) + r % 4; };
    auto column_of = [](int s) { return s / 4 * (LANES_N * 4) + s % 4; };

    float of_a[2][TM], of_b[2][TN];  // of this step and of the next
    const float *a_at = &stages[0].a_tile[0][y], *b_at = &stages[0].b_tile[0][x];
    // The compiler moves the loads among the multiply-adds, whatever their order. With this order it leaves three or more
    // between two loads; with A first, rising, it puts eight loads together, and the loop took 7 % longer.
    auto load = [&](int i, int buffer) {
        #pragma unroll
        for (int s = TN - 4; s >= 0; s -= 4) *(float4*)&of_b[buffer][s] = *(const float4*)(b_at + i * BN + column_of(s));
        #pragma unroll
        for (int r = 0; r < TM; r += 4) *(float4*)&of_a[buffer][r] = *(const float4*)(a_at + i * (BM + 4) + row_of(r));
    };

    copy_async_wait<STAGES - 1>();
    __syncthreads();
    if (tiles > 0) load(0, 0);

    // ---- MULTIPLY ----------------------------------------------------------------------------------------------------------
    // Unrolled by 8 steps the loop has 18 KB of instructions. By 16 it has 35 KB, 5 % of fetches missed the cache: 4 % longer.
    float sum[TM][TN] = {};  // 128 registers
    int now = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int old = now;
        #pragma unroll
        for (int i = 0; i < BK; i++) {
            if (i == BK - 1) {
                copy_async_wait<STAGES - 2>();  // this thread's part of the next tile has arrived
                __syncthreads();                // and all other threads' parts; all have read this tile's last step
                if (tile + 1 < tiles) now = now + 1 == STAGES ? 0 : now + 1;
                a_at = &stages[now].a_tile[0][y];
                b_at = &stages[now].b_tile[0][x];
            }
            load((i + 1) % BK, (i + 1) % 2);

            // A multiply-add reads three registers from two banks, even and odd, which serve one read a cycle each. So one of the
            // three must be reused from the last instruction: within a column that of B, from one column to the next that of A.
            #pragma unroll
            for (int s = 0; s < TN; s++)
                #pragma unroll
                for (int t = 0; t < TM; t++) {
                    const int r = s % 2 == 0 ? t : TM - 1 - t;
                    sum[r][s] += of_a[i % 2][r] * of_b[i % 2][s];
                }
        }
        if (tile + STAGES < tiles) fetch(stages[old], BK);
        copy_async_commit();
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    // The other two must lie in different banks: sum[r][s] not in that of A's r, so a whole row in one bank. But the four numbers
    // that one instruction stores lie in consecutive registers, two in either bank. So copies are stored, and the compiler must
    // not see that they are copies: zero is 0 because k is not negative, which the compiler does not know.
    const int zero = k >> 31;
    const bool c_aligned = C_ALIGNED || rows_are_aligned(c, n);
    #pragma unroll
    for (int r = 0; r < TM; r++) {
        const unsigned row = top + y + row_of(r);
        if (row >= m) break;
        #pragma unroll
        for (int s = 0; s < TN; s += 4) {
            const unsigned col = left + x + column_of(s);
            float* to = c + (size_t)row * n + col;
            float v[4];
            #pragma unroll
            for (int j = 0; j < 4; j++) v[j] = __int_as_float(__float_as_int(sum[r][s + j]) ^ zero);
            if (c_aligned) {
                if (col < n) store((float4*)to, make_float4(v[0], v[1], v[2], v[3]));
            } else
                #pragma unroll
                for (int j = 0; j < 4; j++)
                    if (col + j < n) store(&to[j], v[j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
register_banks(const float* a, const float* b, float* c, int m, int n, int k)
{
    extern __shared__ __align__(16) char memory[];
    if (ACCUMULATE && k == 0) return;  // C stays unchanged, also its −0

    // Strips (see edges.cuh) come last: they are short, and fill multiprocessors that the last whole tiles leave idle.
    // If all of C is one strip, STRIPS = 0 is better: one thread for each column, along all of k, has too few loads under way.
    const int thin = STRIPS && !NO_STRIPS ? THIN : 0;
    const unsigned down = (m - 1 - thin + BM) / BM, across = (n - 1 - thin + BN) / BN;
    if (!NO_STRIPS && blockIdx.x >= down * across) {
        const unsigned strip = blockIdx.x - down * across, of_rows = m > down * BM ? (n - 1) / BN + 1 : 0;
        const int top = (strip < of_rows ? down : strip - of_rows) * BM, left = (strip < of_rows ? strip : across) * BN;
        a += (size_t)top * k, b += left, c += (size_t)top * n + left;
        if (strip < of_rows) multiply_rows<THREADS>(a, b, c, m - top, min(n - left, BN), n, k);
        else multiply_columns<THREADS>(a, b, c, min(m - top, BM), n - left, n, k);
        return;
    }

    // Blocks that run together should share rows of A and columns of B in the second-level cache: they are numbered down
    // GROUP tiles, then across. Of 8192×8192, 132 at a time read 8·128 rows and 17·256 columns; in row order, 5·128 and 32·256.
    const unsigned group = blockIdx.x / (GROUP * across), place = blockIdx.x % (GROUP * across);
    const unsigned rows = min(GROUP, down - group * GROUP);
    const unsigned top = (group * GROUP + place % rows) * BM, left = place / rows * BN;

    if (rows_are_aligned(b, n)) multiply<4>(a, b, c, m, n, k, top, left, (Stage*)memory);
    else multiply<1>(a, b, c, m, n, k, top, left, (Stage*)memory);
}
