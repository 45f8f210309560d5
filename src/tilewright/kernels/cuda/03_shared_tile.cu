/*
idea = "A block copies TILE×TILE tiles of A and B to shared memory and uses each element TILE times, so it reads TILE times fewer elements from global memory."
parent = "cuda/coalesced"
row = "S0.5, S0.6, S1.17, S2"
block = ["TILE", "TILE"]
grid = ["cdiv(n, TILE)", "min(cdiv(m, TILE), 65535)"]
dtypes = ["float32"]
capability = "5.0"
tile = ["TILE", "TILE"]

[formulas]
global_load_sectors = "m * n // 32 * k * 8 // TILE"
global_store_sectors = "m * n // 32 * 4"
shared_load_requests = "m * n // 32 * k * 2"

[params]
TILE = { default = 32, values = [8, 16, 32] }
*/

// The compiler may use no more registers than a block of this size can have.
extern "C" __global__ void __launch_bounds__(TILE * TILE)
shared_tile(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float a_tile[TILE][TILE];  // 32·32 floats: 4 KiB
    __shared__ float b_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long col = (long long)blockIdx.x * TILE + x;

    // A grid holds at most 65,535 blocks along y; a matrix with more rows is walked in steps of the grid. The whole block
    // takes the same steps: a thread that left early would be missing at the barriers.
    for (long long top = (long long)blockIdx.y * TILE; top < m; top += (long long)gridDim.y * TILE) {
        const long long row = top + y;
        float sum = 0;

        for (long long p = 0; p < k; p += TILE) {
            // Each thread fetches one element of each tile. Beyond the edge it is zero, so the multiplication needs no edge case.
            a_tile[y][x] = row < m && p + x < k ? a[row * k + p + x] : 0;
            b_tile[y][x] = p + y < k && col < n ? b[(p + y) * n + col] : 0;
            __syncthreads();  // the tiles are complete before any thread reads them

            for (int i = 0; i < TILE; i++)
                sum += a_tile[y][i] * b_tile[i][x];
            __syncthreads();  // all threads have read the tiles before the next ones overwrite them
        }

        if (row < m && col < n) c[row * n + col] = sum;
    }
}
