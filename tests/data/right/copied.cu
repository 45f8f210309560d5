extern "C" __global__ void k(const float* x, float* y, int n) {
  int i = threadIdx.x;
  float v = 0;
  if (i < n)
    v = x[i];
  __syncthreads();
  if (i < n)
    y[i] = v;
  if (i < 32) asm volatile("bar.sync 1, 32;");
}
