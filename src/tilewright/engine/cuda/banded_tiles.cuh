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
        // A division takes a hundred cycles, in which at first nothing is loaded: most products need one of these.
        const int z = count == rows * cols ? 0 : tile / (rows * cols);
        tile -= z * (rows * cols);
        const int band = rows <= GROUP ? 0 : tile / (GROUP * cols), height = min(GROUP, rows - band * GROUP);
        const int inside = tile - band * GROUP * cols, column = height == GROUP ? inside / GROUP : inside / height;
        return { ((band * GROUP + inside - column * height) * CLUSTER + rank) * ROWS, column * BN, z };
    }
};
