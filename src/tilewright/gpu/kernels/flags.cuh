// Which parts of C the parts of float32 numbers do not represent well enough. Such a part has 64 rows and 128 columns:
// split_hopper.cu does not store it, and multiply_flagged.cu computes it from the operands themselves.
#pragma once

constexpr int FLAGGED_ROWS = 64, FLAGGED_COLUMNS = 128;
constexpr int LINES_OF_EXCESS = 32;  // rows of A, or columns of B, that have one excess; there are whole groups of 128 lines

__device__ __forceinline__ int largest_of_rows(const int* excesses, int row)
{
    const int2 of = *(const int2*)(excesses + row / FLAGGED_ROWS * (FLAGGED_ROWS / LINES_OF_EXCESS));
    return max(of.x, of.y);
}

__device__ __forceinline__ int largest_of_columns(const int* excesses, int column)
{
    const int4 of = *(const int4*)(excesses + column / FLAGGED_COLUMNS * (FLAGGED_COLUMNS / LINES_OF_EXCESS));
    return max(max(of.x, of.y), max(of.z, of.w));
}
