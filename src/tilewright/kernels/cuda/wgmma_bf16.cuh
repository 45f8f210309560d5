// What the rungs of wgmma share: the asynchronous instructions, wgmma on bfloat16 operands that are both row-major, and the
// way of its sums to C. A kernel has the parameter BN, the columns of one wgmma.
#pragma once
#include "hopper.cuh"

#define WIDTH BN  // columns of one wgmma
#define SUM float
#define LETTER "+f"
#define SHAPE_K "k16"
#define TYPES ".f32.bf16.bf16"
#define TAIL ", 1, 1, 0, 1"  // neither is negated; A is read along k, B as it lies in memory, across its columns
#include "wgmma.cuh"

// A row of a box is 64 elements, 128 bytes, and eight rows are an atom of the swizzle. B is loaded as slabs of 64 columns.
constexpr int BK = 64, SLABS = BN / 64, SLAB = BK * 128;

// d (+)= A·B for 64 rows of A and BN columns of B, 64 steps of k: four wgmmas of 16 steps each, under way when it returns.
__device__ __forceinline__ void multiply_stage(float (&d)[BN / 2], const unsigned char* a, const unsigned char* b, bool adds)
{
    const unsigned long long x = descriptor(a, 16, 1024), y = descriptor(b, SLAB, 1024);
    #pragma unroll
    for (int q = 0; q < 4; q++)  // 16 steps further: 32 bytes in the rows of A, 16 rows of 128 bytes in B; in units of 16
        wgmma(d, x + 2 * q, y + 128 * q, adds || q > 0);
}

// Keeps the compiler from reading the sums before the wait that stands above.
__device__ __forceinline__ void sums_are_there(float (&d)[BN / 2])
{
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) asm volatile("" : LETTER(d[i])::"memory");
}

// Two floats, each rounded to the nearest bfloat16, in one register.
__device__ __forceinline__ unsigned rounded(float low, float high)
{
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// Stores the sums of 64×BN elements of C from registers, two at once where PAIRS says that rows begin at multiples of 4 bytes:
// with tensor maps they do.
template <bool PAIRS = true>
__device__ __forceinline__ void store_sums(const float (&d)[BN / 2], unsigned short* c, int top, int left, int m, int n)
{
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int row = top + warp * 16 + lane / 4, col = left + lane % 4 * 2;
    #pragma unroll
    for (int i = 0; i < BN / 2; i += 2) {
        const int r = row + i / 2 % 2 * 8, j = col + i / 4 * 8;
        if (r >= m || j >= n) continue;
        const unsigned two = rounded(d[i], d[i + 1]);
        unsigned short* to = &c[(size_t)r * n + j];
        if (PAIRS) *(unsigned*)to = two;
        else {
            to[0] = (unsigned short)two;
            if (j + 1 < n) to[1] = (unsigned short)(two >> 16);
        }
    }
}
