/*
idea = "float64 by tensor cores, with fragments loaded 16 bytes at a time: for any layout, size, batch and part of k."
row = "S3"
dtypes = ["float64"]
capability = "8.0"
invariant = "1"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + BN + 4) * 8"
constraints = [
    "BM % WM == 0", "BN % WN == 0",
    "BM * BN * (WN + 1) * 16 <= WM * WN * STAGES * BK * (BM + BN + 4)",  # 16 rows of each warp lie where stages were
]
tile = ["BN", "BM"]
step = "BK"

costs = [
    "busy_least", "busy_each", "power_long", "power_of_small", "power_above", "single_copies", "single_of_wide",
    "single_of_three", "single_of_four", "multiply_rate", "three_blocks", "generation_s", "read_rate", "odd_written",
    "write_rate", "large_c", "large_c_above", "tall_tiles", "odd_rate", "launch_s", "unhidden",
]

[strides]
a = "either"
b = "either"
c = "rows"
lists = "either"

# A multiprocessor multiplies at its full rate with eight warps, which full generations of blocks have; the rest may have fewer, some for
# each of its four schedulers. Each generation waits for its first stage, and stores its tiles last. Where only two blocks run at once, a
# generation of few blocks takes the time of a full one. Copies of single numbers take time, and so do rows of C that begin anywhere
# (`alone`).
[time]
each = "cdiv(blocks, sms)"
rest = "each % BLOCKS"
warps = "max(1, rest * (BM // WM) * (BN // WN))"
busy = "warps / (4 * cdiv(warps, 4)) * min(1, busy_least + busy_each * cdiv(warps, 4))"
full = "BLOCKS * cdiv(each, BLOCKS) * (each > rest) * (BLOCKS < 3)"
turns = "max(each - rest + rest / busy, full)"
single = "1 - (a_vector >= 16) * (b_vector >= 16)"
power = "1 - (power_long + power_of_small * (BM * BN < 8192)) * ((m * k + k * n) * size * batch > power_above)"
slower = "single_copies - single_of_wide * (BN > 64) + single_of_three * (BLOCKS == 3) + single_of_four * (BLOCKS > 3)"
tiles = "turns * BM * BN * part / (multiply_rate * power * (1 - three_blocks * (BLOCKS == 3)) / (1 + slower * single)) + cdiv(blocks, sms * BLOCKS) * generation_s"
odd = "min(1, n * size % 16)"
memory = "((m * k + k * n) / read_rate + m * n * parts * (1 + odd_written * odd) / write_rate) * size * batch * memory_ratio * (1 + large_c * (m * n * parts * size * batch > large_c_above) + tall_tiles * (BM > 64))"
alone = "odd * m * n * parts * size * batch / odd_rate"
seconds = "launch_s + max(tiles, memory, alone) + unhidden * min(tiles, max(memory, alone))"

[[presets]]
rate = 100
params = { BM = 64, WN = 32, MMA_K = 8, BLOCKS = 3 }

[[presets]]
rate = 100
params = { BM = 64, MMA_K = 8, BLOCKS = 4 }

[[presets]]
rate = 100
params = { BM = 64, BN = 128 }

[params]
BM = { default = 128, values = [32, 64, 128, 256] }
BN = { default = 64, values = [32, 64, 128, 256] }
BK = { default = 16, values = [16, 32] }
WM = { default = 32, values = [16, 32, 64] }
WN = { default = 64, values = [16, 32, 64] }
MMA_K = { default = 4, values = [4, 8] }
STAGES = { default = 3, min = 2, max = 6 }
BLOCKS = { default = 2, values = [1, 2, 3, 4] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
constexpr int PLANES = 1;
#include "dmma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dmma(const double* a, const double* b, double* c, OFFSETS_PARAMETER const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given, OFFSETS);
    multiply_strided(a, b, c, call);
}
