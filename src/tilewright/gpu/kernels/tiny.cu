/*
idea = "A few lanes multiply a tiny product in their registers, and a warp several products at once: nothing waits for other warps."
row = "S2"
dtypes = ["float32", "float64"]
capability = "8.0"
persistent = true
block = ["32 * WARPS"]
grid = ["cdiv(m, TM * LM) * cdiv(n, TN * LN)"]
tile = ["TN * LN", "TM * LM"]
constraints = ["32 % (LM * LN) == 0"]
suits = "min(m <= 64, n <= 64, k <= 256, batch > 1)"

costs = [
    "multiply_rate", "multiply_wide_rate", "access_rate", "memory_rate", "memory_wide", "launch_s",
]

[strides]
a = "either"
b = "either"
c = "any"

[time]
tiles = "cdiv(m, TM * LM) * cdiv(n, TN * LN) * batch"
items = "cdiv(tiles * LM * LN, 32 * WARPS * sms)"
of_a = "min(a_vector, 16 - a_down * max(0, 16 - TM * size))"
of_b = "min(b_vector, 16 - b_across * max(0, 16 - TN * size))"
accesses = "k * size * (TM / of_a + TN / of_b)"
arithmetic = "k * TM * TN / (multiply_rate * (size == 4) + multiply_wide_rate * (size == 8)) * 32"
taken = "items * WARPS * max(arithmetic, accesses / access_rate)"
memory = "(m * k + k * n + m * n) * size * batch / (memory_rate - memory_wide * (size == 8)) * memory_ratio"
seconds = "launch_s + max(taken, memory)"

[[presets]]
rate = 100
when = "max(m, n) <= 16"
params = { TM = 2, TN = 4, LM = 4, LN = 2, BUFFERS = 2, PER_SM = 3 }

[params]
TM = { default = 4, values = [1, 2, 4, 8] }
TN = { default = 8, values = [1, 2, 4, 8] }
LM = { default = 8, values = [1, 2, 4, 8] }
LN = { default = 4, values = [1, 2, 4, 8, 16] }
BUFFERS = { default = 1, values = [1, 2, 4] }
WARPS = { default = 8, values = [2, 4, 8] }
PER_SM = { default = 2, values = [1, 2, 3, 4, 6, 8, 16] }
*/
#include "slices.cuh"

#if TYPE == FLOAT64
typedef double T;
#else
typedef float T;
#endif
constexpr int EACH = 16 / sizeof(T), GROUPS = 32 / (LM * LN);  // groups of lanes, each for a tile of its own
constexpr int BM = TM * LM, BN = TN * LN;

__device__ __forceinline__ float fused(float x, float y, float sum) { return __fmaf_rn(x, y, sum); }
__device__ __forceinline__ double fused(double x, double y, double sum) { return __fma_rn(x, y, sum); }

template <int VECTOR_A, int VECTOR_B> __device__ __forceinline__ void multiply_tiles(const T* a, const T* b, T* c, const Call& call)
{
    using A = Operand<T, !A_DOWN, LM, TM, EACH, VECTOR_A>;
    using B = Operand<T, !B_ACROSS, LN, TN, EACH, VECTOR_B>;
    const int lane = threadIdx.x % 32, of_n = lane % LN, of_m = lane / LN % LM;
    const int across = (call.n - 1) / BN + 1, tiles = ((call.m - 1) / BM + 1) * across, whole = call.k / EACH * EACH;
    const long long all = (long long)tiles * call.batch;
    for (long long i = (blockIdx.x * (long long)WARPS + threadIdx.x / 32) * GROUPS + lane / (LM * LN); i < all; i += gridDim.x * (long long)(WARPS * GROUPS)) {
        const int z = i / tiles, tile = i % tiles, top = tile / across * BM, left = tile % across * BN;
        const A of_a(a + z * call.next_a, A_DOWN ? call.column_a : call.row_a, top, call.m, of_m, 0);
        const B of_b(b + z * call.next_b, B_ACROSS ? call.row_b : call.column_b, left, call.n, of_n, 0);
        T d[TM][TN] = {};
        typename A::Fragments x[BUFFERS];
        typename B::Fragments y[BUFFERS];
        auto multiply = [&](const typename A::Fragments& p, const typename B::Fragments& q) {
            #pragma unroll
            for (int e = 0; e < EACH; e++)
                #pragma unroll
                for (int i = 0; i < TM; i++)
                    #pragma unroll
                    for (int j = 0; j < TN; j++) d[i][j] = fused(p.at(i, e), q.at(j, e), d[i][j]);
        };
        stream<BUFFERS, EACH, BUFFERS * EACH>(
            0, whole,
            [&](int i, int k) {
                of_a.get(x[i], k);
                of_b.get(y[i], k);
            },
            [&](int i, int) { multiply(x[i], y[i]); });
        if (whole < call.k) {
            of_a.get(x[0], whole, call.k - whole);
            of_b.get(y[0], whole, call.k - whole);
            multiply(x[0], y[0]);
        }
        T* to = c + z * call.next_c;
        constexpr int WIDTH = B_ACROSS ? B::WIDTH : 1;
        #pragma unroll
        for (int r = 0; r < TM; r++)
            #pragma unroll
            for (int j = 0; j < TN; j += WIDTH) {
                const int row = top + A::index(r, of_m), col = left + B::index(j, of_n);
                if (row < call.m && col < call.n) store<WIDTH>(to + row * call.row_c + col * call.column_c, &d[r][j], call.n - col, call.column_c);
            }
    }
}

// Not inlined, so that it takes no registers from the other way.
__noinline__ __device__ void multiply_edges(const T* a, const T* b, T* c, const Call& call) { multiply_tiles<1, 1>(a, b, c, call); }

extern "C" __global__ void __launch_bounds__(32 * WARPS, PER_SM)
tiny(const T* a, const T* b, T* c, const __grid_constant__ Call call)
{
    constexpr int VECTOR_A = A_VECTOR / sizeof(T), VECTOR_B = B_VECTOR / sizeof(T);
    // A vector may be loaded only if it lies in the matrix as a whole.
    constexpr int WIDE_A = A_DOWN && VECTOR_A > TM ? TM : VECTOR_A, WIDE_B = B_ACROSS && VECTOR_B > TN ? TN : VECTOR_B;
    if ((A_DOWN && call.m % WIDE_A) || (B_ACROSS && call.n % WIDE_B)) multiply_edges(a, b, c, call);
    else multiply_tiles<WIDE_A, WIDE_B>(a, b, c, call);
}
