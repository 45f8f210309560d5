// TILES products of 128 × 16 × 64 of bf16 by one block whose warps have roles: a copy warp fills two stages, a warp issues
// products into two accumulators in turn, and four warps store what is done.
constexpr int M = 128, N = 16, K = 64, TILES = 3;

template <int D> DEV void run(const TensorMap& map_a, const TensorMap& map_b, float* c)
{
    __shared__ alignas(1024) char a[2][M * K * 2];
    __shared__ alignas(1024) char b[2][N * K * 2];
    __shared__ u64 full[2], empty[2], sum_full[2], sum_empty[2];
    __shared__ u32 place;
    const int t = threadIdx.x, warp = t / 32;
    constexpr u32 shape = product_of(1, 1, 1, M, N);
    if (t == 0) {
        for (int i = 0; i < 2; i++) {
            INIT(&full[i], 1);
            INIT(&empty[i], 1);
            INIT(&sum_full[i], 1);
            INIT(&sum_empty[i], 128);
        }
        FENCE_INIT();
    }
    if (warp == 5) {
        ALLOC("1", &place, 32);
        RELINQUISH("1");
        if (D == ALLOCATES_AGAIN) ALLOC("1", &place, 32);  // !! tcgen05 misuse: ALLOCATES_AGAIN
    }
    __syncthreads();
    const u32 d = place;
    if (warp == 4) {  // ---- copies
        if (elected())
            #pragma unroll 1
            for (int i = 0; i < TILES; i++) {
                const int s = i % 2, y = i;
                WAIT(&empty[s], i / 2 + 1 & 1);
                ARRIVE_EXPECT(&full[s], (u32)(sizeof a[0] + sizeof b[0]));
                BOX(a[s], map_a, 0, y * M, &full[s]);  // !! race: RELEASES_EARLY
                BOX(b[s], map_b, 0, y * N, &full[s]);
            }
    } else if (warp == 5) {  // ---- products
        if (elected())
            #pragma unroll 1
            for (int i = 0; i < TILES; i++) {
                const int s = i % 2;
                if (D != NO_WAIT_FOR_EMPTY_SUM) {
                    WAIT(&sum_empty[s], i / 2 + 1 & 1);
                    if (D != NO_AFTER_SYNC_OF_PRODUCTS) AFTER_SYNC();
                }
                if (D != NO_FULL_WAIT) WAIT(&full[s], i / 2 & 1);
                if (D != NO_AFTER_SYNC_OF_PRODUCTS) AFTER_SYNC();
                for (int k = 0; k < 4; k++)
                    MMA("1", "f16", d + s * N, tile(a[s] + k * 32, 0, 1024, 2), tile(b[s] + k * 32, 0, 1024, 2), shape, k > 0);  // !! race: NO_WAIT_FOR_EMPTY_SUM NO_WAIT_LD; missing fence: NO_BEFORE_SYNC NO_AFTER_SYNC_OF_PRODUCTS; unwritten read: NO_FULL_WAIT
                if (D == RELEASES_EARLY) ARRIVE(&empty[s]);
                else COMMIT_TO("1", &empty[s]);
                if (D == SUM_NOT_COMMITTED) ARRIVE(&sum_full[s]);
                else COMMIT_TO("1", &sum_full[s]);
            }
    } else {  // ---- results
        #pragma unroll 1
        for (int i = 0; i < TILES; i++) {
            const int q = i % 2;
            if (D != NO_WAIT_FOR_SUM) WAIT(&sum_full[q], D == WRONG_PARITY_OF_SUM ? 1 : i / 2 & 1);
            if (D != NO_AFTER_SYNC) AFTER_SYNC();
            u32 v[2][8];
            for (int n = 0; n < N; n += 8) LD8("32x32b.x8", v[n / 8], d + lane_of(warp * 32, q * N + n));  // !! accumulator in flight: SUM_NOT_COMMITTED; unwritten read: NO_WAIT_FOR_SUM WRONG_PARITY_OF_SUM; missing fence: NO_AFTER_SYNC
            if (D != NO_WAIT_LD) WAIT_LD();
            if (D != NO_BEFORE_SYNC) BEFORE_SYNC();
            ARRIVE(&sum_empty[q]);
            for (int n = 0; n < N; n++) c[(i * M + t) * N + n] = __uint_as_float(v[n / 8][n % 8]);
        }
    }
    if (D != GIVES_BACK_EARLY) __syncthreads();
    if (warp == 5) DEALLOC("1", d, 32);  // !! race: GIVES_BACK_EARLY
}
