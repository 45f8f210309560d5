// What a kernel of pointers and strides is given.
#pragma once
#include "types.cuh"

// C[m×n] of `batch` products: strides in elements to the next row, to the next column, and to the next product, which are 0 where
// all have the same operand. Of a long k each block may sum one of `parts`, of `part_steps` steps; then C is the memory for these
// sums, which follow each other like the products of a batch: that of part p of product z is at (z · parts + p) · next_c.
struct Call {
    long long row_a, column_a, next_a, row_b, column_b, next_b, row_c, column_c, next_c;
    int m, n, k, batch, parts, part_steps;
#if LISTED || GROUPED
    int first_block;
#endif
};
