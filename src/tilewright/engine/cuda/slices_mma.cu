/*
idea = "Every warp loads its fragments straight from global memory, for a slice of k of its own: each byte of a long operand passes a multiprocessor once."
row = "S0.9, S2"
dtypes = ["bfloat16", "float16", "float64"]
stores = ["bfloat16", "float16", "float32"]
capability = "8.0"
step = "32 * WARPS_K"
block = ["32 * WARPS_M * WARPS_N * WARPS_K"]
grid = ["cdiv(m, WM * WARPS_M) * cdiv(n, WN * WARPS_N)"]
shared = "WARPS_K // 2 * WARPS_M * WARPS_N * WM * WN * 8"
tile = ["WN * WARPS_N", "WM * WARPS_M"]
constraints = ["WARPS_M * WARPS_N * WARPS_K <= 16", "WARPS_K // 2 * WARPS_M * WARPS_N * WM * WN <= 28672"]
suits = "min(m <= 128, n <= 128)"

[strides]
a = "either"
b = "either"
c = "any"

[time]
memory = "(m * k + k * n) * size * batch / 3.9e12"
seconds = "2.5e-6 + memory"

[params]
WM = { default = 16, values = [16, 32, 64] }
WN = { default = 64, values = [16, 32, 64] }
WARPS_M = { default = 1, values = [1, 2] }
WARPS_N = { default = 1, values = [1, 2, 4] }
WARPS_K = { default = 8, values = [1, 2, 4, 8, 16] }
BUFFERS = { default = 2, values = [1, 2, 3, 4] }
RESIDENT = { default = 1, values = [1, 2, 3, 4, 6, 8] }
*/
#include "slices.cuh"

// ---- the types: a word is a register of a fragment, of 16-bit operands two elements ------------------------------------------
#if TYPE == FLOAT64
typedef double T;
typedef double Word;
typedef double Sum;
typedef double Out;
#else
typedef unsigned short T;  // its bits
typedef unsigned Word;
typedef float Sum;
#if OUT == FLOAT32
typedef float Out;
#else
typedef unsigned short Out;
#endif
#endif
constexpr int PACKED = sizeof(Word) / sizeof(T);
constexpr int EACH = TYPE == FLOAT64 ? 4 : 8;  // elements along k that a lane loads of each row at once
constexpr int CHUNK = 4 * EACH, STRIDE = CHUNK * WARPS_K, STEP = 32 * WARPS_K;
constexpr int WARPS = WARPS_M * WARPS_N * WARPS_K, BM = WM * WARPS_M, BN = WN * WARPS_N;
extern __shared__ __align__(16) unsigned char memory[];

__device__ __forceinline__ void mma(Sum (&d)[4], const Word* a_low, const Word* a_high, const Word* b, int s)
{
#if TYPE == FLOAT64
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3]) : "d"(a_low[s]), "d"(a_high[s]), "d"(b[s]));
#else
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1]) : "d"(a_low[s]), "d"(b[s]));
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[2]), "+d"(d[3]) : "d"(a_high[s]), "d"(b[s]));
#endif
#else
#if TYPE == BFLOAT16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif
    asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a_low[2 * s]), "r"(a_high[2 * s]), "r"(a_low[2 * s + 1]), "r"(a_high[2 * s + 1]),
                   "r"(b[2 * s]), "r"(b[2 * s + 1]));
#endif
}
constexpr int MMAS = TYPE == FLOAT64 ? EACH : EACH / 4;  // of a chunk, for each 16×8 elements of C

