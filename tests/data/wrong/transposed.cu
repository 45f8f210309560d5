/*
idea = "One thread an element, but the rows of A, B and C have the lengths of others"
block = [16, 16]
grid = ["cdiv(n, 16)", "cdiv(m, 16)"]
*/
__global__ void mixed_up(const float* a, const float* b, float* c, int m, int n, int k)
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= m || col >= n) return;
    float s = 0;
    for (int i = 0; i < k; ++i) s += a[row * n + i] * b[i * k + col];
    c[row * m + col] = s;
}
