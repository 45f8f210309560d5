/*
idea = "Complex numbers: the same slices of k as slices_fma, with four real multiply-adds for each complex one."
row = "S2"
dtypes = ["complex64", "complex128"]
capability = "8.0"
step = "64"
block = ["32 * WARPS_N * WARPS_K"]
grid = ["cdiv(m, TM * LM) * cdiv(n, TN * LN * WARPS_N)"]
shared = "WARPS_K * WARPS_N * max(4, TM * TN) * 33 * 4"
tile = ["TN * LN * WARPS_N", "TM * LM"]
constraints = ["WARPS_N * WARPS_K <= 16", "WARPS_K * WARPS_N * max(4, TM * TN) * 33 * 4 <= 229376", "32 % (LM * LN) == 0", "LM * LN >= 2"]
suits = "m <= 64"

costs = [
    "multiply_rate", "multiply_wide_rate", "access_rate", "take_rate", "flight_s", "few_warps", "generation_s",
    "read_rate", "across", "cache_rate", "sums_rate", "spilled_share", "spilled_half", "launch_s",
]

[strides]
a = "either"
b = "either"
c = "any"

# Lanes that have other rows of A, and columns of B that lie along k or few
# that lie across it, take parts of lines.
[time]
rows = "min(m, TM * LM)"
columns = "min(n, TN * LN * WARPS_N)"
taken = "part * (rows + columns) * size"
turns = "cdiv(blocks, sms)"
wide = "size == 16"
arithmetic = "part * TM * LM * TN * LN * WARPS_N / (multiply_rate - multiply_wide_rate * wide)"
accesses = "part * size * LM * LN * WARPS_N * (TM + TN) / access_rate"
alone = "(blocks <= sms) * (WARPS_N * WARPS_K < 16)"
flight = "min(RESIDENT, turns) * WARPS_N * WARPS_K * BUFFERS * (TN + TM * BOTH / 2) * 512"
tiles = "turns * max(taken / min(take_rate, flight / flight_s), max(arithmetic, accesses) * (1 + few_warps * alone)) + turns / RESIDENT * generation_s"
memory = "(m * k + k * n) * size * batch / read_rate * (1 + across * b_across * max(0, 4 - LN)) * memory_ratio"
cache = "blocks * taken / cache_rate"
sums = "(parts > 1) * m * n * parts * out_size * batch * 2 / sums_rate"
spilled = "wide * (spilled_share * (TM * TN > 16) + spilled_half * (TM * WARPS_K * TN == 64))"
seconds = "launch_s + max(tiles, memory, cache) * (1 + spilled) + sums"

[[presets]]
rate = 100
when = "m <= 2"
params = { TM = 1, TN = 2, LM = 1, BUFFERS = 1, RESIDENT = 4 }

[[presets]]
rate = 100
when = "m <= 2"
params = { TM = 1, TN = 4, LM = 1, WARPS_K = 16, BUFFERS = 1, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m <= 2"
params = { TM = 1, LM = 1, LN = 2, WARPS_K = 16, BUFFERS = 1, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m == 2"
params = { TM = 2, LM = 1, LN = 4, WARPS_K = 16, BUFFERS = 1, RESIDENT = 2 }

[[presets]]
rate = 100
when = "1 < m <= 4"
params = { TM = 4, TN = 4, LM = 1, LN = 4, RESIDENT = 2 }

[[presets]]
rate = 100
when = "2 < m <= 8"
params = { TM = 8, TN = 4, LM = 1, BOTH = 1 }

[[presets]]
rate = 100
when = "2 < m <= 8"
params = { LM = 1, RESIDENT = 2 }

[[presets]]
rate = 100
when = "m > 8"
params = { LN = 16 }

[params]
TM = { default = 8, values = [1, 2, 4, 8] }
TN = { default = 2, values = [1, 2, 4] }
LM = { default = 2, values = [1, 2, 4, 8] }
LN = { default = 8, values = [1, 2, 4, 8, 16, 32] }
WARPS_N = { default = 1, values = [1, 2, 4] }
WARPS_K = { default = 8, values = [1, 2, 4, 8, 16] }
BUFFERS = { default = 2, values = [1, 2, 3, 4, 8] }
BOTH = { default = 0, values = [0, 1] }
RESIDENT = { default = 1, values = [1, 2, 3, 4, 6, 8] }
*/
#include "types.cuh"

#if TYPE == COMPLEX128
typedef double Real;
#else
typedef float Real;
#endif
__device__ __forceinline__ float multiply_add(float x, float y, float sum) { return __fmaf_rn(x, y, sum); }
__device__ __forceinline__ double multiply_add(double x, double y, double sum) { return __fma_rn(x, y, sum); }

struct T {  // aligned as its parts are, which is as operands are
    Real re, im;
};
__device__ __forceinline__ T fused(T x, T y, T sum)
{
    sum.re = multiply_add(x.re, y.re, sum.re);
    sum.im = multiply_add(x.re, y.im, sum.im);
    sum.re = multiply_add(-x.im, y.im, sum.re);
    sum.im = multiply_add(x.im, y.re, sum.im);
    return sum;
}
__device__ __forceinline__ T& operator+=(T& sum, T x)
{
    sum.re += x.re;
    sum.im += x.im;
    return sum;
}
__device__ __forceinline__ T from_lane(T x, int mask)
{
    return { __shfl_xor_sync(~0u, x.re, mask), __shfl_xor_sync(~0u, x.im, mask) };
}
#include "slices_fma.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
slices_complex(const T* a, const T* b, T* c, const __grid_constant__ Call call)
{
    multiply_slices(a, b, c, call);
}
