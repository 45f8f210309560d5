// The halves of a warp go different ways, each with a __syncwarp of its own, and meet in one at two places.
extern "C" __global__ void k(const float* a, float* c) {
  __shared__ float s[32];
  int lane = threadIdx.x, half = lane / 16;
  s[lane] = a[lane];
  if (half == 0) {
    __syncwarp(0x0000ffff);
    float v = s[15 - lane];
    __syncwarp();
    s[lane] = v;
    __syncwarp();
  } else {
    __syncwarp(0xffff0000);
    float v = 2 * s[47 - lane];
    __syncwarp();
    s[lane] = v;
    __syncwarp();
  }
  c[lane] = s[31 - lane];
}
