/*
idea = "float32 by multiply-adds, 8×16 elements of C for each thread: the pipeline of register_banks for any layout, size, batch and part of k."
row = "S0.9, S1.20, S2"
dtypes = ["float32"]
capability = "8.0"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + 4 + BN + 4) * 4"
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
BN = { default = 256, values = [32, 64, 96, 128, 192, 256] }
BK = { default = 8, values = [8, 16, 32] }
WM = { default = 64, values = [16, 32, 48, 64, 96, 128] }
WN = { default = 64, values = [16, 32, 48, 64, 96, 128] }
TM = { default = 8, values = [4, 8, 12, 16] }
TN = { default = 16, values = [4, 8, 12, 16] }
STAGES = { default = 6, min = 2, max = 8 }
BLOCKS = { default = 1, values = [1, 2, 3, 4, 5, 6, 8] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
typedef float Element;
#include "simt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
simt(const float* a, const float* b, float* c, const __grid_constant__ Call call)
{
    multiply_strided(a, b, c, call);
}
