/*
idea = "A thread computes COLS consecutive elements of a row of C: all of them use the same element of A, and one wide load reads the elements of B."
parent = "cuda/shared_tile"
row = "S2, S4"
block = ["BN // COLS", "BM"]
grid = ["cdiv(n, BN)", "min(cdiv(m, BM), 65535)"]
dtypes = ["float32"]
capability = "5.0"
constraints = ["BN % COLS == 0", "BM * BN // COLS <= 1024", "BM * BN // COLS >= 32", "BM * BK % (BM * BN // COLS) == 0", "BK * BN % (BM * BN // COLS) == 0", "(BM + BN) * BK * 4 <= 49152"]
tile = ["BN", "BM"]

[formulas]
global_load_sectors = "m * n * k // 8 // BN + m * n * k // 8 // BM"

[params]
BM = { default = 32, values = [16, 32, 64, 128] }
BN = { default = 128, values = [32, 64, 128, 256] }
BK = { default = 32, values = [8, 16, 32] }
COLS = { default = 4, values = [2, 4, 8, 16] }
*/

constexpr int THREADS = BN / COLS * BM;  // 128/4 · 32 = 1024

// The compiler may use no more registers than a block of this size can have.
extern "C" __global__ void __launch_bounds__(THREADS)
thread_columns(const float* a, const float* b, float* c, int m, int n, int k)
{
    // Aligned to 16 bytes, so that the compiler can read 4 consecutive elements by one instruction.
    __shared__ __align__(16) float a_tile[BM][BK];  // 32·32 floats: 4 KiB
    __shared__ __align__(16) float b_tile[BK][BN];  // 32·128 floats: 16 KiB
    const int x = threadIdx.x, y = threadIdx.y, thread = y * (BN / COLS) + x;
    const long long left = (long long)blockIdx.x * BN;

    // A grid holds at most 65,535 blocks along y; a matrix with more rows is walked in steps of the grid. The whole block
    // takes the same steps: a thread that left early would be missing at the barriers.
    for (long long top = (long long)blockIdx.y * BM; top < m; top += (long long)gridDim.y * BM) {
        float sum[COLS] = {};

        for (long long p = 0; p < k; p += BK) {
            // The tiles do not have the block's shape: threads copy them element by element, neighbouring threads along a row.
            #pragma unroll
            for (int e = 0; e < BM * BK; e += THREADS) {
                const int row = (e + thread) / BK, i = (e + thread) % BK;
                a_tile[row][i] = top + row < m && p + i < k ? a[(top + row) * k + p + i] : 0;
            }
            #pragma unroll
            for (int e = 0; e < BK * BN; e += THREADS) {
                const int i = (e + thread) / BN, col = (e + thread) % BN;
                b_tile[i][col] = p + i < k && left + col < n ? b[(p + i) * n + left + col] : 0;
            }
            __syncthreads();  // the tiles are complete before any thread reads them

            // The rows of a thread (rung 4) cost a load each; its columns are adjacent, and 4 of them are one load of 128 bits.
            #pragma unroll
            for (int i = 0; i < BK; i++) {
                const float of_a = a_tile[y][i];
                #pragma unroll
                for (int j = 0; j < COLS; j++)
                    sum[j] += of_a * b_tile[i][x * COLS + j];
            }
            __syncthreads();  // all threads have read the tiles before the next ones overwrite them
        }

        const long long row = top + y, col = left + x * COLS;
        #pragma unroll
        for (int j = 0; j < COLS; j++)
            if (row < m && col + j < n) c[row * n + col + j] = sum[j];
    }
}
