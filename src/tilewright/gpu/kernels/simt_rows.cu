/*
idea = "The same as simt, for B whose rows follow each other: others are copied first, where that takes less time than to transpose on the way."
row = "S0.9, S1.20, S2"
dtypes = ["float32"]
capability = "8.0"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + 4 + BN + 4) * 4"
tile = ["BN", "BM"]
step = "BK"
suits = "min(m, n, k) >= 1024"

costs = [
    "multiply_rate", "single", "generation_s", "memory_rate", "launch_s", "unhidden",
]

[strides]
a = "either"
b = "rows"
c = "rows"

# As simt's, but for launches of more blocks than a generation.
[time]
turns = "cdiv(blocks, sms)"
tiles = "turns * BM * BN * part / (multiply_rate / (1 + single * (b_vector < 16))) + turns * generation_s"
memory = "(m * k + k * n + m * n * parts) * size * batch / memory_rate * memory_ratio"
seconds = "launch_s + tiles + unhidden * memory"

[params]
BM = { default = 128, values = [128] }
BN = { default = 256, values = [256] }
BK = { default = 16, values = [16] }
WM = { default = 64, values = [64] }
WN = { default = 64, values = [64] }
TM = { default = 8, values = [8] }
TN = { default = 16, values = [16] }
STAGES = { default = 4, min = 2, max = 6 }
BLOCKS = { default = 1, values = [1] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
constexpr int PLANES = 1;
#include "simt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
simt_rows(const float* a, const float* b, float* c, const __grid_constant__ Call call)
{
    multiply_strided(a, b, c, call);
}
