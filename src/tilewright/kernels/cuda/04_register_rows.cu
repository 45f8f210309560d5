/*
idea = "A thread computes ROWS rows of a column of C: at each step of k it reads one element of B and ROWS elements of A for ROWS multiply-adds."
parent = "cuda/shared_tile"
row = "S0.7, S0.8"
block = ["TILE", "TILE // ROWS"]
grid = ["cdiv(n, TILE)", "min(cdiv(m, TILE), 65535)"]
dtypes = ["float32"]
capability = "5.0"
constraints = ["ROWS <= TILE"]
tile = ["TILE", "TILE"]

[formulas]
global_load_sectors = "m * n * k // 8 // TILE + m * n * k // 8 // TILE"
shared_load_requests = "m // ROWS * n // 32 * k * (ROWS + 1)"

[params]
TILE = { default = 32, values = [8, 16, 32] }
ROWS = { default = 8, values = [2, 4, 8, 16, 32] }
*/

constexpr int APART = TILE / ROWS;  // the distance of a thread's rows, and a block's rows of threads: 32/8 = 4

// The compiler may use no more registers than a block of this size can have.
extern "C" __global__ void __launch_bounds__(TILE * APART)
register_rows(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float a_tile[TILE][TILE];  // 32·32 floats: 4 KiB
    __shared__ float b_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long col = (long long)blockIdx.x * TILE + x;

    // A grid holds at most 65,535 blocks along y; a matrix with more rows is walked in steps of the grid. The whole block
    // takes the same steps: a thread that left early would be missing at the barriers.
    for (long long top = (long long)blockIdx.y * TILE; top < m; top += (long long)gridDim.y * TILE) {
        float sum[ROWS] = {};

        for (long long p = 0; p < k; p += TILE) {
            // Each thread fetches ROWS elements of each tile. Beyond the edge they are zero: multiplication needs no edge case.
            #pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int i = y + r * APART;
                a_tile[i][x] = top + i < m && p + x < k ? a[(top + i) * k + p + x] : 0;
                b_tile[i][x] = p + i < k && col < n ? b[(p + i) * n + col] : 0;
            }
            __syncthreads();  // the tiles are complete before any thread reads them

            // One element of B serves ROWS multiply-adds, so a step costs (ROWS + 1)/ROWS shared loads for each, not 2: 9/8 for
            // 8 rows. They are independent, so none waits for another. The price is fewer threads: 128 in a block, not 1024.
            #pragma unroll
            for (int i = 0; i < TILE; i++) {
                const float of_b = b_tile[i][x];
                #pragma unroll
                for (int r = 0; r < ROWS; r++)
                    sum[r] += a_tile[y + r * APART][i] * of_b;
            }
            __syncthreads();  // all threads have read the tiles before the next ones overwrite them
        }

        #pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (top + y + r * APART < m && col < n) c[(top + y + r * APART) * n + col] = sum[r];
    }
}
