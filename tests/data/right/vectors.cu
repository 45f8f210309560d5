extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * blockDim.y + threadIdx.y, column = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= m || column >= n) return;
  float sum[4] = {0, 0, 0, 0};
  bool whole = n % 4 == 0;
  for (int i = 0; i < k; i++) {
    if (whole) {
      float4 v = *(const float4*)&b[i * n + column];
      sum[0] += a[row * k + i] * v.x; sum[1] += a[row * k + i] * v.y; sum[2] += a[row * k + i] * v.z; sum[3] += a[row * k + i] * v.w;
    } else
      for (int j = 0; j < 4 && column + j < n; j++) sum[j] += a[row * k + i] * b[i * n + column + j];
  }
  for (int j = 0; j < 4 && column + j < n; j++) c[row * n + column + j] = sum[j];
}
