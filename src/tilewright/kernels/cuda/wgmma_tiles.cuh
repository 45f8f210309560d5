// The order of tiles in a persistent kernel, and its place in the ring. The kernel has the parameters GROUP, STAGES and BN.
#pragma once

struct Place {  // of a tile: its first row and column
    int top, left;
};

// Tiles are numbered down GROUP rows of tiles, then across: those that run together share rows and columns in the L2 cache.
struct Tiles {
    int height, down, across, count;  // of a tile; tiles in a column, in a row, in all
    __device__ Tiles(int m, int n, int height)
        : height(height), down((m - 1) / height + 1), across((n - 1) / BN + 1), count(down * across)
    {
    }
    __device__ __forceinline__ Place place(int tile) const
    {
        const int band = tile / (GROUP * across), rows = min(GROUP, down - band * GROUP), inside = tile - band * GROUP * across;
        return { (band * GROUP + inside % rows) * height, inside / rows * BN };
    }
};

struct Ring {  // the next stage, and the parity of its phase
    int stage = 0, parity = 0;
    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};
