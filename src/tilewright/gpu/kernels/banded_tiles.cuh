// The tiles of products that are computed one after another, of ROWS×BN elements, in the order in which clusters take them. The kernel
// has the parameters BN, CLUSTER and GROUP.
#pragma once
#include "bands.cuh"

struct Tile { int top, left, z; };  // its first row and column, and the number of its product

template <int ROWS> struct Tiles {
    static constexpr int WIDE = CLUSTER * ROWS / BN;
    int rows, cols, each, count;  // each: tiles of one product
    __device__ Tiles(int m, int n, int products)
        : rows((m - 1) / (CLUSTER * ROWS) + 1), cols((n - 1) / BN + 1),
          each(TRIANGLE ? tiles_in_triangle<WIDE>(rows, cols) : rows * cols), count(each * products) {}
    __device__ __forceinline__ Tile place(int tile, int rank) const
    {
        const int z = count == each ? 0 : tile / each;
        tile -= z * each;
        const TileOf at = TRIANGLE ? tile_in_triangle<WIDE + !TRIANGLE>(tile, rows) : tile_in_bands(tile, rows, cols);
        return { (at.row * CLUSTER + rank) * ROWS, at.column * BN, z };
    }
};
