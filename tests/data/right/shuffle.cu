extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  int lane = threadIdx.x, row = blockIdx.x;
  float sum = 0;
  for (int i = lane; i < k; i += 32) sum += a[row * k + i] * b[i];
  for (int d = 16; d > 0; d /= 2)
    sum += __shfl_xor_sync(~0u, sum, d);
  if (lane == 0) c[row] = sum;
}
