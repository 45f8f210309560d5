#define TILE 16
#define STAGES 3
__device__ void copy(float* to, const float* from) {
  unsigned at = __cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from) : "memory");
}
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[STAGES][TILE][TILE], b_tile[STAGES][TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
  for (int s = 0; s < STAGES - 1; s++) {
    copy(&a_tile[s][y][x], &a[row * k + s * TILE + x]);
    copy(&b_tile[s][y][x], &b[(s * TILE + y) * n + column]);
    asm volatile("cp.async.commit_group;");
  }
  float sum = 0;
  for (int t = 0; t < k / TILE; t++) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    int ahead = t + STAGES - 1, s = ahead % STAGES;
    if (ahead < k / TILE) {
      copy(&a_tile[s][y][x], &a[row * k + ahead * TILE + x]);
      copy(&b_tile[s][y][x], &b[(ahead * TILE + y) * n + column]);
    }
    asm volatile("cp.async.commit_group;");
    for (int i = 0; i < TILE; i++)
      sum += a_tile[t % STAGES][y][i] * b_tile[t % STAGES][i][x];
  }
  c[row * n + column] = sum;
}
