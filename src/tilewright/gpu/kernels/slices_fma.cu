/*
idea = "Every warp multiplies a slice of k of its own from registers that it loads straight from global memory, by fused multiply-adds."
row = "S2"
dtypes = ["float32", "float64"]
capability = "8.0"
step = "64"
block = ["32 * WARPS_N * WARPS_K"]
grid = ["cdiv(m, TM * LM) * cdiv(n, TN * LN * WARPS_N)"]
shared = "WARPS_K * WARPS_N * max(2, TM * TN) * 33 * 4"
tile = ["TN * LN * WARPS_N", "TM * LM"]
constraints = ["WARPS_N * WARPS_K <= 16", "WARPS_K * WARPS_N * max(2, TM * TN) * 33 * 4 <= 229376", "32 % (LM * LN) == 0", "LM * LN >= 2"]
suits = "m <= 128"

costs = [
    "multiply_rate", "multiply_wide_rate", "one_buffer_flight", "access_rate", "one_buffer_access", "down_access",
    "few_tall", "few_thin", "few_thin_one", "few_warps", "few_deep", "few_across", "take_rate", "flight_s",
    "generation_s", "memory_rate", "cache_rate", "one_buffer_cache", "store_rate", "single_above", "single_share",
    "single_wide", "b_apart", "launch_s", "unhidden",
]

[strides]
a = "either"
b = "either"
c = "any"

# Of rows of B a block may read parts of sectors. Where columns of B lie along k, few lanes along k take parts of lines only; with one buffer more loads
# are under way there than it has. Of float64 a thread has few registers: many rows, and many buffers of columns, are slower.
[time]
rows = "min(m, TM * LM)"
columns = "min(n, TN * LN * WARPS_N)"
taken = "part * (rows + columns) * size"
turns = "cdiv(blocks, sms)"
of_a = "min(a_vector, 16 - a_down * max(0, 16 - TM * size))"
of_b = "min(b_vector, 16 - b_across * max(0, 16 - TN * size))"
accesses = "part * size * WARPS_N * LM * LN * (TM / of_a + TN / of_b) / 32"
arithmetic = "part * TM * LM * TN * LN * WARPS_N / (multiply_rate * (size == 4) + multiply_wide_rate * (size == 8))"
one = "BUFFERS < 2"
flight = "min(RESIDENT, turns) * WARPS_K * (BUFFERS + one) * (1 + (size == 8) * (1 - one_buffer_flight * one * (TM < 2) * b_across)) * (BOTH * rows + columns) * 512 / (LM * LN)"
rate = "access_rate * (1 + (WARPS_N * WARPS_K * min(RESIDENT, turns) >= 16) / 2) * (1 + one_buffer_access * one)"
whole = "b_across + (1 - b_across) * down_access * min(1, 8 / (LM * LN))"
few = "few_tall * (TM > 2) - (few_thin + few_thin_one * (BUFFERS < 2) * (RESIDENT > 2)) * (TM < 2) * b_across + few_warps * (WARPS_K < 16) * b_across + few_deep * (BUFFERS > 2) * (1 - b_across) + few_across * (TM > 1) * b_across"
tiles = "turns * max(taken / min(take_rate, flight / flight_s), arithmetic, accesses / whole / rate) + turns / RESIDENT * generation_s"
sectors = "1 + b_across * (n > columns) * max(0, 32 / (columns * size) - 1) + (1 - b_across) * b_apart * LM * LN * of_b"
memory = "(m * k + k * n * sectors) * size * batch / memory_rate * memory_ratio"
cache = "blocks * taken * sectors / (cache_rate * (1 + one_buffer_cache * one))"
stored = "m * n * batch * parts * out_size / store_rate"
single = "max(a_vector < 16, b_vector < 16) * (m * k + k * n > single_above) * (single_share + single_wide * (size == 8))"
seconds = "launch_s + (max(tiles, memory, cache) + unhidden * min(tiles, memory)) * (1 + (size == 8) * (few + 2 * (TM * LM > 4)) + (size == 4) * (BUFFERS < 2) * (TM < 8) / 10) * (1 + single) + stored"

[[presets]]
rate = 100
when = "m > 4"
params = { TM = 8, LM = 2, LN = 16, WARPS_K = 16 }

[[presets]]
rate = 100
when = "m > 4"
params = { TM = 8, LM = 2, LN = 16, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m > 4"
params = { TM = 8, LM = 2, TN = 8, LN = 16 }

[[presets]]
rate = 100
when = "m > 4"
params = { TM = 8, LM = 2, TN = 8, LN = 4, BOTH = 1 }

[[presets]]
rate = 100
when = "1 < m <= 8"
params = { TM = 4, LN = 16, RESIDENT = 2 }

[[presets]]
rate = 100
when = "1 < m <= 8"
params = { TM = 4, LN = 4, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m <= 2"
params = { TM = 1, WARPS_K = 16, BUFFERS = 4 }

[[presets]]
rate = 100
when = "m <= 2"
params = { TM = 1, BUFFERS = 4, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m <= 2"
params = { TM = 1, TN = 2, LN = 2, BUFFERS = 4, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m <= 2"
params = { TM = 1, TN = 1, LN = 2, BUFFERS = 1, RESIDENT = 4 }

[[presets]]
rate = 100
when = "m == 1"
params = { TM = 1, LN = 16, BUFFERS = 1, RESIDENT = 4 }

[[presets]]
rate = 100
when = "m == 2"
params = { TM = 2, TN = 2, LN = 2, BUFFERS = 1, RESIDENT = 2 }

[[presets]]
rate = 100
when = "4 < m <= 8"
params = { TM = 8, LN = 8, BUFFERS = 1, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m > 16"
params = { TM = 8, TN = 8, LM = 4, LN = 4, BOTH = 1 }

[[presets]]
rate = 100
when = "m > 32"
params = { TM = 8, TN = 8, LM = 8, LN = 4, BOTH = 1, WARPS_N = 2, WARPS_K = 4 }

[params]
TM = { default = 16, values = [1, 2, 4, 8, 16] }
TN = { default = 4, values = [1, 2, 4, 8] }
LM = { default = 1, values = [1, 2, 4, 8] }
LN = { default = 32, values = [1, 2, 4, 8, 16, 32] }
WARPS_N = { default = 1, values = [1, 2, 4] }
WARPS_K = { default = 8, values = [1, 2, 4, 8, 16] }
BUFFERS = { default = 2, values = [1, 2, 3, 4, 8] }
BOTH = { default = 0, values = [0, 1] }
RESIDENT = { default = 1, values = [1, 2, 3, 4, 6, 8] }
*/
#include "types.cuh"

#if TYPE == FLOAT64
typedef double T;
#else
typedef float T;
#endif
__device__ __forceinline__ float fused(float x, float y, float sum) { return __fmaf_rn(x, y, sum); }
__device__ __forceinline__ double fused(double x, double y, double sum) { return __fma_rn(x, y, sum); }
template <typename Number> __device__ __forceinline__ Number from_lane(Number x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
#include "slices_fma.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
slices_fma(const T* a, const T* b, T* c, const __grid_constant__ Call call)
{
    multiply_slices(a, b, c, call);
}
