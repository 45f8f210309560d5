// C = A·Bᵀ of bf16, 256 × 64, by a pair of blocks: each has 128 rows of A and C, and 32 rows of B; the even block issues the
// products of both. Copies of both blocks complete at the barrier of the even one.
constexpr int M = 256, N = 64, K = 64;
#define PAIR_BOX(d, m, x, y, b) asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], [%1, {%2, %3}], [%4];" :: "r"(sm(d)), "l"(&m), "r"(x), "r"(y), "r"(b) : "memory")

template <int D> DEV void run(const TensorMap& map_a, const TensorMap& map_b, float* c)
{
    __shared__ alignas(1024) char a[M / 2 * K * 2], b[N / 2 * K * 2];
    __shared__ u64 loaded, done;
    __shared__ u32 place;
    const int t = threadIdx.x, warp = t / 32, rank = rank_in_cluster();
    constexpr u32 shape = product_of(1, 1, 1, M, N);
    if (t == 0) {
        INIT(&loaded, 2);
        INIT(&done, 1);
        FENCE_INIT();
    }
    if (warp == 1) ALLOC("2", &place, 64);  // !! tcgen05 misuse: ONE_GIVES_NOTHING_BACK
    __syncthreads();
    if (D != NO_CLUSTER_SYNC) CLUSTER_SYNC();
    const u32 d = place, even = sm(&loaded) & 0xFEFFFFFF;  // the barrier of the even block
    #pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        if (t == 0) {
            asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" :: "r"(even), "r"((u32)(sizeof a + sizeof b)) : "memory");  // !! race: NO_CLUSTER_SYNC
            PAIR_BOX(a, map_a, step * K, rank * M / 2, D == OWN_BARRIER ? sm(&loaded) : even);
            PAIR_BOX(b, map_b, step * K, rank * N / 2, even);
        }
        if (rank == 0 && t == 0) {
            WAIT(&loaded, step & 1);  // !! endless wait: OWN_BARRIER
            AFTER_SYNC();
            for (int k = 0; k < 4; k++)
                MMA("2", "f16", d, tile(a + k * 32, 0, 1024, 2), tile(b + k * 32, 0, 1024, 2), shape, step + k > 0);
            if (D == TELLS_ONE_BLOCK) COMMIT_TO("2", &done);
            else COMMIT_TO_ALL("2", &done, 3);
        }
        WAIT(&done, step & 1);  // !! endless wait: TELLS_ONE_BLOCK
    }
    AFTER_SYNC();
    for (int n = 0; n < N; n += 8) {
        u32 v[8];
        LD8("32x32b.x8", v, d + lane_of(warp * 32, n));
        WAIT_LD();
        for (int i = 0; i < 8; i++) c[(rank * M / 2 + t) * N + n + i] = __uint_as_float(v[i]);
    }
    BEFORE_SYNC();
    if (D == OTHERS_HAVE_LEFT) {
        if (warp != 1) return;
    } else {
        __syncthreads();
    }
    CLUSTER_SYNC();
    if (warp == 1 && (D != ONE_GIVES_NOTHING_BACK || rank == 0)) DEALLOC("2", d, 64);  // !! race: OTHERS_HAVE_LEFT
}
