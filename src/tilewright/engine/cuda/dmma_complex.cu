/*
idea = "complex128 by tensor cores: four real products, whose sums are real and imaginary parts."
row = "S3"
dtypes = ["complex128"]
capability = "8.0"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + BN + 4) * 16"
tile = ["BN", "BM"]
step = "BK"

[strides]
a = "either"
b = "either"
c = "rows"

[time]
seconds = "2.5e-6 + cdiv(blocks, sms) * BM * BN * part / 2e11"

[params]
BM = { default = 64, values = [32, 64, 128] }
BN = { default = 64, values = [32, 64, 128] }
BK = { default = 8, values = [8, 16] }
WM = { default = 32, values = [16, 32, 64] }
WN = { default = 32, values = [16, 32, 64] }
MMA_K = { default = 4, values = [4, 8] }
FRAGMENT_K = { default = 4, values = [4, 8] }
BUFFERS = { default = 2, values = [1, 2] }
STAGES = { default = 3, min = 2, max = 6 }
BLOCKS = { default = 1, values = [1, 2, 3, 4] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
typedef double2 Element;
#define COMPLEX 1
constexpr int VECTOR = 1;
#include "dmma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dmma_complex(const double2* a, const double2* b, double2* c, const __grid_constant__ Call call)
{
    multiply_strided(a, b, c, call);
}
