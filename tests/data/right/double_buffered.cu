#define TILE 16
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[2][TILE][TILE], b_tile[2][TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
  float sum = 0;
  int stage = 0;
  a_tile[0][y][x] = a[row * k + x];
  b_tile[0][y][x] = b[y * n + column];
  __syncthreads(); // first
  for (int t = 0; t < k; t += TILE) {
    int next = stage ^ 1;
    if (t + TILE < k) {
      a_tile[next][y][x] = a[row * k + t + TILE + x];
      b_tile[next][y][x] = b[(t + TILE + y) * n + column];
    }
    for (int i = 0; i < TILE; i++)
      sum += a_tile[stage][y][i] * b_tile[stage][i][x];
    __syncthreads(); // turn
    stage ^= 1;
  }
  c[row * n + column] = sum;
}
