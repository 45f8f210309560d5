// Does any product overflow? All that find one say so, and one word is read by all.
extern "C" __global__ void k(const float* a, const float* b, float* c, float limit) {
  __shared__ int found;
  __shared__ float scale;
  int i = threadIdx.x;
  if (i == 0) { found = 0; scale = b[0]; }
  __syncthreads();
  if (a[i] * scale > limit)
    found = 1;
  __syncthreads();
  c[i] = found ? a[i] : a[i] * scale;
}
