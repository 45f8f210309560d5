/*
idea = "Neighbouring threads take neighbouring columns, so the 32 loads of B by a warp read 32 consecutive floats, and its 32 loads of A read one element."
parent = "cuda/uncoalesced"
row = "S0.2, S0.3, S0.4"
block = ["BLOCK_X", "BLOCK_Y"]
grid = ["cdiv(n, BLOCK_X)", "min(cdiv(m, BLOCK_Y), 65535)"]
dtypes = ["float32"]
capability = "5.0"

[formulas]
global_load_sectors = "m * n // 32 * k * (32 // BLOCK_X + BLOCK_X // 8)"
global_load_requests = "m * n // 32 * k * 2"
global_store_sectors = "m * n // 32 * 4"

[params]
BLOCK_X = { default = 32, values = [8, 16, 32] }
BLOCK_Y = { default = 32, values = [8, 16, 32] }
*/

// The compiler may use no more registers than a block of this size can have.
extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
coalesced(const float* a, const float* b, float* c, int m, int n, int k)
{
    // threadIdx.x, along which a warp's 32 threads lie, picks the column. In a block 32 wide a warp shares one row: at one
    // step of the loop below it reads one a[row·k + p], a sector, and 32 consecutive b[p·n + col], 4 sectors (S0.3: 5 a step).
    const long long col = (long long)blockIdx.x * BLOCK_X + threadIdx.x;
    const long long first = (long long)blockIdx.y * BLOCK_Y + threadIdx.y;
    if (col >= n) return;

    // A grid holds at most 65,535 blocks along y; a matrix with more rows is walked in steps of the grid.
    for (long long row = first; row < m; row += (long long)gridDim.y * BLOCK_Y) {
        float sum = 0;
        for (int p = 0; p < k; p++)
            sum += a[row * k + p] * b[(long long)p * n + col];
        c[row * n + col] = sum;
    }
}
