// All blocks wait for all: what one leaves in C, another uses.
__device__ unsigned come;
extern "C" __global__ void k(const float* a, float* c, float* d, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  c[i] = 2 * a[i];
  __threadfence(); // for all to see
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&come, 1);
    while (*(volatile unsigned*)&come < gridDim.x) {}
    __threadfence();
  }
  __syncthreads();
  d[i] = c[n - 1 - i];
}
