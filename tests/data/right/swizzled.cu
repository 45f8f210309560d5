extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float tile[32][32];
  int x = threadIdx.x, y = threadIdx.y;
  for (int i = y; i < 32; i += 8) tile[i][x ^ i] = a[i * 32 + x];
  __syncthreads();
  for (int i = y; i < 32; i += 8) c[i * 32 + x] = tile[x][i ^ x];
}
