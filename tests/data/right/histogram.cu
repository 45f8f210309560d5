// How often does each value occur? Counted in shared memory, then added up over blocks.
extern "C" __global__ void k(const int* a, int* c, int n) {
  __shared__ int count[16];
  if (threadIdx.x < 16) count[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&count[a[i]], 1);
  __syncthreads(); // counted
  if (threadIdx.x < 16) atomicAdd(&c[threadIdx.x], count[threadIdx.x]);
}
