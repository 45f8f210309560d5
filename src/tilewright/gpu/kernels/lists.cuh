// Products of shapes of their own in one launch: LISTED is the most of them, or 0 where all products of a launch are alike, or where they
// are groups of which only the GPU knows the sizes (``groups.cuh``).
#pragma once
#include "groups.cuh"
#include "launches.cuh"
#include "strided.cuh"

#ifndef LISTED
#define LISTED 0
#endif

#if LISTED
// The bytes from the addresses of a launch to A, B and C of each product; elements from one row or column to the next, across what
// follows each other; sizes, and the first block of each product. The blocks end at first[count]. C has rows without gaps.
struct Given {
    long long at_a[LISTED], at_b[LISTED], at_c[LISTED], step_a[LISTED], step_b[LISTED];
    int m[LISTED], n[LISTED], k[LISTED], first[LISTED + 1], count;
};

// The product of this block, whose addresses a, b and c become. It lies in shared memory, so that it takes no registers.
template <typename T, typename Out>
__device__ __forceinline__ const Call& call_of_block(const T*& a, const T*& b, Out*& c, const Given& all, const int* = nullptr)
{
    __shared__ Call call;
    int low = 0, high = all.count;  // first[low] <= the block < first[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (blockIdx.x >= all.first[middle]) low = middle;
        else high = middle;
    }
    a = (const T*)((const char*)a + all.at_a[low]);
    b = (const T*)((const char*)b + all.at_b[low]);
    c = (Out*)((char*)c + all.at_c[low]);
    if (threadIdx.x == 0) {
        const long long step_a = all.step_a[low], step_b = all.step_b[low];
        call = { A_DOWN ? 1 : step_a, A_DOWN ? step_a : 1, 0, B_ACROSS ? step_b : 1, B_ACROSS ? 1 : step_b, 0, all.n[low], 1, 0,
                 all.m[low], all.n[low], all.k[low], 1, 1, all.k[low], all.first[low] };
    }
    __syncthreads();
    return call;
}

#elif GROUPED
typedef Call Given;  // what all groups have in common

// The product of this block's group, which lies in shared memory, and whose addresses a, b and c become. What follows the last group is
// the product of an empty k. There are more blocks than tiles: one that has no tile ends here.
template <typename T, typename Out>
__device__ __forceinline__ const Call& call_of_block(const T*& a, const T*& b, Out*& c, const Given& all, const int* offsets)
{
    __shared__ Call call;
    wait_for_launch_before();  // it may write the ends of groups
    const int columns = (all.n - 1) / BN + 1;
    Call own = all;
#if GROUPED == OF_ROWS
    const auto [group, number, rows] = find_band<BM>(offsets, all.batch, all.m, blockIdx.x / columns);
    if (rows.begin == rows.end) asm volatile("exit;");
    a += rows.begin * all.row_a;
    b += group * all.next_b;
    c += rows.begin * all.row_c;
    own.m = rows.end - rows.begin;
    own.k = group < all.batch ? all.k : 0;
    own.first_block = (blockIdx.x / columns - number) * columns;
#else
    const int tiles = ((all.m - 1) / BM + 1) * columns, group = blockIdx.x / tiles;
    const Range range = range_of_group(offsets, group, all.batch, all.k);
    a += range.begin * all.column_a;
    b += range.begin * all.row_b;
    c += group * all.next_c;
    own.k = range.end - range.begin;
    own.first_block = group * tiles;
#endif
    own.batch = 1;
    if (threadIdx.x == 0) call = own;
    __syncthreads();
    return call;
}
#else
typedef Call Given;

template <typename T, typename Out>
__device__ __forceinline__ const Call& call_of_block(const T*&, const T*&, Out*&, const Given& given, const int* = nullptr) { return given; }
#endif

__device__ __forceinline__ unsigned block_of_call(const Call& call)
{
#if LISTED || GROUPED
    return blockIdx.x - call.first_block;
#else
    return blockIdx.x;
#endif
}
