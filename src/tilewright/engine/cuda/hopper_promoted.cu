/*
idea = "Tensor cores keep 13 bits of sums of float8: those of each 128 of k are added up in float32, while the next are formed."
row = "S0.9, S2"
entry = "hopper"
dtypes = ["float8"]
stores = ["bfloat16", "float16", "float32"]
capability = "9.0a"
invariant = "1"
persistent = true
step = "LINE"
block = ["128 * (BM // 64 + 1)"]
grid = ["CLUSTER * cdiv(m, BM * CLUSTER) * cdiv(n, BN)"]
shared = "STAGES * (BM + BN) * 128 + BM // 64 * 16384 + 16 * STAGES"
finishes = "BM // 64 * BN * 4"
blocks = "128 % WIDTH == 0"
tile = ["BN", "BM"]
constraints = [
    "STAGES * (BM + BN) * 128 + BM // 64 * 16384 + 16 * STAGES <= 232448",
    "BN % WIDTH == 0",
    "BN + WIDTH * (1 + (BN * CHUNK > WIDTH)) <= 384",  # sums of two rows of a thread, in registers
]

[boxes]
a = ["min(BM, cdiv(m, 8) * 8)", "LINE"]
b_down = ["BN // CLUSTER", "LINE"]
c = ["64", "LINE"]

# As in ``hopper.cu``. Narrow pieces read A more often; where a step is one piece, nothing is multiplied while it is added.
[time]
small = "(m * k + k * n) * batch <= 40e6"
scales = "(0.08 + 0.07 * (BN < 256)) * scaled"
multiply = "BM * BN * 128 / 5.1e12 * (1 + 0.06 * (WIDTH == 64) - small * (0.15 * (WIDTH == 64) - 0.12 * (BN == 128)) + 0.04 * (WIDTH == BN * CHUNK) + 0.01 * (CLUSTER > 1) + scales)"
operands = "(m * k + k * n) * batch"
cache = "9.3e10 - 4.2e10 * (operands > 4.4e7) - 10e9 * (operands > 600e6)"
load = "(BM + BN / CLUSTER) * 128 / (lines * cache + (1 - lines) * min(cache, 7.5e10))"
tiles = "cdiv(blocks, sms) * (8.8e-7 + cdiv(part, 128) * (max(multiply, load) + load / 100))"
memory = "(m * k + k * n + m * n * out_size * (1 + 0.5 * min(1, n * out_size % 16))) * batch / 4.3e12 * memory_ratio"
seconds = "2.9e-6 + max(tiles, memory) + 0.204 * min(tiles, memory)"

[[presets]]
rate = 100
params = { WIDTH = 96, CLUSTER = 2, GROUP = 8 }

[[presets]]
rate = 100
params = { BN = 256, WIDTH = 64, CHUNK = 2 }

[[presets]]
rate = 100
params = { BN = 256, WIDTH = 64, CHUNK = 2, CLUSTER = 2, GROUP = 8 }

[[presets]]
rate = 100
params = { BN = 128, WIDTH = 128, CHUNK = 2, STAGES = 6 }

[[presets]]
rate = 100
params = { BN = 128, WIDTH = 128, CHUNK = 2, STAGES = 6, CLUSTER = 2, GROUP = 8 }

[[presets]]
rate = 100
params = { BM = 64, BN = 128, WIDTH = 128, CHUNK = 2, STAGES = 8 }

[[presets]]
rate = 100
params = { BM = 64, BN = 64, WIDTH = 64, CHUNK = 2, STAGES = 8 }

[params]
BM = { default = 128, values = [64, 128] }
BN = { default = 192, values = [64, 128, 192, 256] }
WIDTH = { default = 192, values = [64, 96, 128, 192] }
CHUNK = { default = 1, values = [1, 2, 4] }
STAGES = { default = 4, min = 2, max = 8 }
CLUSTER = { default = 1, values = [1, 2] }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#define PROMOTED 1
#include "hopper.cu"
