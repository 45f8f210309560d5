// The product of 16-bit numbers or of TF32 by mma.sync, for any layout and any size.
#pragma once
#include "mma_tiles.cuh"
#include "rows.cuh"

namespace mma_sync {

#if OUT == FLOAT32
typedef float Out;
#else
typedef unsigned short Out;
#endif
struct alignas(2 * sizeof(Out)) Pair { Out x, y; };

// A fragment, of float32 rounded to TF32.
template <typename Tile> __device__ __forceinline__ void load(unsigned (&to)[4], const T* from)
{
    Tile::load(to, from);
    if constexpr (TYPE == TF32)
        #pragma unroll
        for (int i = 0; i < 4; i++) to[i] = nearest_tf32(to[i]);
}

__device__ __forceinline__ Out rounded(float x)
{
#if OUT == FLOAT32
    return x;
#else
    Out bits;
    if (OUT == BFLOAT16) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#endif
}

// One tile of C; A_WIDTH and B_WIDTH elements are copied at a time.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(const T* a, const T* b, Out* c, const Call& call, Stage* stages)
{
    const Place place = place_of_block(call);
    const int top = place.top, left = place.left;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;  // of the warp's tile
    Copies<STAGES, A_WIDTH, B_WIDTH> copies(a, b, call, place, stages);

    // ---- MULTIPLY -----------------------------------------------------------------------------------------------------------
    const int a_at = TileA::begin(y), b_at = TileB::begin(x);
    float sum[MMAS_M][MMAS_N][4] = {};
    for (int tile = 0; tile < copies.tiles; tile++) {
        const Stage& stage = copies.arrived(tile);
        #pragma unroll
        for (int i = 0; i < BK; i += MMA_K) {
            unsigned of_a[MMAS_M][4], of_b[MMAS_N / 2][4];
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++) load<TileA>(of_a[r], stage.a.rows[0] + a_at + r * 16 * TileA::NEXT + i * TileA::STEP);
            #pragma unroll
            for (int s = 0; s < MMAS_N / 2; s++) load<TileB>(of_b[s], stage.b.rows[0] + b_at + s * 16 * TileB::NEXT + i * TileB::STEP);
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) multiply_add(sum[r][s], of_a[r], of_b[s / 2][s % 2 * 2], of_b[s / 2][s % 2 * 2 + 1]);
        }
    }

    // ---- REGISTERS → GLOBAL -------------------------------------------------------------------------------------------------
    c += place.z * call.next_c;
    auto pair = [&](int r, int s) {
        return Pair{ rounded(sum[r / 2][s][r % 2 * 2]), rounded(sum[r / 2][s][r % 2 * 2 + 1]) };
    };
    if (call.column_c != 1) {
        #pragma unroll
        for (int r = 0; r < MMAS_M * 2; r++)
            #pragma unroll
            for (int s = 0; s < MMAS_N; s++) {
                const int i = top + y + r * 8 + lane / 4, j = left + x + s * 8 + lane % 4 * 2;
                if (i >= call.m || j >= call.n) continue;
                const Pair two = pair(r, s);
                Out* to = c + i * call.row_c + j * call.column_c;
                to[0] = two.x;
                if (j + 1 < call.n) to[call.column_c] = two.y;
            }
        return;
    }
    constexpr int PITCH = WN + 8;  // pairs of eight rows of 16 bits, or of four rows of float32, lie in different banks
    static_assert(sizeof(Stage) * STAGES >= WARPS_M * WARPS_N * 8 * PITCH * sizeof(Out), "eight rows of all warps");
    __syncthreads();  // all have read the last stage
    Out* rows = (Out*)stages + warp * (8 * PITCH);
    #pragma unroll
    for (int r = 0; r < MMAS_M * 2; r++) {
        #pragma unroll
        for (int s = 0; s < MMAS_N; s++) *(Pair*)(rows + lane / 4 * PITCH + s * 8 + lane % 4 * 2) = pair(r, s);
        __syncwarp();
        const int row = top + y + r * 8, col = left + x;
        store_rows<8, WN, PITCH>(rows, c + row * call.row_c + col, call.row_c, call.m - row, call.n - col);
        __syncwarp();
    }
}

__device__ __forceinline__ void multiply_strided(const T* a, const T* b, Out* c, const Call& call)
{
    extern __shared__ __align__(16) unsigned char memory[];
    Stage* stages = (Stage*)memory;
    // A copy of several elements must end where the operand does.
    constexpr int A_MOST = A_VECTOR / sizeof(T), B_MOST = B_VECTOR / sizeof(T);
    const bool a_whole = (A_DOWN ? call.m : call.k) % A_MOST == 0, b_whole = (B_ACROSS ? call.n : call.k) % B_MOST == 0;
    if (a_whole && b_whole) multiply<A_MOST, B_MOST>(a, b, c, call, stages);
    else if (a_whole) multiply<A_MOST, 1>(a, b, c, call, stages);
    else if (b_whole) multiply<1, B_MOST>(a, b, c, call, stages);
    else multiply<1, 1>(a, b, c, call, stages);
}

}  // namespace mma_sync
