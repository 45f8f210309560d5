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

# A multiprocessor multiplies at its full rate from eight warps on. Each generation of blocks waits for its first stage, and stores its
# tiles last. Operands are copied number by number where they cannot be in whole vectors. The rates are those of an H200, as its power
# allows for long.
[time]
warps = "min(cdiv(blocks, sms), BLOCKS) * (BM // WM) * (BN // WN)"
rate = "2.1e11 * min(1, warps / 4) * min(1, 0.76 + 0.03 * warps)"
tiles = "cdiv(blocks, sms) * BM * BN * part / rate + cdiv(blocks, sms * BLOCKS) * 4.2e-6"
memory = "(m * k + k * n + m * n * parts) * size * batch / 3.9e12"
seconds = "2.5e-6 + max(tiles, memory)"

[[presets]]
rate = 100
params = { BM = 128, BN = 64, BLOCKS = 2 }

[[presets]]
rate = 100
params = { WN = 32, MMA_K = 8, BLOCKS = 3 }

[[presets]]
rate = 100
params = { BN = 32, WN = 32, STAGES = 4 }

[params]
BM = { default = 64, values = [32, 64, 128, 256] }
BN = { default = 64, values = [32, 64, 128, 256] }
BK = { default = 16, values = [16, 32] }
WM = { default = 32, values = [16, 32, 64] }
WN = { default = 64, values = [16, 32, 64] }
MMA_K = { default = 8, values = [4, 8] }
STAGES = { default = 3, min = 2, max = 6 }
BLOCKS = { default = 4, values = [1, 2, 3, 4] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
constexpr int PLANES = 1;
#include "dmma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dmma(const double* a, const double* b, double* c, const __grid_constant__ Call call)
{
    multiply_strided(a, b, c, call);
}
