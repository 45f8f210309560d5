// The shared memory of a block of ``hopper.cu``, and who says that a stage of it may be written again.
#pragma once
#include "groups.cuh"

// Two slabs for each group are on their way to C. They lie in the stage that was multiplied last, which is free for the next copies when
// they have left: so the ring may have more stages. The first is where the group's own rows of A were, the second where B was, which
// all groups must have read. They have memory of their own where they would not find room there, or the other group needs the stage.
#define OWN_SLABS (PROMOTED || SPLIT > 1 || PINGPONG || BN < BM)
#define HALF (OUT == BFLOAT16 || OUT == FLOAT16)
#if HALF
typedef unsigned short Out;  // its bits
#elif OUT == INT8
typedef signed char Out;
#elif OUT == INT32
typedef int Out;
#else
typedef float Out;
#endif
struct alignas(2 * sizeof(Out)) Pair { Out x, y; };

constexpr int LINE = 128 / SIZE;  // of k in a stage: 128 bytes, the width of the swizzle
constexpr int GROUPS = BM / 64, THREADS = 128 * (GROUPS + 1), PIECES = BN / WIDTH;
constexpr int SHARING = CLUSTER * BESIDE, TOGETHER = SHARING * SPLIT;  // blocks of a cluster that share operands, and all
constexpr int HEIGHT = PINGPONG ? GROUPS : 1;  // of what a group computes of a tile, in 64 rows
constexpr int TURN = 4;  // the barrier of the first group's turn with PINGPONG, before that of the second
constexpr int READ = 4;  // else that of all groups, when they have read the last stage of a tile
constexpr int SLAB = 128 / sizeof(Out);  // columns of C that are stored at once
constexpr int BOX_C = 16 - BN % 16;      // and in a box of columns
// Rows of A and B, as they lie in memory, that a block of a cluster loads for all that share them, and those of B in a stage. Rows across
// are loaded in boxes of 64 columns, and others 8 together, as many as a swizzle has.
constexpr int SHARE_A = (A_DOWN ? LINE : BM) / BESIDE;
constexpr int SHARE_ALONG = (BN + 8 * CLUSTER - 1) / (8 * CLUSTER) * 8, SHARE_B = B_ACROSS ? LINE / CLUSTER : SHARE_ALONG;
constexpr int ROWS_ALONG = CLUSTER * SHARE_ALONG, ROWS_B = B_ACROSS ? (BN + 63) / 64 * 64 : ROWS_ALONG;
// STAGES are those of rows of B along k. In the same memory there may be fewer of rows across, whose boxes take more.
constexpr int FITTING = STAGES * ((BM + ROWS_ALONG) * 128 + 16) / ((BM + ROWS_B) * 128 + 16), DEPTH = FITTING < STAGES ? FITTING : STAGES;

struct Shared {
    unsigned char a[DEPTH][BM * 128];
    unsigned char b[DEPTH][ROWS_B * 128];
#if OWN_SLABS
    unsigned char slabs[GROUPS][2][64 * 128];
#endif
    Barrier full[DEPTH], empty[DEPTH];
    float columns[GROUPS][VECTORS + !VECTORS][BN];  // of bias and scales; if there are none, it is not part of a block's memory
};
extern __shared__ __align__(1024) unsigned char memory[];

// The blocks that copy to this one: those that share its B, then others that share its A.
constexpr int MATES = CLUSTER + BESIDE - 1;

__device__ __forceinline__ int mate(int i)
{
    const int number = cluster_rank(), aside = number / CLUSTER, j = i - CLUSTER;
    return i < CLUSTER ? aside * CLUSTER + i : number % CLUSTER + (j + (j >= aside)) * CLUSTER;
}

// Says that their copies may write where this group's wgmmas have read.
__device__ __forceinline__ void release(Shared& s, int slot)
{
    const int thread = threadIdx.x % (IN_REGISTERS ? 32 : 128);  // of a group's wgmmas, or of a warp that has itself loaded A
    if (SHARING > 1) {
        if (thread < MATES) barrier_arrive_at(s.empty[slot], mate(thread));
    } else if (thread == 0) barrier_arrive(s.empty[slot]);
}

#if GROUPED == OF_K
static_assert(A_DOWN && B_ACROSS, "rows of boxes are steps of k");
constexpr int CLEARED = 6;  // the barrier of all groups that clear a stage

// Makes all steps of k but the first `kept` of a stage zeros, in both operands: they belong to another product, and may be no numbers. The
// groups that read the stage share the work.
__device__ __forceinline__ void clear_stage(Shared& s, int slot, int half, int kept)
{
    constexpr int WORKERS = PINGPONG ? 128 : 128 * GROUPS, BOXES_A = BM / 64, BOXES = BOXES_A + ROWS_B / 64, CHUNKS = 128 / 16;
    const int chunks = (LINE - kept) * CHUNKS;  // of a box
    for (int i = threadIdx.x % 128 + (PINGPONG ? 0 : half * 128); i < BOXES * chunks; i += WORKERS) {
        const int box = i / chunks, at = box < BOXES_A ? box : box - BOXES_A;
        unsigned char* rows = (box < BOXES_A ? s.a[slot] : s.b[slot]) + at * (LINE * 128) + kept * 128;
        ((uint4*)rows)[i % chunks] = uint4 { 0, 0, 0, 0 };
    }
    publish_shared();
    if (PINGPONG) group_sync(1 + half, WORKERS);
    else group_sync(CLEARED, WORKERS);
}
#endif
