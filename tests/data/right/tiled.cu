#define TILE 16
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[TILE][TILE];
  __shared__ float b_tile[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
  float sum = 0;
  for (int t = 0; t < k; t += TILE) {
    a_tile[y][x] = row < m && t + x < k ? a[row * k + t + x] : 0;
    b_tile[y][x] = t + y < k && column < n ? b[(t + y) * n + column] : 0;
    __syncthreads(); // full
    for (int i = 0; i < TILE; i++)
      sum += a_tile[y][i] * b_tile[i][x];
    __syncthreads(); // free
  }
  if (row < m && column < n)
    c[row * n + column] = sum;
}
