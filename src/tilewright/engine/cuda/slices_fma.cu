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

[strides]
a = "either"
b = "either"
c = "any"

# The rates are those of an H200. Where columns of B lie along k, few lanes along k take parts of lines only; with one buffer more loads
# are under way there than it has. Of float64 a thread has few registers: many rows, and many buffers of columns, are slower.
[time]
rows = "min(m, TM * LM)"
columns = "min(n, TN * LN * WARPS_N)"
taken = "part * (rows + columns) * size"
turns = "cdiv(blocks, sms)"
of_a = "min(a_vector, 16 - a_down * max(0, 16 - TM * size))"
of_b = "min(b_vector, 16 - b_across * max(0, 16 - TN * size))"
accesses = "part * size * WARPS_N * LM * LN * (TM / of_a + TN / of_b) / 32"
arithmetic = "part * TM * LM * TN * LN * WARPS_N / (1.3e11 * (size == 4) + 6.5e10 * (size == 8))"
one = "BUFFERS < 2"
flight = "min(RESIDENT, turns) * WARPS_K * (BUFFERS + one) * (1 + (size == 8) * (1 - 1.2 * one * (TM < 2) * b_across)) * (BOTH * rows + columns) * 512 / (LM * LN)"
rate = "1.75e8 * (1 + (WARPS_N * WARPS_K * min(RESIDENT, turns) >= 16) / 2) * (1 + 1.6 * one)"
whole = "b_across + (1 - b_across) * 0.7 * min(1, 8 / (LM * LN))"
few = "0.12 * (TM > 2) - (0.05 + 0.05 * (BUFFERS < 2) * (RESIDENT > 2)) * (TM < 2) * b_across + 0.03 * (WARPS_K < 16) * b_across + 0.15 * (BUFFERS > 2) * (1 - b_across) + 0.3 * (TM > 1) * b_across"
tiles = "turns * max(taken / min(60e9, flight / 1.2e-6), arithmetic, accesses / whole / rate) + turns / RESIDENT * 1e-6"
memory = "(m * k + k * n) * size * batch / 4.3e12"
cache = "blocks * taken / (5.2e12 * (1 + 0.3 * one))"
stored = "m * n * batch * parts * out_size / 3e12"
single = "max(a_vector < 16, b_vector < 16) * (m * k + k * n > 4e6) * (0.25 + 0.3 * (size == 8))"
seconds = "3e-6 + (max(tiles, memory, cache) + 0.1 * min(tiles, memory)) * (1 + (size == 8) * (few + 2 * (TM * LM > 4)) + (size == 4) * (BUFFERS < 2) * (TM < 8) / 10) * (1 + single) + stored"

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
#include "slices.cuh"

#if TYPE == FLOAT64
typedef double T;
#else
typedef float T;
#endif
__device__ __forceinline__ float fused(float x, float y, float sum) { return __fmaf_rn(x, y, sum); }
__device__ __forceinline__ double fused(double x, double y, double sum) { return __fma_rn(x, y, sum); }
constexpr int LK = 32 / (LM * LN), EACH = 16 / sizeof(T);  // lanes along k, and the elements along k that a lane loads of each row
constexpr int CHUNK = LK * EACH, TURN = CHUNK * BUFFERS * WARPS_K, STEP = 64, WARPS = WARPS_N * WARPS_K;
constexpr int BM = TM * LM, BN = TN * LN;
extern __shared__ __align__(16) unsigned char memory[];

template <int VECTOR_A, int VECTOR_B> __device__ __forceinline__ void multiply_tile(const T* a, const T* b, T* c, const Call& call)
{
    // Neighbouring lanes load what lies side by side in B.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / WARPS_N;
    const int along = B_ACROSS ? lane / LN % LK : lane % LK, of_n = B_ACROSS ? lane % LN : lane / LK % LN, of_m = lane / (LN * LK);
    const int across = (call.n - 1) / (BN * WARPS_N) + 1, tiles = ((call.m - 1) / BM + 1) * across;
    const int z = blockIdx.x / tiles, tile = blockIdx.x % tiles, product = z / call.parts;
    const int top = tile / across * BM, left = tile % across * (BN * WARPS_N);
    const int first = z % call.parts * call.part_steps * STEP;
    const int stop = min((long long)call.k, first + (long long)call.part_steps * STEP);

    using A = Operand<T, !A_DOWN, LM, TM, EACH, VECTOR_A>;
    using B = Operand<T, !B_ACROSS, LN, TN, EACH, VECTOR_B, true>;
    const A of_a(a + product * call.next_a, A_DOWN ? call.column_a : call.row_a, top, call.m, of_m, along * EACH);
    const B of_b(b + product * call.next_b, B_ACROSS ? call.row_b : call.column_b, left + warp % WARPS_N * BN, call.n, of_n, along * EACH);

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
    stream<BUFFERS, CHUNK, TURN>(
        first + slice * BUFFERS * CHUNK, whole,
        [&](int i, int k) {
            if (BOTH) of_a.get(x[BOTH ? i : 0], k);
            of_b.get(y[i], k);
        },
        [&](int i, int k) {
            if (!BOTH) of_a.get(x[0], k);
            multiply(x[BOTH ? i : 0], y[i]);
        });
    if (whole < stop && slice == (whole - first) / (CHUNK * BUFFERS) % WARPS_K) {
        of_a.get(x[0], whole, stop - whole - along * EACH);
        of_b.get(y[0], whole, stop - whole - along * EACH);
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

    // ---- REGISTERS → SHARED → GLOBAL
    using Sums = SliceSums<WARPS_K, WARPS_N, TM * TN, T>;
    Sums sums = { (T*)memory };
    T* to = c + z * call.next_c;
    #pragma unroll
    for (int pass = 0; pass < Sums::PASSES; pass++) {
        sums.put(*(T(*)[TM * TN])d, pass);
        for_each_element<BM, BN * WARPS_N>(call.row_c == 1, [&](int row, int col) {
            const int i = A::element(row) * TN + B::element(col % BN), of_n = B::lane_of(col % BN);
            if (top + row >= call.m || left + col >= call.n || i / Sums::EACH != pass) return;
            const T sum = sums.total(col / BN, i, A::lane_of(row) * (LN * LK) + (B_ACROSS ? of_n : of_n * LK));
            to[(top + row) * call.row_c + (left + col) * call.column_c] = sum;
        });
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
