/*
idea = "A first shared tile, with three mistakes in it."
block = [16, 16]
grid = ["cdiv(m, 16)", "cdiv(n, 16)"]
*/
#define TILE 16

extern "C" __global__ void first_try(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.x * TILE + x;
    const int col = blockIdx.y * TILE + y;
    float sum = 0;

    for (int p = 0; p < k; p += TILE) {
        a_tile[x][y] = row <= m && p + y < k ? a[row * k + p + y] : 0;
        b_tile[x][y] = p + x < k && col < n ? b[(p + x) * n + col] : 0;
        __syncthreads();

        for (int i = 0; i < TILE; i++)
            sum += a_tile[x][i] * b_tile[i][y];
    }

    if (row < m && col < n) c[row * n + col] = sum;
}
