// The warps of a block add to one word in turn, which a volatile counter hands on.
extern "C" __global__ void k(volatile int* turn, int* y, int n) {
  int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 != 0) return;
  for (int i = 0; i < n; i++) {
    while (*turn % 4 != warp) {}
    __threadfence(); // before it is used
    y[0] = 3 * y[0] + warp;
    __threadfence(); // before it is handed on
    *turn = *turn + 1;
  }
}
