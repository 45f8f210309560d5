/*
idea = "Asynchronous copies bring tiles from global to shared memory several tiles ahead, without using registers."
parent = "cuda/warp_tile"
row = "S1.20, S4"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + 4 + BN) * 4"
dtypes = ["float32"]
capability = "8.0"
constraints = ["BM % WM == 0", "BN % WN == 0", "WM % TM == 0", "WN % TN == 0", "WM // TM * (WN // TN) == 32", "BM // WM * (BN // WN) <= 32", "BM * BK % (BM // WM * (BN // WN) * 32) == 0", "BK * BN // 4 % (BM // WM * (BN // WN) * 32) == 0", "STAGES * BK * (BM + 4 + BN) * 4 <= 232448"]
notes = [
    "Slower than its parent: copies of 4 bytes transpose A, with four times as many instructions. It saves registers and waits, which the next rung uses.",
]
tile = ["BN", "BM"]

[formulas]
global_load_sectors = "m * n * k // 8 // BN + m * n * k // 8 // BM"

[params]
BM = { default = 128, values = [32, 64, 128, 256] }
BN = { default = 128, values = [32, 64, 128, 256] }
BK = { default = 8, values = [8, 16, 32] }
WM = { default = 32, values = [16, 32, 64, 128] }
WN = { default = 64, values = [16, 32, 64, 128] }
TM = { default = 8, values = [4, 8, 16] }
TN = { default = 8, values = [4, 8, 16] }
STAGES = { default = 4, min = 2, max = 8 }
*/
#include "prelude.cuh"

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;  // 4·2 warps: 256
constexpr int LANES_M = WM / TM, LANES_N = WN / TN;                                    // of a warp: 4·8
constexpr int BLOCKS = THREADS < 512 && TM * TN <= 64 ? 512 / THREADS : 1;  // blocks on a multiprocessor at once: 2

struct Stage {
    float a_tile[BK][BM + 4];  // transposed: 8·132 floats
    float b_tile[BK][BN];      // 8·128 floats; both together 8.1 KiB, four stages 32.5 KiB
};

// For 128-bit accesses the matrix's address and the length of a row in bytes must be multiples of 16.
__device__ bool rows_are_aligned(const float* matrix, int columns)
{
    return ((unsigned long long)matrix | (unsigned long long)columns * 4) % 16 == 0;
}

__device__ void store4(float* row, unsigned column, int columns, bool aligned, const float* v)
{
    if (aligned && column < columns) *(float4*)(row + column) = make_float4(v[0], v[1], v[2], v[3]);
    else
        for (int i = 0; i < 4; i++)
            if (column + i < columns) row[column + i] = v[i];
}

// A multiprocessor has 65,536 registers: 128 for each of 512 threads.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
async_copy(const float* a, const float* b, float* c, int m, int n, int k)
{
    extern __shared__ __align__(16) char memory[];
    Stage* stages = (Stage*)memory;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const bool b_aligned = rows_are_aligned(b, n), c_aligned = rows_are_aligned(c, n);

    // A thread's first row and column in the block's tile, and its quads of rows and columns, as in warp_tile.
    const int y = warp / WARPS_N * WM + lane / LANES_N * 4, x = warp % WARPS_N * WN + lane % LANES_N * 4;
    auto row_of = [](int r) { return r / 4 * (LANES_M * 4) + r % 4; };
    auto column_of = [](int s) { return s / 4 * (LANES_N * 4) + s % 4; };

    const int across = (n - 1) / BN + 1, tiles = k > 0 ? (k - 1) / BK + 1 : 0;
    const unsigned top = blockIdx.x / across * BM, left = blockIdx.x % across * BN;
    float sum[TM][TN] = {};  // 64 registers

    // A copy of 4 bytes may go anywhere, so it transposes A at no cost: a warp copies 8 of k by 4 rows, each to another bank.
    // Beyond the edge nothing is read, and zeros are copied.
    auto fetch = [&](int tile) {
        Stage& stage = stages[tile % STAGES];
        const unsigned p = (unsigned)tile * BK;
        #pragma unroll 2  // more would take registers for their addresses
        for (int e = 0; e < BM * BK; e += THREADS) {
            const int row = (e + thread) / BK, i = (e + thread) % BK;
            const bool inside = top + row < m && p + i < k;
            copy_async_4(&stage.a_tile[i][row], inside ? a + (size_t)(top + row) * k + p + i : a, inside);
        }
        #pragma unroll
        for (int e = 0; e < BK * BN; e += THREADS * 4) {
            const int i = (e + thread * 4) / BN, col = (e + thread * 4) % BN;
            const float* from = b + (size_t)(p + i) * n + left + col;
            if (b_aligned) {
                const bool inside = p + i < k && left + col < n;
                copy_async_16(&stage.b_tile[i][col], inside ? from : b, inside);
            } else
                for (int j = 0; j < 4; j++) {
                    const bool inside = p + i < k && left + col + j < n;
                    copy_async_4(&stage.b_tile[i][col + j], inside ? from + j : b, inside);
                }
        }
    };

    #pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < tiles) fetch(tile);
        copy_async_commit();  // one group for each tile, also if there is none: so the count below is right
    }

    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();  // of the STAGES - 1 tiles under way, the oldest has arrived: this thread's part
        __syncthreads();                // and all others' parts; all have read the last tile, whose stage is next
        if (tile + STAGES - 1 < tiles) fetch(tile + STAGES - 1);
        copy_async_commit();

        const Stage& stage = stages[tile % STAGES];
        #pragma unroll
        for (int i = 0; i < BK; i++) {
            float of_a[TM], of_b[TN];
            #pragma unroll
            for (int r = 0; r < TM; r += 4) *(float4*)&of_a[r] = *(const float4*)&stage.a_tile[i][y + row_of(r)];
            #pragma unroll
            for (int s = 0; s < TN; s += 4) *(float4*)&of_b[s] = *(const float4*)&stage.b_tile[i][x + column_of(s)];
            #pragma unroll
            for (int r = 0; r < TM; r++)
                #pragma unroll
                for (int s = 0; s < TN; s++) sum[r][s] += of_a[r] * of_b[s];
        }
    }

    #pragma unroll
    for (int r = 0; r < TM; r++)
        #pragma unroll
        for (int s = 0; s < TN; s += 4) {
            const unsigned row = top + y + row_of(r);
            store4(c + (size_t)row * n, left + x + column_of(s), row < m ? n : 0, c_aligned, &sum[r][s]);
        }
}
