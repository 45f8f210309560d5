/*
idea = "A warp multiplies one tiny product after another by tensor cores, whose fragments it loads straight from global memory."
row = "S0.9, S2"
dtypes = ["bfloat16", "float16", "float64"]
capability = "8.0"
persistent = true
block = ["32 * WARPS"]
grid = ["cdiv(m, WM) * cdiv(n, WN)"]
tile = ["WN", "WM"]
suits = "min(m <= 64, n <= 64, k <= 256, batch > 1)"

costs = [
    "access_rate", "access_half_rate", "tile_s", "tile_element_s", "down", "step_s", "memory_rate", "cached",
    "cached_below", "launch_s",
]

[strides]
a = "either"
b = "either"
c = "any"

# A warp waits for memory at each step of k.
[time]
tiles = "cdiv(m, WM) * cdiv(n, WN) * batch"
of_a = "min(a_vector, 16 - a_down * (16 - WM // 8 * size))"
of_b = "min(b_vector, 16 - b_across * (16 - WN // 8 * size))"
accesses = "cdiv(k * size, 64) * 64 * (WM / of_a + WN / of_b) / 32"
spilled = "WM * WN * max(4, size) / 128 + (WM + WN) / 2 + 34 > 2048 / (PER_SM * WARPS)"
taken = "cdiv(tiles, sms) * max(accesses / (access_rate + access_half_rate * (size == 2)), (tile_s + WM * WN * tile_element_s) * (1 + down * (1 - b_across) * min(1, k / 64)))"
waiting = "cdiv(k * size, 64) * step_s / BUFFERS"
bytes = "(m * k + k * n + m * n) * size * batch"
memory = "bytes / memory_rate / (1 + cached * (bytes < cached_below)) * memory_ratio"
seconds = "launch_s + max(taken, memory, waiting) * (1 + spilled / 2)"

[[presets]]
rate = 100
params = { WM = 16 }

[[presets]]
rate = 100
when = "max(m, n) <= 16"
params = { WM = 16, WN = 16, PER_SM = 4 }

[params]
WM = { default = 32, values = [16, 32, 64] }
WN = { default = 32, values = [16, 32, 64] }
BUFFERS = { default = 1, values = [1, 2] }
WARPS = { default = 8, values = [2, 4, 8] }
PER_SM = { default = 2, values = [1, 2, 3, 4, 6, 8] }
*/
#include "fragments.cuh"

template <int VECTOR_A, int VECTOR_B> __device__ __forceinline__ void multiply_tiles(const T* a, const T* b, Out* c, const Call& call)
{
    using A = Operand<T, !A_DOWN, 8, WM / 8, EACH, VECTOR_A>;
    using B = Operand<T, !B_ACROSS, 8, WN / 8, EACH, VECTOR_B>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, whole = call.k / CHUNK * CHUNK;
    const int across = (call.n - 1) / WN + 1, tiles = ((call.m - 1) / WM + 1) * across;
    const long long all = (long long)tiles * call.batch;
    for (long long i = blockIdx.x * (long long)WARPS + threadIdx.x / 32; i < all; i += gridDim.x * (long long)WARPS) {
        const int z = i / tiles, tile = i % tiles, top = tile / across * WM, left = tile % across * WN;
        const A of_a(a + z * call.next_a, A_DOWN ? call.column_a : call.row_a, top, call.m, g, t * EACH);
        const B of_b(b + z * call.next_b, B_ACROSS ? call.row_b : call.column_b, left, call.n, g, t * EACH);
        Sum d[WM / 16][WN / 8][4] = {};
        typename A::Fragments x[BUFFERS];
        typename B::Fragments y[BUFFERS];
        stream<BUFFERS, CHUNK, BUFFERS * CHUNK>(
            0, whole,
            [&](int i, int k) {
                of_a.get(x[i], k);
                of_b.get(y[i], k);
            },
            [&](int i, int) { multiply_fragments<!A_DOWN, !B_ACROSS, WM, WN>(d, x[i], y[i]); });
        if (whole < call.k) {
            of_a.get(x[0], whole, call.k - whole - t * EACH);
            of_b.get(y[0], whole, call.k - whole - t * EACH);
            multiply_fragments<!A_DOWN, !B_ACROSS, WM, WN>(d, x[0], y[0]);
        }

        // ---- REGISTERS → GLOBAL: a thread has two columns, and of each as many neighbours as one access of B
        Out* to = c + z * call.next_c;
        #pragma unroll
        for (int r = 0; r < WM / 8; r++)
            #pragma unroll
            for (int e = 0; e < 2; e++)
                #pragma unroll
                for (int j = 0; j < WN / 8; j += B_ACROSS ? B::WIDTH : 1) {
                    constexpr int WIDTH = B_ACROSS ? B::WIDTH : 1, BYTES = WIDTH * sizeof(Out);
                    const int row = top + A::index(r, g), col = left + B::index(j, 2 * t + e);
                    if (row >= call.m || col >= call.n) continue;
                    Out out[WIDTH];
                    #pragma unroll
                    for (int s = 0; s < WIDTH; s++) out[s] = rounded(d[r / 2][j + s][r % 2 * 2 + e]);
                    store<WIDTH>(to + row * call.row_c + col * call.column_c, out, call.n - col, call.column_c);
                }
    }
}

// Not inlined, so that it takes no registers from the other way.
__noinline__ __device__ void multiply_edges(const T* a, const T* b, Out* c, const Call& call) { multiply_tiles<1, 1>(a, b, c, call); }

extern "C" __global__ void __launch_bounds__(32 * WARPS, PER_SM)
tiny_mma(const T* a, const T* b, Out* c, const __grid_constant__ Call call)
{
    constexpr int VECTOR_A = A_VECTOR / sizeof(T), VECTOR_B = B_VECTOR / sizeof(T);
    // A vector may be loaded only if it lies in the matrix as a whole.
    constexpr int WIDE_A = A_DOWN && VECTOR_A > WM / 8 ? WM / 8 : VECTOR_A, WIDE_B = B_ACROSS && VECTOR_B > WN / 8 ? WN / 8 : VECTOR_B;
    if ((A_DOWN && call.m % WIDE_A) || (B_ACROSS && call.n % WIDE_B)) multiply_edges(a, b, c, call);
    else multiply_tiles<WIDE_A, WIDE_B>(a, b, c, call);
}
