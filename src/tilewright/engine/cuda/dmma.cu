/*
idea = "float64 by tensor cores, with fragments loaded 16 bytes at a time: for any layout, size, batch and part of k."
row = "S3"
dtypes = ["float64"]
capability = "8.0"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + BN + 4) * 8"
tile = ["BN", "BM"]
step = "BK"

[strides]
a = "either"
b = "either"
c = "rows"

[time]
seconds = "2.5e-6 + cdiv(blocks, sms) * BM * BN * part / 2e11"

[params]
BM = { default = 64, values = [32, 64, 128, 256] }
BN = { default = 64, values = [32, 64, 128, 256] }
BK = { default = 16, values = [16, 32] }
WM = { default = 32, values = [16, 32, 64] }
WN = { default = 64, values = [16, 32, 64] }
MMA_K = { default = 4, values = [4, 8, 16] }
FRAGMENT_K = { default = 8, values = [8, 16] }
BUFFERS = { default = 2, values = [1, 2] }
STAGES = { default = 3, min = 2, max = 6 }
BLOCKS = { default = 1, values = [1, 2, 3, 4] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
typedef double Element;
#define COMPLEX 0
constexpr int VECTOR = 2;  // elements of 16 bytes
#include "dmma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dmma(const double* a, const double* b, double* c, const __grid_constant__ Call call)
{
    multiply_strided(a, b, c, call);
}
