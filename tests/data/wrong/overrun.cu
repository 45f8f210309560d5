/*
idea = "Eight columns a thread, with room for four sums"
block = [16, 16]
grid = ["cdiv(n, 128)", "cdiv(m, 16)"]
*/
__global__ void overrun(const float* a, const float* b, float* c, int m, int n, int k)
{
    int row = blockIdx.y * 16 + threadIdx.y, col = (blockIdx.x * 16 + threadIdx.x) * 8;
    if (row >= m) return;
    float acc[4];
    for (int i = 0; i < 8; ++i) acc[i] = 0;
    for (int p = 0; p < k; ++p)
        for (int i = 0; i < 8; ++i)
            if (col + i < n) acc[i] += a[row * k + p] * b[p * n + col + i];
    for (int i = 0; i < 8; ++i)
        if (col + i < n) c[row * n + col + i] = acc[i];
}
