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

unfitted = [
    "small_below", "scaled_wide", "scaled_narrow", "multiply_rate", "narrow_pieces", "small_pieces", "small_narrow",
    "one_piece", "paired", "cache_rate", "cache_large", "large_above", "cache_larger", "larger_above", "cache_apart",
    "generation_s", "odd_written", "memory_rate", "launch_s", "unhidden",
]

[boxes]
a = ["min(BM, cdiv(m, 8) * 8)", "LINE"]
b_down = ["BN // CLUSTER", "LINE"]
c = ["64", "LINE"]

# As in ``hopper.cu``. Narrow pieces read A more often; where a step is one piece, nothing is multiplied while it is added.
[time]
small = "(m * k + k * n) * batch <= small_below"
scales = "(scaled_wide + scaled_narrow * (BN < 256)) * scaled"
multiply = "BM * BN * 128 / multiply_rate * (1 + narrow_pieces * (WIDTH == 64) - small * (small_pieces * (WIDTH == 64) - small_narrow * (BN == 128)) + one_piece * (WIDTH == BN * CHUNK) + paired * (CLUSTER > 1) + scales)"
operands = "(m * k + k * n) * batch"
cache = "cache_rate - cache_large * (operands > large_above) - cache_larger * (operands > larger_above)"
load = "(BM + BN / CLUSTER) * 128 / (lines * cache + (1 - lines) * min(cache, cache_apart))"
tiles = "cdiv(blocks, sms) * (generation_s + cdiv(part, 128) * (max(multiply, load) + load / 100))"
memory = "(m * k + k * n + m * n * out_size * (1 + odd_written * min(1, n * out_size % 16))) * batch / memory_rate * memory_ratio"
seconds = "launch_s + max(tiles, memory) + unhidden * min(tiles, memory)"

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
