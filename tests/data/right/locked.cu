// Every thread adds its product to one sum under a lock.
extern "C" __global__ void k(const float* a, const float* b, float* c, int* lock) {
  float value = a[threadIdx.x] * b[threadIdx.x];
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      c[0] = c[0] + value;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}
