// explain: --grid 4x4 --block 32x8 --expect "out = in.T"
// explain: --arg in:float32:128x128 --arg out:float32:128x128 --arg n=128

// Transposes an n×n matrix, n a multiple of 32. A block of 32×8 threads moves a tile of 32×32.
template <int ROW>  // the length of a row of the tile: 33 avoids the bank conflicts of 32
__global__ void transpose(const float* in, float* out, int n)
{
    __shared__ float tile[32][ROW];
    const int x = threadIdx.x, left = 32 * blockIdx.x, top = 32 * blockIdx.y;
    for (int y = threadIdx.y; y < 32; y += 8)
        tile[y][x] = in[(top + y) * n + left + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8)
        out[(left + y) * n + top + x] = tile[x][y];
}
