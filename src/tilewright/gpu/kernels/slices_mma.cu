/*
idea = "Every warp loads its fragments straight from global memory, for a slice of k of its own: each byte of a long operand passes a multiprocessor once."
row = "S0.9, S2"
dtypes = ["bfloat16", "float16", "float64"]
stores = ["bfloat16", "float16", "float32"]
capability = "8.0"
step = "64"
block = ["32 * WARPS_M * WARPS_N * WARPS_K"]
grid = ["cdiv(m, WM * WARPS_M) * cdiv(n, WN * WARPS_N)"]
shared = "WARPS_K * WARPS_M * WARPS_N * WM * WN // 32 * 33 * 4"
tile = ["WN * WARPS_N", "WM * WARPS_M"]
constraints = ["WARPS_M * WARPS_N * WARPS_K <= 16", "WARPS_K * WARPS_M * WARPS_N * WM * WN <= 55296"]
suits = "m <= 128"

costs = [
    "flight_s", "multiply_rate", "multiply_wide_rate", "take_rate", "access_rate", "generation_s", "read_rate",
    "read_wide", "alone_rate", "cache_rate", "wide_tile", "wide_buffers", "wide_single", "apart_share", "sums_rate",
    "launch_s", "unhidden",
]

[strides]
a = "either"
b = "either"
c = "any"

# An access has at most 16 bytes of a row, or of a column, and of what follows each other across k no
# more than a lane has of it. Where blocks are more than run at once, the last ones wait for memory alone.
[time]
rows = "min(m, WM * WARPS_M)"
columns = "min(n, WN * WARPS_N)"
latency = "flight_s * (1 + 2 * memory_ratio) / 3"
taken = "part * (rows + columns) * size"
turns = "cdiv(blocks, sms)"
of_a = "min(a_vector, 16 - a_down * (16 - WM // 8 * size))"
of_b = "min(b_vector, 16 - b_across * (16 - WN // 8 * size))"
accesses = "part * size * WARPS_M * WARPS_N * (WM / of_a + WN / of_b) / 32"
arithmetic = "part * WM * WARPS_M * WN * WARPS_N / (multiply_rate * (size == 2) + multiply_wide_rate * (size == 8))"
flight = "min(RESIDENT, turns) * WARPS_K * BUFFERS * (rows + columns) * 64 * (1 + (size == 8))"
tiles = "turns * max(taken / min(take_rate, flight / latency), arithmetic, accesses / access_rate) + turns / RESIDENT * generation_s"
rate = "(read_rate - read_wide * (size == 8)) / memory_ratio"
memory = "(m * k + k * n) * size * batch / rate"
whole = "blocks // (RESIDENT * sms)"
rest = "blocks - whole * RESIDENT * sms"
alone = "taken / min(alone_rate, WARPS_K * BUFFERS * (rows + columns) * 76.8 / latency * (1 + (size == 8)))"
waves = "(whole > 0) * (whole * RESIDENT * sms * part * columns * size / rate + (rest > 0) * max(rest * part * columns * size / rate, alone))"
cache = "blocks * taken / cache_rate"
registers = "WM * WN * max(4, size) / 128 + BUFFERS * (WM + WN) / 2 + (size == 2) * (WM + WN) / 4 + 34"
double = "(size == 8) * (wide_tile * (WN > 32) + wide_buffers * (BUFFERS > 1) + wide_single * max(a_vector < 16, b_vector < 16))"
spilled = "registers > min(255, 2048 / (RESIDENT * WARPS_M * WARPS_N * WARPS_K)) + 4"
apart = "apart_share * (size == 2) * (WM * WN > 2048) * (min(a_vector, b_vector) < 16)"
sums = "m * n * batch * parts * out_size / sums_rate"
seconds = "launch_s + (max(tiles, memory, waves, cache) + unhidden * min(tiles, memory)) * (1 + spilled / 2 + double + apart) + sums"

[[presets]]
rate = 100
params = { WARPS_K = 16, RESIDENT = 1 }

[[presets]]
rate = 100
params = { WN = 32, BUFFERS = 2 }

[[presets]]
rate = 100
when = "m <= 16"
params = { WN = 32 }

[[presets]]
rate = 100
params = { BUFFERS = 2, RESIDENT = 1 }

[[presets]]
rate = 100
when = "m > 16"
params = { WM = 32, WN = 32, WARPS_K = 16, RESIDENT = 1 }

[[presets]]
rate = 100
when = "m > 16"
params = { WM = 32, WN = 32, BUFFERS = 2, RESIDENT = 1 }

[[presets]]
rate = 100
when = "m > 32"
params = { WM = 64, WN = 64, RESIDENT = 1 }

[[presets]]
rate = 100
when = "m > 32"
params = { WM = 32, WN = 32, WARPS_M = 2, WARPS_N = 2, WARPS_K = 4, RESIDENT = 1 }

[[presets]]
rate = 100
when = "m > 32"
params = { WM = 64, WN = 32, WARPS_N = 2, WARPS_K = 4, RESIDENT = 1 }

[params]
WM = { default = 16, values = [16, 32, 64] }
WN = { default = 64, values = [16, 32, 64] }
WARPS_M = { default = 1, values = [1, 2] }
WARPS_N = { default = 1, values = [1, 2, 4] }
WARPS_K = { default = 8, values = [1, 2, 4, 8, 16] }
BUFFERS = { default = 1, values = [1, 2, 3, 4] }
RESIDENT = { default = 2, values = [1, 2, 3, 4, 6, 8] }
*/
#include "fragments.cuh"

