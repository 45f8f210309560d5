// Fragments of mma.sync, whose lanes load their elements straight from global memory (slices.cuh). Lane 4g + t has, of each row of A
// or column of B, EACH elements along k, from t·EACH on: both operands in the same order, so the sums are those of the product.
#pragma once
#include "slices.cuh"

// A word is a register of a fragment, of 16-bit operands two elements.
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
constexpr int EACH = 16 / sizeof(T);  // elements along k that a lane loads of each row at once
constexpr int CHUNK = 4 * EACH;

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

// sums += A·B of one chunk of the warp.
template <bool A_ALONG_K, bool B_ALONG_K, int ROWS, int COLUMNS, typename A, typename B>
__device__ __forceinline__ void multiply_fragments(Sum (&sums)[ROWS / 16][COLUMNS / 8][4], const A& a, const B& b)
{
    Word p[ROWS / 8][EACH / PACKED], q[COLUMNS / 8][EACH / PACKED];
    #pragma unroll
    for (int i = 0; i < ROWS / 8; i++) words<A_ALONG_K>(p[i], a, i);
    #pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) words<B_ALONG_K>(q[j], b, j);
    #pragma unroll
    for (int s = 0; s < MMAS; s++)
        #pragma unroll
        for (int i = 0; i < ROWS / 16; i++)
            #pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) mma(sums[i][j], p[2 * i], p[2 * i + 1], q[j], s);
}
