/*
idea = "A shared tile 32 floats wide, under a block of WIDTH threads a row: a narrow warp spans rows that share their banks."
row = "S0.6"
block = ["WIDTH", 32]
grid = ["cdiv(n, WIDTH)", "cdiv(m, 32)"]

[params]
WIDTH = { default = 8, values = [8, 16, 32] }
*/

extern "C" __global__ void narrow_warp(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float a_tile[32][32];
    __shared__ float b_tile[32][WIDTH];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * 32 + y;
    const int col = blockIdx.x * WIDTH + x;
    float sum = 0;

    for (int p = 0; p < k; p += 32) {
        // A warp is WIDTH wide and 32/WIDTH high: in the tile its rows are 32 words apart, all in the same banks.
        for (int j = x; j < 32; j += WIDTH)
            a_tile[y][j] = row < m && p + j < k ? a[row * k + p + j] : 0;
        b_tile[y][x] = p + y < k && col < n ? b[(p + y) * n + col] : 0;
        __syncthreads();

        for (int i = 0; i < 32; i++)
            sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();
    }

    if (row < m && col < n) c[row * n + col] = sum;
}
