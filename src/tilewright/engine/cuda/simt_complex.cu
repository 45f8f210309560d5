/*
idea = "complex64 by four multiply-adds for each of a product."
row = "S0.9"
dtypes = ["complex64"]
capability = "8.0"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + 2 + BN + 2) * 8"
tile = ["BN", "BM"]
step = "BK"

[strides]
a = "either"
b = "either"
c = "rows"

[time]
seconds = "2.5e-6 + cdiv(blocks, sms) * BM * BN * part / 2e11"

[params]
BM = { default = 128, values = [32, 64, 96, 128, 192, 256] }
BN = { default = 128, values = [32, 64, 96, 128, 192, 256] }
BK = { default = 8, values = [8, 16, 32] }
WM = { default = 64, values = [16, 32, 48, 64, 96, 128] }
WN = { default = 32, values = [16, 32, 48, 64, 96, 128] }
TM = { default = 8, values = [4, 8, 12, 16] }
TN = { default = 8, values = [4, 8, 12, 16] }
STAGES = { default = 6, min = 2, max = 8 }
BLOCKS = { default = 1, values = [1, 2, 3, 4, 5, 6, 8] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
typedef float2 Element;
#include "simt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
simt_complex(const float2* a, const float2* b, float2* c, const __grid_constant__ Call call)
{
    multiply_strided(a, b, c, call);
}
