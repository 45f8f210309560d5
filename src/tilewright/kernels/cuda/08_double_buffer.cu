/*
idea = "Shared memory holds two tiles of each operand: one is multiplied while the next one is loaded, and each tile needs one barrier instead of two."
parent = "cuda/vectorised"
row = "S1.20"
block = ["BN // TN", "BM // TM"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
dtypes = ["float32"]
capability = "5.0"
constraints = ["BM % TM == 0", "BN % TN == 0", "BM // TM * (BN // TN) <= 1024", "BM // TM * (BN // TN) >= 32", "BM * BK // 4 % (BM // TM * (BN // TN)) == 0", "BK * BN // 4 % (BM // TM * (BN // TN)) == 0", "(BM + 4 + BN) * BK * 8 <= 49152"]
spills = ["sm_90a", "sm_100", "sm_121"]
tile = ["BN", "BM"]

[formulas]
global_load_sectors = "m * n * k // 8 // BN + m * n * k // 8 // BM"

[params]
BM = { default = 128, values = [32, 64, 128, 256] }
BN = { default = 128, values = [32, 64, 128, 256] }
BK = { default = 8, values = [8, 16] }
TM = { default = 8, values = [4, 8, 16] }
TN = { default = 8, values = [4, 8, 16] }
*/

constexpr int THREADS = BM / TM * (BN / TN);               // 128/8 · 128/8 = 256
constexpr int BLOCKS = THREADS < 512 && TM * TN <= 64 ? 512 / THREADS : 1;  // blocks on a multiprocessor at once: 2
constexpr int A_LOADS = BM * BK / 4 / THREADS;             // of 4 elements, by a thread for a tile: 128·8/4/256 = 1
constexpr int B_LOADS = BK * BN / 4 / THREADS;

// For 128-bit accesses the matrix's address and the length of a row in bytes must be multiples of 16.
__device__ bool rows_are_aligned(const float* matrix, int columns)
{
    return ((unsigned long long)matrix | (unsigned long long)columns * 4) % 16 == 0;
}

// Elements column … column + 3 of a row, and zeros beyond the end of the row.
__device__ float4 load4(const float* row, unsigned column, int columns, bool aligned)
{
    if (aligned && column < columns) return *(const float4*)(row + column);  // an aligned row is a whole number of fours
    float4 v;
    v.x = column + 0 < columns ? row[column + 0] : 0;
    v.y = column + 1 < columns ? row[column + 1] : 0;
    v.z = column + 2 < columns ? row[column + 2] : 0;
    v.w = column + 3 < columns ? row[column + 3] : 0;
    return v;
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
double_buffer(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ __align__(16) float a_tile[2][BK][BM + 4];  // 2·8·132 floats: 8.25 KiB
    __shared__ __align__(16) float b_tile[2][BK][BN];
    const int x = threadIdx.x, y = threadIdx.y, thread = y * (BN / TN) + x;
    const bool a_aligned = rows_are_aligned(a, k), b_aligned = rows_are_aligned(b, n), c_aligned = rows_are_aligned(c, n);

    const int across = (n - 1) / BN + 1;
    const unsigned top = blockIdx.x / across * BM, left = blockIdx.x % across * BN;
    float sum[TM][TN] = {};  // 64 registers

    // A tile is copied in two steps: fetch starts the loads into registers, put stores them in shared memory when they arrive.
    float4 of_a_tile[A_LOADS], of_b_tile[B_LOADS];
    auto fetch = [&](unsigned p) {
        #pragma unroll
        for (int l = 0; l < A_LOADS; l++) {
            const int e = (thread + l * THREADS) * 4, row = e / BK, i = e % BK;
            of_a_tile[l] = load4(a + (size_t)(top + row) * k, p + i, top + row < m ? k : 0, a_aligned);
        }
        #pragma unroll
        for (int l = 0; l < B_LOADS; l++) {
            const int e = (thread + l * THREADS) * 4, i = e / BN, col = e % BN;
            of_b_tile[l] = load4(b + (size_t)(p + i) * n, left + col, p + i < k ? n : 0, b_aligned);
        }
    };
    auto put = [&](int buffer) {
        #pragma unroll
        for (int l = 0; l < A_LOADS; l++) {
            const int e = (thread + l * THREADS) * 4, row = e / BK, i = e % BK;
            a_tile[buffer][i + 0][row] = of_a_tile[l].x;
            a_tile[buffer][i + 1][row] = of_a_tile[l].y;
            a_tile[buffer][i + 2][row] = of_a_tile[l].z;
            a_tile[buffer][i + 3][row] = of_a_tile[l].w;
        }
        #pragma unroll
        for (int l = 0; l < B_LOADS; l++) {
            const int e = (thread + l * THREADS) * 4, i = e / BN, col = e % BN;
            *(float4*)&b_tile[buffer][i][col] = of_b_tile[l];
        }
    };

    fetch(0);
    put(0);
    __syncthreads();

    int buffer = 0;
    for (unsigned p = 0; p < k; p += BK) {
        // The loads start here and are waited for below: 8 steps of 64 multiply-adds lie in between.
        fetch(p + BK);  // beyond the last tile: zeros, nothing is read

        #pragma unroll
        for (int i = 0; i < BK; i++) {
            float of_a[TM], of_b[TN];
            #pragma unroll
            for (int r = 0; r < TM; r += 4) *(float4*)&of_a[r] = *(const float4*)&a_tile[buffer][i][y * TM + r];
            #pragma unroll
            for (int s = 0; s < TN; s += 4) *(float4*)&of_b[s] = *(const float4*)&b_tile[buffer][i][x * TN + s];
            #pragma unroll
            for (int r = 0; r < TM; r++)
                #pragma unroll
                for (int s = 0; s < TN; s++) sum[r][s] += of_a[r] * of_b[s];
        }

        // All threads read the other buffer before the last barrier, so it can be overwritten without another barrier.
        buffer ^= 1;
        put(buffer);
        __syncthreads();  // the next tile is complete
    }

    #pragma unroll
    for (int r = 0; r < TM; r++)
        #pragma unroll
        for (int s = 0; s < TN; s += 4) {
            const unsigned row = top + y * TM + r;
            store4(c + (size_t)row * n, left + x * TN + s, row < m ? n : 0, c_aligned, &sum[r][s]);
        }
}
