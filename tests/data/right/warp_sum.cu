// A warp a row: dot products, summed up in shared memory.
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float parts[4][32];
  int lane = threadIdx.x, warp = threadIdx.y, row = blockIdx.x * 4 + warp;
  float sum = 0;
  for (int i = lane; i < k; i += 32) sum += a[row * k + i] * b[i];
  float* mine = parts[warp];
  mine[lane] = sum;
  __syncwarp(); // written
  for (int d = 16; d > 0; d /= 2) {
    if (lane < d)
      mine[lane] += mine[lane + d];
    __syncwarp(); // added
  }
  if (lane == 0) c[row] = mine[0];
}
