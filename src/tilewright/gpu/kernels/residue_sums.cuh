// What kernels do with sums of products of residues (see residues.cuh): they store the residues of these sums, or with BOUND
// flag parts of C.
#pragma once
#include "residues.cuh"

#ifndef BOUND
#define BOUND 0  // 1 multiplies magnitudes, and flags what they do not show to be accurate
#endif

// `k` is that of the planes. A part of C is accurate where `factor` times what its rounded lines sum up to is at most the
// lower bound. Rounding has changed the sum of a line's magnitudes by at most `lost`.
struct Call {
    int m, n, k, planes;
    float factor, lost;
};

// Parts of C in a row of them.
__device__ __forceinline__ int parts_across(const Call& call) { return (call.n - 1) / FLAGGED_COLUMNS + 1; }

// Whether of some rows and columns of C all parts are flagged or outside.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ bool are_flagged(int top, int left, const int* flags, const Call& call)
{
    const int across = parts_across(call);
    bool all = true;
    #pragma unroll
    for (int i = 0; i < ROWS / FLAGGED_ROWS; i++)
        #pragma unroll
        for (int j = 0; j < COLUMNS / FLAGGED_COLUMNS; j++) {
            const int row = top + i * FLAGGED_ROWS, column = left + j * FLAGGED_COLUMNS;
            if (row < call.m && column < call.n) all &= flags[row / FLAGGED_ROWS * across + column / FLAGGED_COLUMNS] != 0;
        }
    return all;
}

// The residues of 16 sums, `sum(i)`, as bytes from 0 to p - 1; of negative multiples of p it is p, or 0 in place of 256.
// With `inverse` = 2^38 / p rounded up the quotient is otherwise exact for sums up to 2^30, as of 65,536 products.
template <typename Sums> __device__ __forceinline__ uint4 residues_of(const Sums& sum, int p, int inverse)
{
    unsigned words[4];
    #pragma unroll
    for (int w = 0; w < 4; w++) {
        unsigned r[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) r[i] = sum(w * 4 + i) - (__mulhi(sum(w * 4 + i), inverse) >> 6) * p;
        words[w] = __byte_perm(__byte_perm(r[0], r[1], 0x0040), __byte_perm(r[2], r[3], 0x0040), 0x5410);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ int inverse_of_divisor(int p) { return ((1ll << 38) - 1) / p + 1; }

// Of line `at` of `count`: x, an upper bound of the sum of its magnitudes before they were rounded, times `factor`; y, 1 if it
// is rounded. Both are times 2^-bits, as the lower bound is relative to 2^bits. Where it is unfit all is flagged; beyond C
// nothing.
__device__ __forceinline__ float2 loss_of_line(const Line* lines, int at, int count, const Call& call)
{
    if (at >= count) return make_float2(0, 0);
    const float infinity = __int_as_float(0x7F800000);
    const Line line = lines[at];
    if (line.kind & UNFIT) return make_float2(infinity, infinity);
    const float unit = __int_as_float(127 - line.bits << 23), rounded = line.kind & ROUNDED ? 1 : 0;
    return make_float2(((float)line.sum + rounded * call.lost) * (call.factor * unit), rounded * unit);
}

// What rounding of a row of A and of a column of B may change, in units of the lower bound of |A||B|. Where one of them is
// unfit and the other zero it is NaN, which no bound is at least.
__device__ __forceinline__ float loss_of(float2 of_row, float2 of_column)
{
    return of_row.y * of_column.x + of_column.y * of_row.x;
}
