// What a call of ``hopper.cu`` multiplies, and the tiles of C in the order in which its blocks take them.
#pragma once
#include "bands.cuh"
#include "groups.cuh"

// What one call multiplies: C[m×n] of `batch` products, whose rows are `row_c` elements apart, and the next C `next_c`.
// `moves_a` and `moves_b` are 1 where each product has its own operand, 0 where all have the same. Of a long k each block may sum
// one of `parts`, of `part_steps` steps; the sums of all parts follow each other like the products of a batch.
// Up to RAGGED products may have rows of their own number: `tops` are the first rows of each in A and in C, in which their rows follow
// each other, and `bands` its first row of tiles. If A and B are SCATTERED, their maps have a matrix at every 16 bytes, and `at_a`
// and `at_b` say which; all end at the same row of the map of A, so that it has no rows beyond, and begin at `tops_a`. If products are
// GROUPED, `batch` is the number of groups.
#ifndef RAGGED
#define RAGGED 0
#endif
#ifndef SCATTERED
#define SCATTERED 0
#endif
struct Call {
    long long row_c, next_c;
    int m, n, k, batch, moves_a, moves_b, parts, part_steps;
#if FINISHED || BLOCKS
    // In elements; 0 where all rows or columns have the same. The last two are for scales of blocks: to those of the next step.
    long long bias_step, row_scale_step, column_scale_step, row_scale_next, column_scale_next;
    float alpha, beta;
#endif
#if GROUPED && BLOCKS
    long long column_scale_group;  // to the scales of the next group's B
#endif
#if RAGGED
    int tops[RAGGED + 1], bands[RAGGED + 1];
#if SCATTERED
    int tops_a[RAGGED], at_a[RAGGED], at_b[RAGGED];
#endif
#endif
};

// Where a product's operands lie in their maps: the row of A at C's row 0, the first of k, and the numbers of the matrices.
struct Source {
    int row, k, a, b;
};

__device__ __forceinline__ Source source_of(const Call& call, int z, const int* offsets = nullptr)
{
#if SCATTERED
    return { call.tops_a[z] - call.tops[z], 0, call.at_a[z], call.at_b[z] };
#elif GROUPED == OF_K
    return { 0, range_of_group(offsets, z, call.batch, call.k).begin, 0, 0 };
#else
    const int product = call.parts == 1 ? z : z / call.parts;
    return { 0, 0, product * call.moves_a, product * call.moves_b };
#endif
}

struct Place {  // of a tile: its first row and column, its number among all products and parts, its steps of k, the end of C's rows
    int top, left, z, first_step, steps, bottom;
};

// The place, which the compiler has found here and not only where it is used.
__device__ __forceinline__ Place found(Place place)
{
    asm volatile("" : "+r"(place.top), "+r"(place.left), "+r"(place.z), "+r"(place.first_step), "+r"(place.steps), "+r"(place.bottom));
    return place;
}

