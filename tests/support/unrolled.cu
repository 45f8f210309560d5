// Products with a thread tile along one axis or both, whose inner loop the compilers unroll in part: NVVM by two or more, and
// ptxas again, which then moves the bytes of several rounds with one wide access. unrolled_kernels.py launches them.

// Each thread computes TM results of a column of C.
template <int BM, int BN, int BK, int TM>
__device__ void column(const float* a, const float* b, float* c, int n, int k)
{
    __shared__ float rows[BM * BK], columns[BK * BN];
    const int x = threadIdx.x % BN, y = threadIdx.x / BN;
    float sum[TM] = {};
    for (int first = 0; first < k; first += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += blockDim.x) rows[i] = a[i / BK * k + first + i % BK];
        for (int i = threadIdx.x; i < BK * BN; i += blockDim.x) columns[i] = b[(first + i / BN) * n + i % BN];
        __syncthreads();
        for (int d = 0; d < BK; d++) {
            const float one = columns[d * BN + x];
            for (int r = 0; r < TM; r++)
                sum[r] += rows[(y * TM + r) * BK + d] * one;
        }
        __syncthreads();
    }
    for (int r = 0; r < TM; r++) c[(y * TM + r) * n + x] = sum[r];
}

// Each thread computes TN results of a row of C: neighbours, or every (BN / TN)-th.
template <int BM, int BN, int BK, int TN, bool NEIGHBOURS>
__device__ void row(const float* a, const float* b, float* c, int n, int k)
{
    __shared__ float rows[BM * BK], columns[BK * BN];
    const int x = threadIdx.x % (BN / TN), y = threadIdx.x / (BN / TN);
    const int from = NEIGHBOURS ? x * TN : x, every = NEIGHBOURS ? 1 : BN / TN;
    float sum[TN] = {};
    for (int first = 0; first < k; first += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += blockDim.x) rows[i] = a[i / BK * k + first + i % BK];
        for (int i = threadIdx.x; i < BK * BN; i += blockDim.x) columns[i] = b[(first + i / BN) * n + i % BN];
        __syncthreads();
        for (int d = 0; d < BK; d++) {
            const float one = rows[y * BK + d];
            for (int r = 0; r < TN; r++)
                sum[r] += one * columns[d * BN + from + r * every];
        }
        __syncthreads();
    }
    for (int r = 0; r < TN; r++) c[y * n + from + r * every] = sum[r];
}

// Each thread computes a square of T × T results.
template <int BM, int BN, int BK, int T>
__device__ void square(const float* a, const float* b, float* c, int n, int k)
{
    __shared__ float rows[BM * BK], columns[BK * BN];
    const int x = threadIdx.x % (BN / T), y = threadIdx.x / (BN / T);
    float sum[T][T] = {}, left[T], right[T];
    for (int first = 0; first < k; first += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += blockDim.x) rows[i] = a[i / BK * k + first + i % BK];
        for (int i = threadIdx.x; i < BK * BN; i += blockDim.x) columns[i] = b[(first + i / BN) * n + i % BN];
        __syncthreads();
        for (int d = 0; d < BK; d++) {
            for (int r = 0; r < T; r++)
                left[r] = rows[(y * T + r) * BK + d];
            for (int s = 0; s < T; s++)
                right[s] = columns[d * BN + x * T + s];
            for (int r = 0; r < T; r++)
                for (int s = 0; s < T; s++) sum[r][s] += left[r] * right[s];
        }
        __syncthreads();
    }
    for (int r = 0; r < T; r++)
        for (int s = 0; s < T; s++) c[(y * T + r) * n + x * T + s] = sum[r][s];
}

#define KERNEL(name, how)                                                                                  \
    extern "C" __global__ void name(const float* a, const float* b, float* c, int n, int k) { how(a, b, c, n, k); }

KERNEL(column_8_8, (column<64, 64, 8, 8>))
KERNEL(column_16_8, (column<64, 64, 16, 8>))
KERNEL(column_10_8, (column<64, 64, 10, 8>))
KERNEL(column_12_8, (column<64, 64, 12, 8>))
KERNEL(column_5_8, (column<64, 64, 5, 8>))
KERNEL(column_4_16, (column<64, 64, 4, 16>))
KERNEL(column_32_8, (column<64, 64, 32, 8>))
KERNEL(column_32_16, (column<64, 64, 32, 16>))
KERNEL(row_16_4, (row<32, 64, 16, 4, true>))
KERNEL(row_16_4_apart, (row<32, 64, 16, 4, false>))
KERNEL(row_8_8, (row<32, 64, 8, 8, true>))
KERNEL(square_16_4, (square<32, 64, 16, 4>))
KERNEL(square_32_4, (square<32, 64, 32, 4>))
KERNEL(square_16_8, (square<32, 64, 16, 8>))
