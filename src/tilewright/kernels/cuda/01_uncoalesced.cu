/*
idea = "Each thread computes one element of C and neighbouring threads take neighbouring rows, so the 32 loads of A by a warp read 32 different sectors."
row = "S2, S1.16"
block = ["BLOCK_X", "BLOCK_Y"]
grid = ["cdiv(m, BLOCK_X)", "min(cdiv(n, BLOCK_Y), 65535)"]
dtypes = ["float32"]
capability = "5.0"

[formulas]
global_load_sectors = "m * n // 32 * k * (min(32, BLOCK_X) + cdiv(32, BLOCK_X * 8))"
global_load_requests = "m * n // 32 * k * 2"
global_store_sectors = "m * n // 32 * min(32, BLOCK_X)"

[params]
BLOCK_X = { default = 32, values = [8, 16, 32] }
BLOCK_Y = { default = 32, values = [8, 16, 32] }
*/

// The compiler may use no more registers than a block of this size can have.
extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
uncoalesced(const float* a, const float* b, float* c, int m, int n, int k)
{
    // threadIdx.x, along which a warp's 32 threads lie, picks the row. At one step of the loop below they read
    // a[row·k + p] for 32 rows, k floats apart: 32 sectors of 32 bytes, of which 4 bytes each are used; and one b[p·n + col].
    // The next rung swaps x and y, and a step costs 5 sectors instead of these 33.
    const long long row = (long long)blockIdx.x * BLOCK_X + threadIdx.x;
    const long long first = (long long)blockIdx.y * BLOCK_Y + threadIdx.y;
    if (row >= m) return;

    // A grid holds at most 65,535 blocks along y; a matrix with more columns is walked in steps of the grid.
    for (long long col = first; col < n; col += (long long)gridDim.y * BLOCK_Y) {
        float sum = 0;
        for (int p = 0; p < k; p++)
            sum += a[row * k + p] * b[(long long)p * n + col];
        c[row * n + col] = sum;
    }
}
