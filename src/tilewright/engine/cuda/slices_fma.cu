/*
idea = "Every warp multiplies a slice of k of its own from registers that it loads straight from global memory, by fused multiply-adds."
row = "S2"
dtypes = ["float32", "float64"]
capability = "8.0"
step = "32 * WARPS_K"
block = ["32 * WARPS_N * WARPS_K"]
grid = ["cdiv(m, TM * LM) * cdiv(n, TN * LN * WARPS_N)"]
shared = "WARPS_K // 2 * WARPS_N * TM * TN * 32 * 8"
tile = ["TN * LN * WARPS_N", "TM * LM"]
constraints = ["WARPS_N * WARPS_K <= 16", "WARPS_K // 2 * WARPS_N * TM * TN <= 896", "32 % (LM * LN) == 0"]
suits = "min(m <= 128, n <= 128)"

[strides]
a = "either"
b = "either"
c = "any"

[time]
memory = "(m * k + k * n) * size * batch / 3.9e12"
seconds = "2.5e-6 + memory"

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
#include "slices.cuh"

#if TYPE == FLOAT64
typedef double T;
#else
typedef float T;
#endif
constexpr int LK = 32 / (LM * LN), EACH = 16 / sizeof(T);  // lanes along k, and the elements along k that a lane loads of each row
constexpr int CHUNK = LK * EACH, STRIDE = CHUNK * WARPS_K, STEP = 32 * WARPS_K, WARPS = WARPS_N * WARPS_K;
constexpr int BM = TM * LM, BN = TN * LN;
extern __shared__ __align__(16) unsigned char memory[];

__device__ __forceinline__ float fused(float x, float y, float sum) { return __fmaf_rn(x, y, sum); }
__device__ __forceinline__ double fused(double x, double y, double sum) { return __fma_rn(x, y, sum); }

template <int VECTOR_A, int VECTOR_B> __device__ __forceinline__ void multiply_tile(const T* a, const T* b, T* c, const Call& call)
{
    // Neighbouring lanes load what lies side by side in B.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / WARPS_N;
    const int along = B_ACROSS ? lane / LN % LK : lane % LK, of_n = B_ACROSS ? lane % LN : lane / LK % LN, of_m = lane / (LN * LK);
    const int across = (call.n - 1) / (BN * WARPS_N) + 1, tiles = ((call.m - 1) / BM + 1) * across;
    const int z = blockIdx.x / tiles, tile = blockIdx.x % tiles, product = z / call.parts;
    const int top = tile / across * BM, left = (tile % across * WARPS_N + warp % WARPS_N) * BN;
    const int first = z % call.parts * call.part_steps * STEP;
    const int stop = min((long long)call.k, first + (long long)call.part_steps * STEP);

    using A = Operand<T, !A_DOWN, LM, TM, EACH, VECTOR_A>;
    using B = Operand<T, !B_ACROSS, LN, TN, EACH, VECTOR_B>;
    const A of_a(a + product * call.next_a, A_DOWN ? call.column_a : call.row_a, top, call.m, of_m, along * EACH);
    const B of_b(b + product * call.next_b, B_ACROSS ? call.row_b : call.column_b, left, call.n, of_n, along * EACH);

    T d[TM][TN] = {};
    typename A::Fragments x[BOTH ? BUFFERS : 1];
    typename B::Fragments y[BUFFERS];
    auto multiply = [&](const typename A::Fragments& p, const typename B::Fragments& q) {
        #pragma unroll
        for (int e = 0; e < EACH; e++)
            #pragma unroll
            for (int i = 0; i < TM; i++)
                #pragma unroll
                for (int j = 0; j < TN; j++) d[i][j] = fused(p.at(i, e), q.at(j, e), d[i][j]);
    };
    const int whole = first + (stop - first) / CHUNK * CHUNK;
    const int k = stream<BUFFERS, STRIDE>(
        first + slice * CHUNK, whole,
        [&](int i, int k) {
            if (BOTH) of_a.get(x[BOTH ? i : 0], k);
            of_b.get(y[i], k);
        },
        [&](int i, int k) {
            if (!BOTH) of_a.get(x[0], k);
            multiply(x[BOTH ? i : 0], y[i]);
        });
    if (k == whole && k < stop) {
        of_a.get(x[0], k, stop - k - along * EACH);
        of_b.get(y[0], k, stop - k - along * EACH);
        multiply(x[0], y[0]);
    }

    // ---- the sums of lanes along k, then of slices
    constexpr int NEXT = B_ACROSS ? LN : 1;  // lanes from one to the next along k
    #pragma unroll
    for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++)
            #pragma unroll
            for (int half = LK / 2; half > 0; half /= 2) d[i][j] += __shfl_xor_sync(~0u, d[i][j], half * NEXT);
    add_slices<WARPS_K, WARPS_N, TM * TN>(&d[0][0], memory);
    if (slice > 0) return;

    // ---- REGISTERS → GLOBAL
    T* to = c + z * call.next_c;
    #pragma unroll
    for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++) {
            const int row = top + A::index(i, of_m), col = left + B::index(j, of_n);
            if ((i * TN + j) % LK == along && row < call.m && col < call.n) to[row * call.row_c + col * call.column_c] = d[i][j];
        }
}

// Not inlined, so that it takes no registers from the other way.
__noinline__ __device__ void multiply_edges(const T* a, const T* b, T* c, const Call& call) { multiply_tile<1, 1>(a, b, c, call); }

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
slices_fma(const T* a, const T* b, T* c, const __grid_constant__ Call call)
{
    constexpr int VECTOR_A = A_VECTOR / sizeof(T), VECTOR_B = B_VECTOR / sizeof(T);
    // A vector may be loaded only if it lies in the matrix as a whole.
    constexpr int WIDE_A = A_DOWN && VECTOR_A > TM ? TM : VECTOR_A, WIDE_B = B_ACROSS && VECTOR_B > TN ? TN : VECTOR_B;
    if ((A_DOWN && call.m % WIDE_A) || (B_ACROSS && call.n % WIDE_B)) multiply_edges(a, b, c, call);
    else multiply_tile<WIDE_A, WIDE_B>(a, b, c, call);
}