// The tiles of all products in the order in which clusters take them.
//
// Tiles that fill all multiprocessors are computed by one block each, CLUSTER · BESIDE of them together. With SPLIT, where these are 1, the
// last ones, which would not, are computed by clusters of SPLIT blocks, each of which sums a piece of k.
struct Tiles {
    static constexpr int SIDE = CLUSTER * BM, WIDE = SIDE / (BESIDE * BN);  // of a square at the diagonal of a symmetric C
    const Call& call;
    const int* offsets;  // the ends of groups
    int rows, cols, steps, each, count, whole;  // tiles of one product, of all, and those that are not split
    __device__ Tiles(const Call& call, const int* offsets = nullptr)
        : call(call), offsets(offsets), rows((call.m - 1) / (CLUSTER * BM) + 1), cols((call.n - 1) / (BESIDE * BN) + 1),
          steps((call.k - 1) / LINE + 1), each(TRIANGLE ? tiles_in_triangle<WIDE>(rows, cols) : rows * cols),
          count(each * call.batch * call.parts)
    {
#if RAGGED
        rows = call.bands[call.batch];
        count = each = rows * cols;
#elif GROUPED == OF_ROWS
        rows = count_bands<CLUSTER * BM>(offsets, call.batch, call.m);
        count = each = rows * cols;
#endif
        whole = SPLIT > 1 ? count - count % gridDim.x : count;
    }
    __device__ __forceinline__ bool is_split(int tile) const { return SPLIT > 1 && tile >= whole; }
    // The tiles of a block: its first one, and the one that follows another.
    __device__ __forceinline__ int first() const { return whole > 0 ? blockIdx.x / (CLUSTER * BESIDE) : blockIdx.x / SPLIT; }
    __device__ __forceinline__ int next(int tile) const
    {
        if (is_split(tile)) return tile + gridDim.x / SPLIT;
        tile += gridDim.x / (CLUSTER * BESIDE);
        return is_split(tile) ? whole + blockIdx.x / SPLIT : tile;
    }
    // Whether a tile of a symmetric C is below the squares at its diagonal: its elements are those above it, too.
    static __device__ __forceinline__ bool is_mirrored(int top, int left) { return TRIANGLE && left / SIDE < top / SIDE; }
    // Its steps of k, if it is not split.
    __device__ __forceinline__ int length(int tile) const
    {
#if GROUPED
        return place(tile, 0).steps;
#else
        return call.parts == 1 ? steps : min(call.part_steps, steps - tile / each % call.parts * call.part_steps);
#endif
    }
#if !GROUPED
    __device__ __forceinline__ Place place(int tile, int rank, int piece = 0) const
    {
        const int z = call.batch * call.parts == 1 ? 0 : tile / each;
        const int part = call.parts == 1 ? 0 : z % call.parts * call.part_steps, all = length(tile);
        const bool split = is_split(tile);
        const int first = split ? all * piece / SPLIT : 0, length = split ? all * (piece + 1) / SPLIT - first : all;
        tile -= z * each;
        const auto [row, column] = TRIANGLE ? tile_in_triangle<WIDE + !TRIANGLE>(tile, rows) : tile_in_bands(tile, rows, cols);
        const int left = (column * BESIDE + rank / CLUSTER) * BN;
#if RAGGED
        int product = 0;  // the last one whose first row of tiles is this one or before it
        for (int count = call.batch; count > 1;) {
            const int half = count / 2;
            const bool after = call.bands[product + half] <= row;
            product += after ? half : 0;
            count = after ? count - half : half;
        }
        const int top = call.tops[product] + ((row - call.bands[product]) * CLUSTER + rank % CLUSTER) * BM;
        return { top, left, product, part + first, length, call.tops[product + 1] };
#endif
        return { (row * CLUSTER + rank % CLUSTER) * BM, left, z, part + first, length, call.m };
    }
#else
    // Every tile has a step at least, so that its sums are zeros at least: of an empty k that of a stage which is cleared, and of rows that
    // follow the last group one beyond k, where the maps have zeros.
    __device__ __forceinline__ Place place(int tile, int rank, int = 0) const
    {
        const int below = rank % CLUSTER * BM, aside = rank / CLUSTER * BN;
#if GROUPED == OF_ROWS
        const auto [row, column] = tile_in_bands(tile, rows, cols);
        const auto [group, number, in_group] = find_band<CLUSTER * BM>(offsets, call.batch, call.m, row);
        const int top = in_group.begin + number * CLUSTER * BM + below, left = column * BESIDE * BN + aside;
        if (group < call.batch) return { top, left, group, 0, steps, in_group.end };
        return { top, left, group, steps, 1, in_group.end };
#else
        const int z = tile / (rows * cols);
        const auto [row, column] = tile_in_bands(tile - z * (rows * cols), rows, cols);
        const auto [begin, end] = range_of_group(offsets, z, call.batch, call.k);
        return { row * CLUSTER * BM + below, column * BESIDE * BN + aside, z, 0, max(1, (end - begin + LINE - 1) / LINE), call.m };
#endif
    }
#endif
};