__device__ __forceinline__ Out rounded(Sum x)
{
#if OUT == FLOAT32 || OUT == FLOAT64
    return x;
#else
    unsigned both;
    if (OUT == BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
    return (Out)both;
#endif
}

// Words of a lane's elements of index j along k, of two elements each where they are narrower.
template <bool ALONG_K, typename Fragments> __device__ __forceinline__ void words(Word* to, const Fragments& from, int j)
{
    #pragma unroll
    for (int w = 0; w < EACH / PACKED; w++) {
        if constexpr (PACKED == 1) to[w] = from.at(j, w);
        else if constexpr (ALONG_K) memcpy(&to[w], &from.elements[j][2 * w], 4);
        else {
            unsigned low, high;  // two indices of one k, then of the next
            memcpy(&low, &from.elements[2 * w][j & ~1], 4);
            memcpy(&high, &from.elements[2 * w + 1][j & ~1], 4);
            to[w] = __byte_perm(low, high, j % 2 ? 0x7632 : 0x5410);
        }
    }
}

template <int VECTOR_A, int VECTOR_B> __device__ __forceinline__ void multiply_tile(const T* a, const T* b, Out* c, const Call& call)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / (WARPS_M * WARPS_N);
    const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M % WARPS_N;
    const int across = (call.n - 1) / BN + 1, tiles = ((call.m - 1) / BM + 1) * across;
    const int z = blockIdx.x / tiles, tile = blockIdx.x % tiles, product = z / call.parts;
    const int top = tile / across * BM + warp_m * WM, left = tile % across * BN + warp_n * WN;
    const int first = z % call.parts * call.part_steps * STEP;
    const int stop = min((long long)call.k, first + (long long)call.part_steps * STEP);

    const int g = lane / 4, t = lane % 4;
    using A = Operand<T, !A_DOWN, 8, WM / 8, EACH, VECTOR_A>;
    using B = Operand<T, !B_ACROSS, 8, WN / 8, EACH, VECTOR_B>;
    const A of_a(a + product * call.next_a, A_DOWN ? call.column_a : call.row_a, top, call.m, g, t * EACH);
    const B of_b(b + product * call.next_b, B_ACROSS ? call.row_b : call.column_b, left, call.n, g, t * EACH);

    Sum d[WM / 16][WN / 8][4] = {};
    auto multiply = [&](const typename A::Fragments& x, const typename B::Fragments& y) {
        Word p[WM / 8][EACH / PACKED], q[WN / 8][EACH / PACKED];
        #pragma unroll
        for (int i = 0; i < WM / 8; i++) words<!A_DOWN>(p[i], x, i);
        #pragma unroll
        for (int j = 0; j < WN / 8; j++) words<!B_ACROSS>(q[j], y, j);
        #pragma unroll
        for (int s = 0; s < MMAS; s++)
            #pragma unroll
            for (int i = 0; i < WM / 16; i++)
                #pragma unroll
                for (int j = 0; j < WN / 8; j++) mma(d[i][j], p[2 * i], p[2 * i + 1], q[j], s);
    };

    // The warps of a block take chunks of k in turn, each with BUFFERS chunks under way.
    typename A::Fragments x[BUFFERS];
    typename B::Fragments y[BUFFERS];
    const int whole = first + (stop - first) / CHUNK * CHUNK;
    const int k = stream<BUFFERS, STRIDE>(
        first + slice * CHUNK, whole,
        [&](int i, int k) {
            of_a.get(x[i], k);
            of_b.get(y[i], k);
        },
        [&](int i, int) { multiply(x[i], y[i]); });
    if (k == whole && k < stop) {
        of_a.get(x[0], k, stop - k - t * EACH);
        of_b.get(y[0], k, stop - k - t * EACH);
        multiply(x[0], y[0]);
    }
    add_slices<WARPS_K, WARPS_M * WARPS_N, WM * WN / 32>(&d[0][0][0], memory);
    if (slice > 0) return;

    // ---- REGISTERS → GLOBAL
    Out* to = c + z * call.next_c;
    #pragma unroll
    for (int i = 0; i < WM / 8; i++) {
        const int row = top + A::index(i, g);
        #pragma unroll
        for (int e = 0; e < 2; e++)
            #pragma unroll
            for (int j = 0; j < WN / 8; j++) {
                const int col = left + B::index(j, 2 * t + e);
                if (row < call.m && col < call.n) to[row * call.row_c + col * call.column_c] = rounded(d[i / 2][j][i % 2 * 2 + e]);
            }
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
