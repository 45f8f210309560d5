/*
idea = "float32 by one product of float16 on tensor cores, for precision 'fast': each number is rounded to one of float16."
row = "S0.9, S2"
entry = "split_hopper"
dtypes = ["float16x1"]
stores = ["float32"]
precision = "float16x1"
capability = "9.0a"
persistent = true
triangle = ["BM * CLUSTER", "BN", "CLUSTER"]
suits = "min(k >= 128, m >= 256, n >= 256, m * n * k * batch >= 250000000)"
block = ["128 * (BM // 64 + 1)"]
grid = ["CLUSTER * cdiv(m, BM * CLUSTER) * cdiv(n, BN)"]
shared = "SLOTS * (BM + BN) * 128 + 16 * SLOTS"
tile = ["BN", "BM"]
step = "LINE"
constraints = ["SLOTS * (BM + BN) * 128 + 16 * SLOTS <= 232448"]

costs = [
    "multiply_rate", "power", "power_above", "narrow", "lone", "store_s", "store_rate", "memory_rate", "launch_s",
    "unhidden",
]

[boxes]
a = ["BM", "LINE"]
a_down = ["LINE", "64"]
b = ["LINE // CLUSTER", "64"]
b_down = ["BN // CLUSTER", "LINE"]

# The operands that are rounded first, and multiplied again where rounding loses too much.
[strides]
a = "either"
b = "either"
c = "rows"

# As in ``split_hopper.cu``, with one product for each step. Two blocks that share B need less of the second-level cache.
[time]
work = "m * n * k * batch"
rate = "multiply_rate * (1 - power * (work > power_above) - narrow * (BN < 256) - lone * (CLUSTER == 1))"
store = "store_s + sms * BM * BN * 4 / store_rate"
tiles = "cdiv(blocks, sms) * (store + cdiv(part, LINE) * BM * BN * LINE / rate)"
memory = "(m * k + k * n + m * n * parts) * 4 * batch / memory_rate * memory_ratio"
seconds = "launch_s + max(tiles, memory) + unhidden * min(tiles, memory)"

[[presets]]
rate = 100
params = { BN = 128, SLOTS = 7 }

[[presets]]
rate = 100
params = { CLUSTER = 2, GROUP = 8 }

[params]
BM = { default = 128, values = [128] }
BN = { default = 256, values = [64, 128, 256] }
CHUNK = { default = 1, values = [1] }
SLOTS = { default = 4, min = 3, max = 9 }
CLUSTER = { default = 1, values = [1, 2] }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#define PLANES 1
#include "split_hopper.cu"
