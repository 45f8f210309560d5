// SPLIT blocks of a cluster that each sum a piece of k add their sums: each sends to every other block the columns that this one stores,
// into its stages, which are free, and adds what it receives to its own. No sum goes through global memory.
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

// All threads of these blocks take part. Those of group 0 only wait; its first warp fills the stages again afterwards.
__device__ __forceinline__ void wait_for_sums()
{
    __syncwarp();
    cluster_sync();  // all stages have been read
    cluster_sync();  // the sums have arrived
    if (threadIdx.x < WARP) group_sync(GROUPS + 1, READERS + WARP);  // and have been read
}

// `d` are a thread's sums of its piece of k. Its `share` are those of all of k, of the columns that this block stores. Pieces are added in
// their order, whichever block stores: so elements of a symmetric C are the same on both sides of its diagonal.
__device__ __forceinline__ void add_pieces(const SUM (&d)[BN / 2], SUM (&share)[BN / 2 / SPLIT], int piece)
{
    constexpr int SHARE = BN / 2 / SPLIT;
    typedef Four Received[SHARE / 4][READERS];  // from one block
    Received* received = (Received*)memory;
    const int thread = threadIdx.x - 128;
    Four own[SHARE / 4];
    cluster_sync();  // all stages have been read
    #pragma unroll
    for (int p = 0; p < SPLIT; p++) {
        const int slot = piece - (piece > p);  // among those that block p receives
        #pragma unroll
        for (int i = 0; i < SHARE; i += 4) {
            const SUM* of = d + p * SHARE + i;
            if (p != piece) store_four(&received[slot][i / 4][thread], p, of[0], of[1], of[2], of[3]);
            else own[i / 4] = { of[0], of[1], of[2], of[3] };
        }
    }
    cluster_sync();  // the sums have arrived
    #pragma unroll
    for (int p = 0; p < SPLIT; p++)
        #pragma unroll
        for (int i = 0; i < SHARE; i += 4) {
            const Four four = p == piece ? own[i / 4] : received[p - (p > piece)][i / 4][thread];
            #pragma unroll
            for (int j = 0; j < 4; j++) share[i + j] = p == 0 ? four.of[j] : share[i + j] + four.of[j];
        }
    publish_shared();
    group_arrive(GROUPS + 1, READERS + WARP);  // they have been read
}
