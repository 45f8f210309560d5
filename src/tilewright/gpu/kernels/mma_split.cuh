// The product of float32 by three of TF32, with mma.sync: threads split each number that they load from shared memory into two of TF32.
// It has the layouts and sizes of mma.cuh, and DEPTH stages.
//
// Lines, which are rows of A and columns of B, are scaled by powers of two, as split_matrices.cu has found them. With x = high + low, the
// product takes high·high + high·low + low·high. The sums of each stage, of BK steps, are added to others in float32: what tensor cores
// cut from a sum does not grow with k.
#pragma once
#include "mma_tiles.cuh"
#include "powers.cuh"

namespace mma_sync {

struct Parts {  // of a fragment
    unsigned high[4], low[4];
};

// ``factors`` are of the places of matrices 0 and 1 of A, of 0 and 2 of B.
template <bool OF_B> __device__ __forceinline__ Parts split(const unsigned (&of)[4], const float* factors)
{
    Parts parts;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x = __uint_as_float(of[i]) * factors[OF_B ? i / 2 : i % 2];
        parts.high[i] = nearest_tf32(__float_as_uint(x));
        parts.low[i] = nearest_tf32(__float_as_uint(x - __uint_as_float(parts.high[i])));
    }
    return parts;
}

// One tile of C, or of what is added to it; A_WIDTH and B_WIDTH elements are copied at a time. `row_exponents` and `column_exponents`, of
// the first row and column of the tile: each line is multiplied by 2 to the power of its negative exponent.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply_split(const float* a, const float* b, float* c, const Call& call, const int* row_exponents,
                                               const int* column_exponents, Stage* stages)
{
    const Place place = place_of_block(call);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;  // of the warp's tile
    Copies<DEPTH, A_WIDTH, B_WIDTH> copies(a, b, call, place, stages);

    // ---- MULTIPLY -----------------------------------------------------------------------------------------------------------
    float of_rows[MMAS_M][2], of_columns[MMAS_N];  // the factors
    #pragma unroll
    for (int i = 0; i < MMAS_M * 2; i++) of_rows[i / 2][i % 2] = power_of_two(-row_exponents[y + i * 8 + lane / 4]);
    #pragma unroll
    for (int i = 0; i < MMAS_N; i++) of_columns[i] = power_of_two(-column_exponents[x + i * 8 + lane / 4]);

    const int a_at = TileA::begin(y), b_at = TileB::begin(x);
    float sum[MMAS_M][MMAS_N][4] = {};
    for (int tile = 0; tile < copies.tiles; tile++) {
        const Stage& stage = copies.arrived(tile);
        float of_stage[MMAS_M][MMAS_N][4] = {};
        #pragma unroll
        for (int i = 0; i < BK; i += MMA_K) {
            Parts of_a[MMAS_M];
            unsigned loaded[4];
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++) {
                TileA::load(loaded, stage.a.rows[0] + a_at + r * 16 * TileA::NEXT + i * TileA::STEP);
                of_a[r] = split<false>(loaded, of_rows[r]);
            }
            #pragma unroll
            for (int s = 0; s < MMAS_N; s += 2) {
                TileB::load(loaded, stage.b.rows[0] + b_at + s * 8 * TileB::NEXT + i * TileB::STEP);
                const Parts of_b = split<true>(loaded, of_columns + s);
                // Products of low parts first. An MMA waits for the one before it with the same sum: others come between.
                #pragma unroll
                for (int term = 0; term < 3; term++)
                    #pragma unroll
                    for (int r = 0; r < MMAS_M; r++)
                        #pragma unroll
                        for (int t = 0; t < 2; t++) {
                            const auto& p = term == 0 ? of_a[r].low : of_a[r].high;
                            const auto& q = term == 1 ? of_b.low : of_b.high;
                            multiply_add(of_stage[r][s + t], p, q[t * 2], q[t * 2 + 1]);
                        }
            }
        }
        #pragma unroll
        for (int r = 0; r < MMAS_M; r++)
            #pragma unroll
            for (int s = 0; s < MMAS_N; s++)
                #pragma unroll
                for (int l = 0; l < 4; l++) sum[r][s][l] += of_stage[r][s][l];
    }

    // ---- REGISTERS → GLOBAL -------------------------------------------------------------------------------------------------
    c += place.z * call.next_c;
    #pragma unroll
    for (int r = 0; r < MMAS_M * 2; r++) {
        const int i = y + r * 8 + lane / 4, row = place.top + i;
        if (row >= call.m) break;
        #pragma unroll
        for (int s = 0; s < MMAS_N; s++) {
            const int j = x + s * 8 + lane % 4 * 2, column = place.left + j;
            float* to = c + row * call.row_c + column;
            #pragma unroll
            for (int l = 0; l < 2; l++)
                if (column + l < call.n) {
                    const float v = scaled(sum[r / 2][s][r % 2 * 2 + l], row_exponents[i] + column_exponents[j + l]);
                    to[l] = ADD ? to[l] + v : v;
                }
        }
    }
}

__device__ __forceinline__ void multiply_split_strided(const float* a, const float* b, float* c, const Call& call,
                                                       const int* row_exponents, const int* column_exponents)
{
    extern __shared__ __align__(16) unsigned char of_stages[];
    Stage* stages = (Stage*)of_stages;
    // Copies of four elements must end where the operand does.
    constexpr int A_MOST = A_VECTOR / sizeof(float), B_MOST = B_VECTOR / sizeof(float);
    const bool whole = (A_DOWN ? call.m : call.k) % A_MOST == 0 && (B_ACROSS ? call.n : call.k) % B_MOST == 0;
    if (whole) multiply_split<A_MOST, B_MOST>(a, b, c, call, row_exponents, column_exponents, stages);
    else multiply_split<1, 1>(a, b, c, call, row_exponents, column_exponents, stages);
}

}  // namespace mma_sync
