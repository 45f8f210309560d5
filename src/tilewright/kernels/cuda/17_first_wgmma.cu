/*
idea = "Four warps multiply with one instruction, wgmma, which reads both operands from shared memory, so that they need not be in registers."
parent = "cuda/bf16"
row = "S2"
block = [128]
grid = ["cdiv(m, 64) * cdiv(n, BN)"]
shared = "(64 + BN) * 128"
dtypes = ["bfloat16"]
capability = "9.0a"
tile = ["BN", "64"]
suits = "m < 0"
notes = [
    "A tile is loaded, awaited and multiplied, one after the other: only other blocks of the multiprocessor work meanwhile.",
    "Where rows are not aligned to 16 bytes, elements are loaded one by one, which is slow.",
]

[params]
BN = { default = 64, values = [64, 128, 192, 256] }
*/
#include "wgmma_bf16.cuh"

typedef unsigned short bf16;

struct Shared {
    uint4 a[64][8];  // 64 rows of 64 elements, in chunks of 8: 8 KiB
    uint4 b[SLABS][BK][8];
};
extern __shared__ __align__(1024) unsigned char memory[];

// For 128-bit accesses the matrix's address and the length of a row in bytes must be multiples of 16.
__device__ bool rows_are_aligned(const bf16* matrix, int columns)
{
    return ((unsigned long long)matrix | (unsigned long long)columns * 2) % 16 == 0;
}

// Eight elements of a row, from (row, col) on; zeros beyond the edges.
template <bool ALIGNED>
__device__ __forceinline__ uint4 chunk(const bf16* matrix, int rows, int columns, int row, int col)
{
    if (row >= rows || col >= columns) return uint4{};
    const bf16* from = matrix + (size_t)row * columns + col;
    if constexpr (ALIGNED) return *(const uint4*)from;
    else {
        unsigned v[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int next = col + i * 2;
            v[i] = (next < columns ? from[i * 2] : 0) | (next + 1 < columns ? from[i * 2 + 1] : 0) << 16;
        }
        return uint4{v[0], v[1], v[2], v[3]};
    }
}

// A tile of C at (top, left).
template <bool ALIGNED>
__device__ __forceinline__ void multiply(const bf16* a, const bf16* b, bf16* c, int m, int n, int k, int top, int left, Shared& s)
{
    float d[BN / 2] = {};
    for (int step = 0; step < (k - 1) / BK + 1; step++) {
        // ---- GLOBAL → SHARED: chunk i of row r lies at i ^ r % 8, the swizzle in which wgmma reads without bank conflicts -----
        #pragma unroll(ALIGNED ? 4 : 1)
        for (int l = 0; l < 64 * 8; l += 128) {
            const int e = l + threadIdx.x, row = e / 8, i = e % 8;
            s.a[row][i ^ row % 8] = chunk<ALIGNED>(a, m, k, top + row, step * BK + i * 8);
        }
        #pragma unroll(ALIGNED ? 4 : 1)
        for (int l = 0; l < BK * 8 * SLABS; l += 128) {
            const int e = l + threadIdx.x, slab = e / 8 % SLABS, row = e / 8 / SLABS, i = e % 8;
            s.b[slab][row][i ^ row % 8] = chunk<ALIGNED>(b, k, n, step * BK + row, left + slab * 64 + i * 8);
        }
        publish_shared();  // to the tensor cores
        __syncthreads();

        // ---- MULTIPLY ----------------------------------------------------------------------------------------------------
        wgmma_fence();
        multiply_stage(d, (unsigned char*)s.a, (unsigned char*)s.b, true);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // all four warps have read the tiles
    }
    sums_are_there(d);

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    store_sums<ALIGNED>(d, c, top, left, m, n);
}

extern "C" __global__ void __launch_bounds__(128)
first_wgmma(const bf16* a, const bf16* b, bf16* c, int m, int n, int k)
{
    Shared& s = *(Shared*)memory;
    const int across = (n - 1) / BN + 1, top = blockIdx.x / across * 64, left = blockIdx.x % across * BN;
    if (rows_are_aligned(a, k) && rows_are_aligned(b, n) && rows_are_aligned(c, n)) multiply<true>(a, b, c, m, n, k, top, left, s);
    else multiply<false>(a, b, c, m, n, k, top, left, s);
}
