/*
idea = "float32 by multiply-adds, 8×16 elements of C for each thread: the pipeline of register_banks for any layout, size, batch and part of k."
row = "S0.9, S1.20, S2"
dtypes = ["float32"]
capability = "8.0"
invariant = "1"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * BK * (BM + 4 + BN + 4) * 4"
constraints = ["BM % WM == 0", "BN % WN == 0", "WM % TM == 0", "WN % TN == 0", "WM // TM * (WN // TN) == 32", "WN // TN % 2 == 0"]
tile = ["BN", "BM"]
step = "BK"

costs = [
    "busy_least", "busy_each", "multiply_rate", "rate_least", "short_steps", "single_copies", "single_of_long",
    "single_of_small", "generation_s", "store_element_s", "written", "odd_written", "small_written", "odd_small_written",
    "memory_rate", "launch_s", "overlap", "unhidden",
]

[strides]
a = "either"
b = "either"
c = "rows"
lists = "either"
padded = "either"

# A multiprocessor multiplies at its full rate with eight warps, which full generations of blocks have; the rest may have fewer, some for
# each of its four schedulers. Each generation waits for its first stage, and stores its tiles last;
# other blocks of the multiprocessor use memory meanwhile. Copies of single numbers of B take time from the multiply-adds.
[time]
each = "cdiv(blocks, sms)"
rest = "each % BLOCKS"
warps = "max(1, rest * (BM // WM) * (BN // WN))"
busy = "warps / (4 * cdiv(warps, 4)) * min(1, busy_least + busy_each * cdiv(warps, 4))"
turns = "each - rest + rest / busy"
single = "1 - b_across * (b_vector >= 16)"
rate = "multiply_rate * (rate_least - 3 / BM - 3 / BN - short_steps * (BK < 16)) / (1 + single * (single_copies + single_of_long * (BK > 8) + single_of_small * (BM < 64)))"
tiles = "turns * BM * BN * part / rate + cdiv(blocks, sms * BLOCKS) * generation_s + each * BM * BN * store_element_s"
odd = "min(1, n * size % 16)"
memory = "(m * k + k * n + m * n * parts * (written + odd_written * odd + small_written * (BM * BN <= 2048) + odd_small_written * odd * (BM * BN <= 4096))) * size * batch / memory_rate * memory_ratio"
seconds = "launch_s + max(tiles, memory + overlap / BLOCKS * tiles) + unhidden / BLOCKS * min(tiles, memory)"

[[presets]]
rate = 100
params = { BK = 8, STAGES = 6 }

[[presets]]
rate = 100
params = { BM = 64, BN = 128, WM = 32, TN = 8, STAGES = 3, BLOCKS = 3 }

[[presets]]
rate = 100
params = { BM = 64, WM = 32, TN = 8, STAGES = 3, BLOCKS = 2 }

[[presets]]
rate = 100
params = { BM = 64, BN = 128, BK = 8, STAGES = 6, BLOCKS = 4 }

[[presets]]
rate = 100
params = { BM = 32, BN = 64, WM = 32, TN = 8, BLOCKS = 8 }

[[presets]]
rate = 100
params = { BM = 64, BN = 64, BK = 8, WM = 32, TN = 8, BLOCKS = 8 }

[[presets]]
rate = 100
params = { BM = 128, BN = 64, BK = 8, WN = 32, TN = 8, STAGES = 6, BLOCKS = 3 }

[[presets]]
rate = 100
params = { BN = 128, BK = 8, WN = 32, TN = 8, BLOCKS = 2 }

[[presets]]
rate = 100
when = "16 < n <= 32"
params = { BN = 32, BK = 8, WN = 32, TN = 8, STAGES = 6, BLOCKS = 6 }

[params]
BM = { default = 128, values = [32, 64, 96, 128, 192, 256] }
BN = { default = 256, values = [32, 64, 96, 128, 192, 256] }
BK = { default = 16, values = [8, 16, 32] }
WM = { default = 64, values = [16, 32, 48, 64, 96, 128] }
WN = { default = 64, values = [16, 32, 48, 64, 96, 128] }
TM = { default = 8, values = [4, 8, 12, 16] }
TN = { default = 16, values = [4, 8, 12, 16] }
STAGES = { default = 4, min = 2, max = 8 }
BLOCKS = { default = 1, values = [1, 2, 3, 4, 5, 6, 8, 12] }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
constexpr int PLANES = 1;
#include "simt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
simt(const float* a, const float* b, float* c, OFFSETS_PARAMETER const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given, OFFSETS);
    multiply_strided(a, b, c, call);
}
