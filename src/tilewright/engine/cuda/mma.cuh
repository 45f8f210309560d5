// The product of 16-bit numbers or of TF32 by mma.sync, for any layout and any size.
#pragma once
#include "rows.cuh"
#include "slabs.cuh"

#if TYPE == TF32
typedef float T;
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#else
typedef unsigned short T;  // its bits
#if TYPE == BFLOAT16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif
#endif
#if OUT == FLOAT32
typedef float Out;
#else
typedef unsigned short Out;
#endif
struct alignas(2 * sizeof(Out)) Pair { Out x, y; };

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;
constexpr int EACH = 16 / sizeof(T), MMA_K = 2 * EACH;  // elements of 16 bytes; steps of an MMA
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8;

__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b_0, unsigned b_1)
{
    asm(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_0), "r"(b_1));
}

// To the nearest TF32. From Hopper on it is one instruction, with ties to even, as the copy engine rounds for hopper.cu; before, three.
__device__ __forceinline__ unsigned nearest_tf32(unsigned bits)
{
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(__uint_as_float(bits)));
    return bits;
#else
    return round_tf32(__uint_as_float(bits));
#endif
}

// A tile of an operand in shared memory: SIDE places, which are rows of A or columns of B, by BK steps of k. It lies as in memory: by
// places, or ACROSS them by steps. Rows are longer than a multiple of 64 bytes, so that what a warp loads at once lies in different
// banks: 8 rows, 16 bytes of each, or 4 rows, 8 floats of each.
// A fragment, of 16 places and the steps of an MMA, is four matrices of 8 places by EACH steps. With g = lane / 4 and t = lane % 4, of
// place g of each the lane gets step t, or of 16 bits steps 2·t and 2·t + 1. Those that an MMA reads follow each other in registers:
// of A all four, of B two of the same places.
template <int SIDE, bool ACROSS, bool OF_B>
struct Tile {
    static constexpr int PITCH = ACROSS ? SIDE + 8 : BK + EACH, STEP = ACROSS ? PITCH : 1, NEXT = ACROSS ? 1 : PITCH;
    T rows[ACROSS ? BK : SIDE][PITCH];

    // Where matrix `i` of a fragment begins.
    static __device__ __forceinline__ int place_of(int i) { return (OF_B ? i / 2 : i % 2) * 8; }
    static __device__ __forceinline__ int step_of(int i) { return (OF_B ? i % 2 : i / 2) * EACH; }

    // Where the lane begins to load the first fragment from the place `first` on.
    static __device__ __forceinline__ int begin(int first)
    {
        const int lane = threadIdx.x % 32, place = first + place_of(lane / 8), step = step_of(lane / 8);
        if (!ACROSS) return (place + lane % 8) * PITCH + step;
        return TYPE == TF32 ? lane % 4 * PITCH + first + lane / 4 : (step + lane % 8) * PITCH + place;
    }
    static __device__ __forceinline__ void load(unsigned (&to)[4], const T* from)
    {
        if constexpr (!ACROSS) load_matrix_x4(to, from);
        else if constexpr (TYPE != TF32) load_matrix_x4_transposed(to, from);
        else
            #pragma unroll
            for (int i = 0; i < 4; i++) to[i] = __float_as_uint(from[step_of(i) * STEP + place_of(i) * NEXT]);
        if constexpr (TYPE == TF32)
            #pragma unroll
            for (int i = 0; i < 4; i++) to[i] = nearest_tf32(to[i]);
    }
};
typedef Tile<BM, A_DOWN, false> TileA;
typedef Tile<BN, B_ACROSS, true> TileB;

struct Stage {
    TileA a;
    TileB b;
};

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
    const auto [top, left, z, product, first, length] = place_of_block(call);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;  // of the warp's tile

    // ---- GLOBAL → SHARED: the first stage is the short one ------------------------------------------------------------------
    Slab<T, 1, BM, A_DOWN, A_WIDTH, THREADS, 8, TileA::STEP, TileA::NEXT, false> from_a(
        a + product * call.next_a + first * call.column_a, top, call.m, call.row_a, call.column_a);
    Slab<T, 1, BN, B_ACROSS, B_WIDTH, THREADS, 8, TileB::STEP, TileB::NEXT, false> from_b(
        b + product * call.next_b + first * call.row_b, left, call.n, call.column_b, call.row_b);
    auto fetch = [&](Stage& stage, int steps) {
        from_a.copy(stage.a.rows[0], steps);
        from_b.copy(stage.b.rows[0], steps);
    };
    const int tiles = length > 0 ? (length - 1) / BK + 1 : 0;
    #pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < tiles) fetch(stages[tile], tile == 0 ? length - (tiles - 1) * BK : BK);
        copy_async_commit();
    }

    // ---- MULTIPLY -----------------------------------------------------------------------------------------------------------
    const int a_at = TileA::begin(y), b_at = TileB::begin(x);
    float sum[MMAS_M][MMAS_N][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // all parts of this stage have arrived, and all threads have read the stage before
        if (tile + STAGES - 1 < tiles) fetch(stages[(tile + STAGES - 1) % STAGES], BK);
        copy_async_commit();
        const Stage& stage = stages[tile % STAGES];
        #pragma unroll
        for (int i = 0; i < BK; i += MMA_K) {
            unsigned of_a[MMAS_M][4], of_b[MMAS_N / 2][4];
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++) TileA::load(of_a[r], stage.a.rows[0] + a_at + r * 16 * TileA::NEXT + i * TileA::STEP);
            #pragma unroll
            for (int s = 0; s < MMAS_N / 2; s++) TileB::load(of_b[s], stage.b.rows[0] + b_at + s * 16 * TileB::NEXT + i * TileB::STEP);
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) multiply_add(sum[r][s], of_a[r], of_b[s / 2][s % 2 * 2], of_b[s / 2][s % 2 * 2 + 1]);
        }
    }

    // ---- REGISTERS → GLOBAL -------------------------------------------------------------------------------------------------
    c += z * call.next_c;
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
