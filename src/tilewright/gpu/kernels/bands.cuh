// The order of the tiles of a matrix: those that run together should share rows of A and columns of B in the second-level cache, so
// they are numbered down GROUP rows of tiles, a band, then across. The kernel has the parameter GROUP.
#pragma once
#include "triangle.cuh"

struct TileOf { int row, column; };

// Where a tile of `rows` by `columns` of them is. A division takes many cycles, in which at first nothing is loaded: most matrices need
// one at most.
__device__ __forceinline__ TileOf tile_in_bands(int tile, int rows, int columns)
{
    const int band = rows <= GROUP ? 0 : tile / (GROUP * columns), height = min(GROUP, rows - band * GROUP);
    const int inside = tile - band * GROUP * columns, column = height == GROUP ? inside / GROUP : inside / height;
    return { band * GROUP + inside - column * height, column };
}

// The tiles of a symmetric C: of row r those before column (r + 1) · WIDE, so that the diagonal is in squares that are computed whole.
template <int WIDE> __device__ __forceinline__ int tiles_in_triangle(int rows, int columns)
{
    return WIDE * (rows * (rows - 1) / 2) + columns;  // the last row may be cut at the last column
}

// Where a tile of these is: in bands, too, of which each ends with the square at the diagonal, row by row.
template <int WIDE> __device__ __forceinline__ TileOf tile_in_triangle(int tile, int rows)
{
    const int first = root_of_triangle(tile / WIDE) / GROUP * GROUP, height = min(GROUP, rows - first), across = WIDE * first;
    const int inside = tile - WIDE * (first * (first + 1) / 2), rest = inside - across * height;
    if (rest < 0) {
        const int column = height == GROUP ? inside / GROUP : inside / height;
        return { first + inside - column * height, column };
    }
    const int row = root_of_triangle(rest / WIDE);
    return { first + row, across + rest - WIDE * (row * (row + 1) / 2) };
}
