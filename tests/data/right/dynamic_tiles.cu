#define TILE 8
extern __shared__ float tiles[];
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  float *a_tile = tiles, *b_tile = tiles + TILE * TILE;
  int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
  float sum = 0;
  for (int t = 0; t < k; t += TILE) {
    a_tile[y * TILE + x] = row < m && t + x < k ? a[row * k + t + x] : 0;
    b_tile[y * TILE + x] = t + y < k && column < n ? b[(t + y) * n + column] : 0;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < TILE; i++)
      sum += a_tile[y * TILE + i] * b_tile[i * TILE + x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
