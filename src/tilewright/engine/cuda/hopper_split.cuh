// Two blocks of a cluster that each sum one half of k (SPLIT is 2) add their sums: each sends one half of the columns to the other block,
// whose stages are free, and adds what it receives to its own. No sum goes through global memory.
#pragma once

struct alignas(16) Four { SUM of[4]; };

__device__ __forceinline__ void store_four(Four* at, int rank, SUM a, SUM b, SUM c, SUM d)
{
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(at)), "r"(rank));
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(remote), "r"(*(unsigned*)&a), "r"(*(unsigned*)&b), "r"(*(unsigned*)&c), "r"(*(unsigned*)&d) : "memory");
}

constexpr int READERS = 128 * GROUPS, WARP = 32;  // who read sums, and the warp that fills stages

// All threads of both blocks take part. Those of group 0 only wait; its first warp fills the stages again afterwards.
__device__ __forceinline__ void wait_for_sums()
{
    __syncwarp();
    cluster_sync();  // all stages have been read
    cluster_sync();  // the sums have arrived
    if (threadIdx.x < WARP) group_sync(GROUPS + 1, READERS + WARP);  // and have been read
}

// `d` are a thread's sums of its half of k. Its `share` are those of all of k, of the left half of the columns in the first block.
__device__ __forceinline__ void add_halves(const SUM (&d)[BN / 2], SUM (&share)[BN / 4], int rank, int piece)
{
    constexpr int HALF_OF_SUMS = BN / 4;
    Four(*received)[READERS] = (Four(*)[READERS])memory;
    const int thread = threadIdx.x - 128, other = (1 - piece) * CLUSTER + rank;
    cluster_sync();  // all stages have been read
    #pragma unroll
    for (int i = 0; i < HALF_OF_SUMS; i += 4) {
        Four* to = &received[i / 4][thread];
        const SUM *left = d + i, *right = d + HALF_OF_SUMS + i;
        if (piece == 0) store_four(to, other, right[0], right[1], right[2], right[3]);
        else store_four(to, other, left[0], left[1], left[2], left[3]);
    }
    cluster_sync();  // the sums have arrived
    #pragma unroll
    for (int i = 0; i < HALF_OF_SUMS; i += 4) {
        const Four four = received[i / 4][thread];
        #pragma unroll
        for (int j = 0; j < 4; j++) share[i + j] = (piece == 0 ? d[i + j] : d[HALF_OF_SUMS + i + j]) + four.of[j];
    }
    publish_shared();
    group_arrive(GROUPS + 1, READERS + WARP);  // they have been read
}
