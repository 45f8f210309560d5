// For strips at the edges of C, of at most THIN rows or columns: whole tiles would waste multiply-adds. A strip takes the time of
// reading B, or A, once: so these functions keep many loads under way and use no shared memory. A block computes a strip.
#pragma once

#include "prelude.cuh"

constexpr int THIN = 8;

// C[rows×columns] = A[rows×k]·B[k×columns] (or += it, as prelude.cuh says), for rows of B and C of length n and rows ≤ THIN: a thread computes a column,
// 32 steps of k at a time.
template <int THREADS, typename T>
__device__ __forceinline__ void multiply_rows(const T* a, const T* b, T* c, int rows, int columns, int n, int k)
{
    for (int col = threadIdx.x; col < columns; col += THREADS) {
        T sum[THIN] = {};
        for (int step = 0; step < k; step += 32) {
            T of_b[32];
            #pragma unroll
            for (int i = 0; i < 32; i++) of_b[i] = step + i < k ? b[(size_t)(step + i) * n + col] : 0;
            #pragma unroll
            for (int r = 0; r < THIN; r++)
                if (r < rows)
                    #pragma unroll
                    for (int i = 0; i < 32; i++)
                        if (step + i < k) sum[r] += a[(size_t)r * k + step + i] * of_b[i];
        }
        #pragma unroll
        for (int r = 0; r < THIN; r++)
            if (r < rows) store(&c[(size_t)r * n + col], sum[r]);
    }
}

// The same for columns ≤ THIN: a warp computes 8 rows; each lane takes every 32nd step, and in the end the lanes' sums are added.
template <int THREADS, typename T>
__device__ __forceinline__ void multiply_columns(const T* a, const T* b, T* c, int rows, int columns, int n, int k)
{
    constexpr int ROWS = 8;
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32 * ROWS; row < rows; row += THREADS / 32 * ROWS) {
        T sum[ROWS][THIN] = {};
        #pragma unroll 4
        for (int step = lane; step < k; step += 32) {
            T of_a[ROWS];
            #pragma unroll
            for (int r = 0; r < ROWS; r++) of_a[r] = a[(size_t)min(row + r, rows - 1) * k + step];
            #pragma unroll
            for (int s = 0; s < THIN; s++)
                if (s < columns) {
                    const T of_b = b[(size_t)step * n + s];
                    #pragma unroll
                    for (int r = 0; r < ROWS; r++) sum[r][s] += of_a[r] * of_b;
                }
        }
        #pragma unroll
        for (int s = 0; s < THIN; s++)
            if (s < columns)
                #pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    #pragma unroll
                    for (int apart = 16; apart > 0; apart /= 2) sum[r][s] += __shfl_xor_sync(~0u, sum[r][s], apart);
                    if (lane == 0 && row + r < rows) store(&c[(size_t)(row + r) * n + s], sum[r][s]);
                }
    }
}
