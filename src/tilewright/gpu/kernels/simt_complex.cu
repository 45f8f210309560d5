/*
idea = "complex64: four real multiply-adds for each complex one."
row = "S0.9"
dtypes = ["complex64"]
capability = "8.0"
invariant = "1"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + 4 + BN + 4) * 8"
constraints = ["BM % WM == 0", "BN % WN == 0", "WM % TM == 0", "WN % TN == 0", "WM // TM * (WN // TN) == 32", "WN // TN % 2 == 0"]
tile = ["BN", "BM"]
step = "BK"

costs = [
    "busy_least", "busy_each", "multiply_rate", "generation_s", "memory_rate", "launch_s", "overlap",
]

[strides]
a = "either"
b = "either"
c = "rows"
lists = "either"

# A multiprocessor multiplies at its full rate with eight warps, which full generations of blocks have; the rest may have fewer, some for
# each of its four schedulers. Each generation waits for its first stage, and stores its tiles last.
[time]
each = "cdiv(blocks, sms)"
rest = "each % BLOCKS"
warps = "max(1, rest * (BM // WM) * (BN // WN))"
busy = "warps / (4 * cdiv(warps, 4)) * min(1, busy_least + busy_each * cdiv(warps, 4))"
turns = "each - rest + rest / busy"
tiles = "turns * BM * BN * part / multiply_rate + cdiv(blocks, sms * BLOCKS) * generation_s"
memory = "(m * k + k * n + m * n * parts) * size * batch / memory_rate * memory_ratio"
seconds = "launch_s + max(tiles, memory + overlap / BLOCKS * tiles)"

[[presets]]
rate = 100
params = { BM = 64, BLOCKS = 2 }

[[presets]]
rate = 100
params = { BM = 64, BN = 64, WM = 32, TN = 4, BLOCKS = 3 }

[[presets]]
rate = 100
when = "m <= 64"
params = { BM = 32, WM = 32, TN = 4, BLOCKS = 4 }

[[presets]]
rate = 100
when = "m <= 64"
params = { BM = 32, BN = 64, WM = 32, TN = 4, STAGES = 6, BLOCKS = 6 }

[params]
BM = { default = 128, values = [32, 64, 128] }
BN = { default = 128, values = [32, 64, 128] }
BK = { default = 8, values = [8, 16] }
WM = { default = 64, values = [16, 32, 64] }
WN = { default = 32, values = [16, 32, 64] }
TM = { default = 8, values = [4, 8] }
TN = { default = 8, values = [4, 8] }
STAGES = { default = 4, min = 2, max = 8 }
BLOCKS = { default = 1, values = [1, 2, 3, 4, 6, 8] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
constexpr int PLANES = 2;
#include "simt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
simt_complex(const float* a, const float* b, float* c, const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given);
    multiply_strided(a, b, c, call);
}