constexpr int TURN = CHUNK * BUFFERS * WARPS_K, STEP = 64;
constexpr int WARPS = WARPS_M * WARPS_N * WARPS_K, BM = WM * WARPS_M, BN = WN * WARPS_N;
extern __shared__ __align__(16) unsigned char memory[];

template <int VECTOR_A, int VECTOR_B> __device__ __forceinline__ void multiply_tile(const T* a, const T* b, Out* c, const Call& call)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / (WARPS_M * WARPS_N);
    const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M % WARPS_N;
    const int across = (call.n - 1) / BN + 1, tiles = ((call.m - 1) / BM + 1) * across;
    const int z = blockIdx.x / tiles, tile = blockIdx.x % tiles, product = z / call.parts;
    const int top = tile / across * BM, left = tile % across * BN;
    const int first = z % call.parts * call.part_steps * STEP;
    const int stop = min((long long)call.k, first + (long long)call.part_steps * STEP);

    const int g = lane / 4, t = lane % 4;
    using A = Operand<T, !A_DOWN, 8, WM / 8, EACH, VECTOR_A>;
    using B = Operand<T, !B_ACROSS, 8, WN / 8, EACH, VECTOR_B, true>;
    const A of_a(a + product * call.next_a, A_DOWN ? call.column_a : call.row_a, top + warp_m * WM, call.m, g, t * EACH);
    const B of_b(b + product * call.next_b, B_ACROSS ? call.row_b : call.column_b, left + warp_n * WN, call.n, g, t * EACH);

    Sum d[WM / 16][WN / 8][4] = {};
    auto multiply = [&](const typename A::Fragments& x, const typename B::Fragments& y) {
        multiply_fragments<!A_DOWN, !B_ACROSS, WM, WN>(d, x, y);
    };

    // The warps of a block take chunks of k in turn, each with BUFFERS chunks under way.
    typename A::Fragments x[BUFFERS];
    typename B::Fragments y[BUFFERS];
    const int whole = first + (stop - first) / CHUNK * CHUNK;
    stream<BUFFERS, CHUNK, TURN>(
        first + slice * BUFFERS * CHUNK, whole,
        [&](int i, int k) {
            of_a.get(x[i], k);
            of_b.get(y[i], k);
        },
        [&](int i, int) { multiply(x[i], y[i]); });
    if (whole < stop && slice == (whole - first) / (CHUNK * BUFFERS) % WARPS_K) {
        of_a.get(x[0], whole, stop - whole - t * EACH);
        of_b.get(y[0], whole, stop - whole - t * EACH);
        multiply(x[0], y[0]);
    }

    // ---- REGISTERS → SHARED → GLOBAL
    using Sums = SliceSums<WARPS_K, WARPS_M * WARPS_N, WM * WN / 32, Sum>;
    Sums sums = { (Sum*)memory };
    Out* to = c + z * call.next_c;
    #pragma unroll
    for (int pass = 0; pass < Sums::PASSES; pass++) {
        sums.put(*(Sum(*)[WM * WN / 32])d, pass);
        for_each_element<BM, BN>(call.row_c == 1, [&](int row, int col) {
            const int r = A::element(row % WM), s = B::element(col % WN), pair = B::lane_of(col % WN);
            const int i = (r / 2 * (WN / 8) + s) * 4 + r % 2 * 2 + pair % 2;
            if (top + row >= call.m || left + col >= call.n || i / Sums::EACH != pass) return;
            const Sum sum = sums.total(col / WN * WARPS_M + row / WM, i, A::lane_of(row % WM) * 4 + pair / 2);
            to[(top + row) * call.row_c + (left + col) * call.column_c] = rounded(sum);
        });
    }
}

// Not inlined, so that it takes no registers from the other way.
__noinline__ __device__ void multiply_edges(const T* a, const T* b, Out* c, const Call& call) { multiply_tile<1, 1>(a, b, c, call); }

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
slices_mma(const T* a, const T* b, Out* c, const __grid_constant__ Call call)
{
    constexpr int VECTOR_A = A_VECTOR / sizeof(T), VECTOR_B = B_VECTOR / sizeof(T);
    // A vector may be loaded only if it lies in the matrix as a whole.
    constexpr int WIDE_A = A_DOWN && VECTOR_A > WM / 8 ? WM / 8 : VECTOR_A, WIDE_B = B_ACROSS && VECTOR_B > WN / 8 ? WN / 8 : VECTOR_B;
    if ((A_DOWN && call.m % WIDE_A) || (B_ACROSS && call.n % WIDE_B)) multiply_edges(a, b, c, call);
    else multiply_tile<WIDE_A, WIDE_B>(a, b, c, call);
}
