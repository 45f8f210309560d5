// Tiles of operands in shared memory, and the fragments of mma.sync that warps load from them: 16-bit numbers, or TF32.
#pragma once
#include "slabs.cuh"

namespace mma_sync {

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
    static __device__ __forceinline__ void load(unsigned (&to)[4], const T* from)  // float32 are not rounded yet
    {
        if constexpr (!ACROSS) load_matrix_x4(to, from);
        else if constexpr (TYPE != TF32) load_matrix_x4_transposed(to, from);
        else
            #pragma unroll
            for (int i = 0; i < 4; i++) to[i] = __float_as_uint(from[step_of(i) * STEP + place_of(i) * NEXT]);
    }
};
typedef Tile<BM, A_DOWN, false> TileA;
typedef Tile<BN, B_ACROSS, true> TileB;

struct Stage {
    TileA a;
    TileB b;
};

// The copies of a block's tiles into COUNT stages, all but one ahead of the multiplication; A_WIDTH and B_WIDTH elements at a time. The
// first stage is the short one.
template <int COUNT, int A_WIDTH, int B_WIDTH>
struct Copies {
    Slab<T, 1, BM, A_DOWN, A_WIDTH, THREADS, 8, TileA::STEP, TileA::NEXT, false> from_a;
    Slab<T, 1, BN, B_ACROSS, B_WIDTH, THREADS, 8, TileB::STEP, TileB::NEXT, false> from_b;
    Stage* stages;
    int tiles;

    __device__ __forceinline__ Copies(const T* a, const T* b, const Call& call, const Place& place, Stage* stages)
        : from_a(a + place.product * call.next_a + place.first * call.column_a, place.top, call.m, call.row_a, call.column_a),
          from_b(b + place.product * call.next_b + place.first * call.row_b, place.left, call.n, call.column_b, call.row_b),
          stages(stages), tiles(place.length > 0 ? (place.length - 1) / BK + 1 : 0)
    {
        #pragma unroll
        for (int tile = 0; tile < COUNT - 1; tile++) {
            if (tile < tiles) copy(tile, tile == 0 ? place.length - (tiles - 1) * BK : BK);
            copy_async_commit();
        }
    }

    __device__ __forceinline__ void copy(int tile, int steps)
    {
        Stage& stage = stages[tile % COUNT];
        from_a.copy(stage.a.rows[0], steps);
        from_b.copy(stage.b.rows[0], steps);
    }

    // The stage of a tile, when it is there; copies of a later one begin.
    __device__ __forceinline__ const Stage& arrived(int tile)
    {
        copy_async_wait<COUNT - 2>();
        __syncthreads();  // all parts of this stage have arrived, and all threads have read the stage before
        if (tile + COUNT - 1 < tiles) copy(tile + COUNT - 1, BK);
        copy_async_commit();
        return stages[tile % COUNT];
    }
};

}  // namespace mma_sync
