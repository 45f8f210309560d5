#define TILE 32
// One warp loads rows of B, two warps use them; barriers 1 and 2 say that a stage is full, 3 and 4 that it is free.
__device__ void meet(int barrier) { asm volatile("bar.sync %0, 96;" :: "r"(barrier) : "memory"); }
__device__ void arrive(int barrier) { asm volatile("bar.arrive %0, 96;" :: "r"(barrier) : "memory"); }
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float stage[2][TILE];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    for (int i = 0; i < k; i++) {
      if (i >= 2) meet(3 + i % 2);
      stage[i % 2][lane] = b[i * n + lane];
      __threadfence_block();
      arrive(1 + i % 2);
    }
  } else {
    float sum = 0;
    for (int i = 0; i < k; i++) {
      meet(1 + i % 2);
      sum += a[(warp - 1) * k + i] * stage[i % 2][lane];
      if (i + 2 < k) arrive(3 + i % 2);
    }
    c[(warp - 1) * n + lane] = sum;
  }
}
