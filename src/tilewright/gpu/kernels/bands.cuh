// The order of the tiles of a matrix: those that run together should share rows of A and columns of B in the second-level cache, so
// they are numbered down GROUP rows of tiles, a band, then across. The kernel has the parameter GROUP.
#pragma once

struct TileOf { int row, column; };

// Where a tile of `rows` by `columns` of them is. A division takes many cycles, in which at first nothing is loaded: most matrices need
// one at most.
__device__ __forceinline__ TileOf tile_in_bands(int tile, int rows, int columns)
{
    const int band = rows <= GROUP ? 0 : tile / (GROUP * columns), height = min(GROUP, rows - band * GROUP);
    const int inside = tile - band * GROUP * columns, column = height == GROUP ? inside / GROUP : inside / height;
    return { band * GROUP + inside - column * height, column };
}
