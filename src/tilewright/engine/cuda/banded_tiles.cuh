// The tiles of products that are computed one after another, of ROWS×BN elements, in the order in which clusters take them. The kernel
// has the parameters BN, CLUSTER and GROUP.
#pragma once

struct Tile { int top, left, z; };  // its first row and column, and the number of its product

// Tiles that run together should share rows of A and columns of B in the second-level cache: down GROUP rows of tiles, then across.
template <int ROWS> struct Tiles {
    int rows, cols, count;
    __device__ Tiles(int m, int n, int products)
        : rows((m - 1) / (CLUSTER * ROWS) + 1), cols((n - 1) / BN + 1), count(rows * cols * products) {}
    __device__ __forceinline__ Tile place(int tile, int rank) const
    {
        const int z = tile / (rows * cols);
        tile -= z * (rows * cols);
        const int band = tile / (GROUP * cols), height = min(GROUP, rows - band * GROUP), inside = tile - band * GROUP * cols;
        return { ((band * GROUP + inside % height) * CLUSTER + rank) * ROWS, inside / height * BN, z };
    }
};
