// In place: x and y are the same array, and every thread keeps to its own elements.
extern "C" __global__ void k(const float* x, float* y, int n) {
  float held[8];
  for (int j = 0; j < 8; j++) held[j] = x[threadIdx.x * 8 + j];
  for (int j = 0; j < 8; j++) y[threadIdx.x * 8 + (j * 3 + n) % 8] = held[j];
}
