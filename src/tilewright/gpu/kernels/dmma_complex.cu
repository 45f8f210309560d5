/*
idea = "complex128 by tensor cores: four real products, whose sums are real and imaginary parts."
row = "S3"
dtypes = ["complex128"]
capability = "8.0"
invariant = "1"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + BN + 8) * 16"
constraints = [
    "BM % WM == 0", "BN % WN == 0",
    "BM * BN * (WN + 1) * 16 <= WM * WN * STAGES * BK * (BM + BN + 4)",  # 16 rows of each warp lie where stages were
]
tile = ["BN", "BM"]
step = "BK"

costs = [
    "busy_least", "busy_each", "many_small", "multiply_rate", "generation_s", "read_rate", "read_across", "hidden_ratio",
    "block_rate", "block_across", "launch_s", "thin_s",
]

[strides]
a = "either"
b = "either"
c = "rows"
lists = "either"

# A multiprocessor multiplies at its full rate with eight warps, which full generations of blocks have; the rest may have fewer, some for
# each of its four schedulers. Many small tiles wait for the second-level cache (`apart`). Each generation waits for its first stage, and
# stores its tiles last.
[time]
each = "cdiv(blocks, sms)"
rest = "each % BLOCKS"
warps = "max(1, rest * (BM // WM) * (BN // WN))"
busy = "warps / (4 * cdiv(warps, 4)) * min(1, busy_least + busy_each * cdiv(warps, 4))"
turns = "each - rest + rest / busy"
apart = "many_small * (BM * BN < 4096) * (blocks > 8 * sms)"
tiles = "turns * BM * BN * part * (1 + apart) / multiply_rate + cdiv(blocks, sms * BLOCKS) * generation_s"
memory = "(m * k + k * n + m * n * parts) * size * batch / min((read_rate + read_across * b_across) * (1 + hidden_ratio * max(0, memory_ratio - 1)) / memory_ratio, (block_rate + block_across * b_across) * blocks)"
seconds = "launch_s + max(tiles, memory) + (blocks > sms) * (m <= 32) * thin_s"

[[presets]]
rate = 100
params = { BM = 32, WM = 16, STAGES = 3 }

[[presets]]
rate = 100
when = "m <= 32"
params = { BM = 16, WM = 16, BN = 128, STAGES = 3 }

[[presets]]
rate = 100
when = "m <= 64"
params = { BM = 32, WM = 16, BN = 128, STAGES = 3, BLOCKS = 1 }

[params]
BM = { default = 64, values = [16, 32, 64, 128] }
BN = { default = 64, values = [32, 64, 128] }
BK = { default = 16, values = [16, 32] }
WM = { default = 32, values = [16, 32, 64] }
WN = { default = 32, values = [16, 32, 64] }
MMA_K = { default = 4, values = [4, 8] }
STAGES = { default = 2, min = 2, max = 6 }
BLOCKS = { default = 2, values = [1, 2, 3, 4] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
constexpr int PLANES = 2;
#include "dmma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dmma_complex(const double* a, const double* b, double* c, const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given);
    multiply_strided(a, b, c, call);
}
