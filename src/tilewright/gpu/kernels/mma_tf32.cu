/*
idea = "Tensor cores multiply float32 rounded to TF32, which threads copied to shared memory: for any strides, and for GPUs before Hopper."
row = "S0.9, S2"
dtypes = ["tf32"]
stores = ["bfloat16", "float16", "float32"]
capability = "8.0"
invariant = "1"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * (max(BM * (BK + 4), BK * (BM + 8)) + max(BN * (BK + 4), BK * (BN + 8))) * 4"
tile = ["BN", "BM"]
step = "BK"
constraints = ["BM % WM == 0", "BN % WN == 0", "BM // WM * (BN // WN) <= 8"]

costs = [
    "vector_half", "vector_odd", "tile_small", "tile_smaller", "tile_smallest", "alone", "a_transposed", "copy_rate",
    "flight_s", "generation_s", "store_element_s", "multiply_rate", "memory_rate", "down_store_rate", "apart_store_rate",
    "narrow_store_rate", "launch_s",
]

[strides]
a = "either"
b = "either"
c = "any"
lists = "either"

# Tensor cores have half of mma's rate, since a TF32 has twice the bytes; small tiles load and round more fragments for an MMA. Copies come
# as fast as the bytes that the blocks of a multiprocessor have under way, and those of less than 16 bytes take time of the threads. Four
# warps alone wait for their fragments, and fragments of an A whose columns follow each other are loaded number by number. The rates are
# those of an H100.
[time]
vector = "min(a_vector, b_vector)"
each = "cdiv(blocks, sms)"
slower = "1 + vector_half * (vector < 16) + vector_odd * (vector < 8) + tile_small * (BM * BN < 16384) + tile_smaller * (BM * BN < 8192) + tile_smallest * (BM * BN < 4096) + alone * (each < 2) + a_transposed * a_down"
stage = "(BM + BN) * BK * size"
flight = "min(each, max(1, 184e3 // (STAGES * stage))) * (STAGES - 1) * stage"
copied = "(BM + BN) * part * size / min(copy_rate, flight / flight_s)"
tiles = "each * (generation_s + BM * BN * store_element_s + max(BM * BN * part * slower / multiply_rate, copied))"
memory = "((m * k + k * n) * size + m * n * parts * out_size) * batch / memory_rate * memory_ratio"
stored = "m * n * out_size * batch * (c_down / down_store_rate + (1 - c_down) * min(1, n * out_size % 16) / apart_store_rate + (BM == 32) / narrow_store_rate)"
seconds = "launch_s + max(tiles, memory + stored)"

[[presets]]
rate = 80
params = { BM = 64, BN = 64, BK = 32, WM = 32, WN = 32 }

[[presets]]
rate = 90
params = { BM = 64, WN = 32 }

[[presets]]
rate = 60
params = { BM = 32, BN = 64, BK = 32, WM = 32, WN = 16 }

[[presets]]
rate = 70
params = { BM = 32, BK = 32, WM = 32, WN = 32 }

[params]
BM = { default = 128, values = [16, 32, 64, 128] }
BN = { default = 128, values = [64, 128] }
BK = { default = 16, values = [16, 32] }
WM = { default = 64, values = [16, 32, 64] }
WN = { default = 64, values = [16, 32, 64] }
STAGES = { default = 4, min = 2, max = 6 }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
#include "mma.cuh"

using namespace mma_sync;

// Each thread may have 128 registers, or 256 where its sums take 128.
constexpr int BLOCKS = (WM * WN > 2048 ? 256 : 512) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma_tf32(const T* a, const T* b, Out* c, const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given);
    multiply_strided(a, b, c, call);
}
