// y = xᵀ for 16-bit numbers: each thread reads two numbers of a row of x, as tensor cores hold them; stmatrix transposes them.
#include "hopper.cuh"

constexpr int TILE = 64, PADDED = TILE + 8, THREADS = 128;  // rows of 144 bytes: eight of them are in different banks

extern "C" __global__ void __launch_bounds__(THREADS) stmatrix(const Half* x, Half* y, int rows, int cols)  // multiples of 64
{
    __shared__ alignas(16) Half tile[TILE][PADDED];  // of y
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, top = blockIdx.y * TILE, left = blockIdx.x * TILE;

    const int first = warp * 16;  // 16 rows of x for a warp
    const Half* from = x + (long long)(top + first + lane / 4) * cols + left + lane % 4 * 2;
    #pragma unroll
    for (int col = 0; col < TILE; col += 16) {  // four matrices: above, below, and the same 8 columns on
        const unsigned a = *(const unsigned*)&from[col], b = *(const unsigned*)&from[8 * cols + col];
        const unsigned c = *(const unsigned*)&from[col + 8], d = *(const unsigned*)&from[8 * cols + col + 8];
        store_matrices_transposed(&tile[col + lane % 8 + lane / 16 * 8][first + lane / 8 % 2 * 8], a, b, c, d);
    }
    __syncthreads();  // the tile is written

    for (int i = threadIdx.x; i < TILE * TILE / 8; i += THREADS) {
        const int row = i / (TILE / 8), col = i % (TILE / 8) * 8;
        *(uint4*)&y[(long long)(left + row) * rows + top + col] = *(const uint4*)&tile[row][col];
    }
}
