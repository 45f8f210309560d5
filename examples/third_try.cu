/*
idea = "The same with x along the columns: neighbouring threads ask for neighbouring words."
block = [16, 16]
grid = ["cdiv(n, 16)", "cdiv(m, 16)"]
*/
#define TILE 16

extern "C" __global__ void third_try(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y;
    const int col = blockIdx.x * TILE + x;
    float sum = 0;

    for (int p = 0; p < k; p += TILE) {
        a_tile[y][x] = row < m && p + x < k ? a[row * k + p + x] : 0;
        b_tile[y][x] = p + y < k && col < n ? b[(p + y) * n + col] : 0;
        __syncthreads();

        for (int i = 0; i < TILE; i++)
            sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();
    }

    if (row < m && col < n) c[row * n + col] = sum;
}
