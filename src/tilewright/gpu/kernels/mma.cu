/*
idea = "Tensor cores multiply 16-bit numbers, which threads copied to shared memory: for any strides, and for GPUs before Hopper."
row = "S0.9, S2"
dtypes = ["bfloat16", "float16"]
stores = ["bfloat16", "float16", "float32"]
capability = "8.0"
invariant = "1"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * (max(BM * (BK + 8), BK * (BM + 8)) + max(BN * (BK + 8), BK * (BN + 8))) * 2"
tile = ["BN", "BM"]
step = "BK"
constraints = ["BM % WM == 0", "BN % WN == 0", "WM % 16 == 0", "WN % 16 == 0"]

costs = [
    "vector_half", "vector_odd", "tile_small", "tile_smaller", "copy_rate", "odd_step_s", "generation_s",
    "store_element_s", "multiply_rate", "memory_rate", "odd_store_rate", "down_store_rate", "apart_store_rate",
    "launch_s",
]

[strides]
a = "either"
b = "either"
c = "any"
lists = "either"

# A multiprocessor computes its blocks one after another; copies of less than 16 bytes are slower, and each step waits for
# those of single elements, unless other blocks multiply meanwhile. Rows of C at `odd` addresses are stored by words that are put together
# of two elements, and columns element by element.
[time]
vector = "min(a_vector, b_vector)"
slower = "1 + vector_half * (vector < 16) + vector_odd * (vector < 4) + tile_small * (BM * BN < 16384) + tile_smaller * (BM * BN < 4096)"
copied = "(BM + BN) * part * size / copy_rate"
each = "cdiv(blocks, sms)"
waits = "(vector < 4) * cdiv(part, BK) * odd_step_s / min(3, each)"
tiles = "each * (generation_s + BM * BN * store_element_s + max(BM * BN * part * slower / multiply_rate, copied, waits))"
odd = "n * out_size % 4 > 0"
memory = "((m * k + k * n) * size + m * n * parts * out_size) * batch / memory_rate * memory_ratio"
stored = "m * n * out_size * batch * max(odd * (1 - c_down) / odd_store_rate, c_down / down_store_rate, min(1, n * out_size % 16) / apart_store_rate)"
seconds = "launch_s + max(tiles, memory + stored)"

[[presets]]
rate = 80
params = { BM = 64, WM = 32, BN = 64, WN = 32 }

[[presets]]
rate = 60
params = { BM = 32, WM = 32, BN = 64, WN = 16 }

[params]
BM = { default = 128, values = [32, 64, 128] }
BN = { default = 128, values = [64, 128] }
BK = { default = 32, values = [32, 64] }
WM = { default = 64, values = [32, 64] }
WN = { default = 32, values = [16, 32, 64] }
STAGES = { default = 4, min = 2, max = 6 }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
#include "mma.cuh"

using namespace mma_sync;

extern "C" __global__ void __launch_bounds__(THREADS)
mma(const T* a, const T* b, Out* c, OFFSETS_PARAMETER const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given, OFFSETS);
    multiply_strided(a, b, c, call);
}
