/*
idea = "A thread computes a TM×TN tile of C: at each step of k it reads TM + TN elements from shared memory for TM·TN multiply-adds."
parent = "cuda/thread_columns"
row = "S1.18, S2, S4"
block = ["BN // TN", "BM // TM"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
dtypes = ["float32"]
capability = "5.0"
constraints = ["BM % TM == 0", "BN % TN == 0", "BM // TM * (BN // TN) <= 1024", "BM // TM * (BN // TN) >= 32", "BM * BK % (BM // TM * (BN // TN)) == 0", "BK * BN % (BM // TM * (BN // TN)) == 0", "(BM + BN) * BK * 4 <= 49152"]
notes = ["S1.18 and S2 have 4×4 elements a thread and BK = 32: BM=128, BN=128, BK=32, TM=4, TN=4."]
tile = ["BN", "BM"]

[formulas]
global_load_sectors = "m * n * k // 8 // BN + m * n * k // 8 // BM"

[params]
BM = { default = 128, values = [32, 64, 128] }
BN = { default = 128, values = [32, 64, 128] }
BK = { default = 16, values = [8, 16, 32] }
TM = { default = 8, values = [4, 8] }
TN = { default = 8, values = [4, 8] }
*/

constexpr int THREADS = BM / TM * (BN / TN);               // 128/8 · 128/8 = 256
constexpr int BLOCKS = THREADS < 512 ? 512 / THREADS : 1;  // blocks on a multiprocessor at once: 2

// A multiprocessor has 65,536 registers: 128 for each of 512 threads. Without a limit the compiler takes a few more, and only one
// block fits instead of two.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
thread_tile(const float* a, const float* b, float* c, int m, int n, int k)
{
    // Aligned to 16 bytes, so that the compiler can read 4 consecutive elements by one instruction.
    __shared__ __align__(16) float a_tile[BM][BK];  // 128·16 floats: 8 KiB
    __shared__ __align__(16) float b_tile[BK][BN];
    const int x = threadIdx.x, y = threadIdx.y, thread = y * (BN / TN) + x;

    // Blocks are numbered along x alone, where a grid has room for 2³¹ of them: more tiles than any C in memory has.
    const int across = (n - 1) / BN + 1;
    const unsigned top = blockIdx.x / across * BM, left = blockIdx.x % across * BN;
    float sum[TM][TN] = {};  // 64 registers

    for (unsigned p = 0; p < k; p += BK) {
        // Two elements of a tile at a time: more, with their addresses, do not fit in registers beside the sums.
        #pragma unroll 2
        for (int e = 0; e < BM * BK; e += THREADS) {
            const int row = (e + thread) / BK, i = (e + thread) % BK;
            a_tile[row][i] = top + row < m && p + i < k ? a[(size_t)(top + row) * k + p + i] : 0;
        }
        #pragma unroll 2
        for (int e = 0; e < BK * BN; e += THREADS) {
            const int i = (e + thread) / BN, col = (e + thread) % BN;
            b_tile[i][col] = p + i < k && left + col < n ? b[(size_t)(p + i) * n + left + col] : 0;
        }
        __syncthreads();  // the tiles are complete before any thread reads them

        // A step is an outer product: 8 + 8 elements for 64 multiply-adds, a quarter of an element each; it was 1.25 with 4
        // columns a thread. From global memory the block reads each element of A once for 128 columns, and B for 128 rows.
        // Unrolled by 2 only, for the same reason.
        #pragma unroll 2
        for (int i = 0; i < BK; i++) {
            float of_a[TM], of_b[TN];
            #pragma unroll
            for (int r = 0; r < TM; r++) of_a[r] = a_tile[y * TM + r][i];
            #pragma unroll
            for (int s = 0; s < TN; s++) of_b[s] = b_tile[i][x * TN + s];
            #pragma unroll
            for (int r = 0; r < TM; r++)
                #pragma unroll
                for (int s = 0; s < TN; s++) sum[r][s] += of_a[r] * of_b[s];
        }
        __syncthreads();  // all threads have read the tiles before the next ones overwrite them
    }

    #pragma unroll
    for (int r = 0; r < TM; r++)
        #pragma unroll
        for (int s = 0; s < TN; s++) {
            const unsigned row = top + y * TM + r, col = left + x * TN + s;
            if (row < m && col < n) c[(size_t)row * n + col] = sum[r][s];
        }
}
