// Kernels that a GPU must refuse or stop, and one that asks for more shared memory than a launch has by default.

extern "C" __global__ void illegal(int* x) {
  reinterpret_cast<int*>(16)[threadIdx.x] = *x;
}

extern "C" __global__ void misaligned(int* x) {
  *reinterpret_cast<int*>(reinterpret_cast<char*>(x) + 1) = 7;
}

extern "C" __global__ void __launch_bounds__(128) bounded(int* x) {
  x[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void dynamic_shared(int* x, int words) {
  extern __shared__ int box[];
  for (int i = threadIdx.x; i < words; i += blockDim.x) box[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) *x = box[words - 1];
}
