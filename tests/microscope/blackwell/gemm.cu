// C = A·Bᵀ of bf16, 128 × 64, by one block: a copy of 64 of K at a time, four products, and the next copy when they are done.
constexpr int M = 128, N = 64, K = 64;

template <int D> DEV void run(const TensorMap& map_a, const TensorMap& map_b, float* c)
{
    __shared__ alignas(1024) char a[M * K * 2], b[N * K * 2];
    __shared__ u64 loaded, done;
    __shared__ u32 place;
    const int t = threadIdx.x, warp = t / 32;
    constexpr u32 shape = product_of(1, 1, 1, D == WRONG_M ? 96 : M, N);
    constexpr int columns = D == TOO_FEW_COLUMNS ? 32 : 64;
    if (t == 0) {
        INIT(&loaded, 1);
        INIT(&done, 1);
        FENCE_INIT();
    }
    if (D == HALF_A_WARP ? t >= 32 && t < 48 : warp == 1)
        ALLOC("1", &place, D == ODD_COLUMNS ? 48 : columns);  // !! tcgen05 misuse: NO_DEALLOC ODD_COLUMNS; divergent barrier: HALF_A_WARP
    __syncthreads();
    const u32 d = D == HALF_A_WARP ? 0 : place;
    #pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        if (t == 0) {
            ARRIVE_EXPECT(&loaded, (u32)(sizeof a + sizeof b));
            BOX(a, map_a, step * K, 0, &loaded);  // !! race: NO_WAIT
            BOX(b, map_b, step * K, 0, &loaded);
        }
        WAIT(&loaded, step & 1);
        if (D == BY_A_WARP ? warp == 0 : t == 0)
            for (int k = 0; k < 4; k++) {
                const int at = k * 32;
                const u64 from = tile(a + at, 0, D == WRONG_STRIDE ? 1008 : 1024, 2);
                MMA("1", "f16", d, D == NO_VERSION ? from & ~(7ull << 46) : from, tile(b + at, 0, 1024, D == WRONG_SWIZZLE ? 4 : 2), shape, D == ADDS_TO_NOTHING || step + k > 0);  // !! descriptor: WRONG_M WRONG_STRIDE NO_VERSION WRONG_SWIZZLE; unwritten read: ADDS_TO_NOTHING; tcgen05 misuse: BY_A_WARP; out of bounds: TOO_FEW_COLUMNS
            }
        if (D != NO_COMMIT && t == 0) COMMIT_TO("1", &done);
        if (D != NO_WAIT && D != NO_COMMIT) WAIT(&done, step & 1);
    }
    if (D != NO_AFTER_SYNC) AFTER_SYNC();
    for (int n = 0; n < N; n += 8) {
        u32 v[8];
        LD8("32x32b.x8", v, d + lane_of(D == OTHER_LANES ? 0 : warp * 32, n));  // !! accumulator in flight: NO_WAIT NO_COMMIT; missing fence: NO_AFTER_SYNC; out of bounds: OTHER_LANES
        if (D != NO_WAIT_LD) WAIT_LD();
        for (int i = 0; i < 8; i++) c[t * N + n + i] = __uint_as_float(v[i]);
    }
    if (D != DEALLOC_EARLY) {
        BEFORE_SYNC();
        __syncthreads();
    }
    if (D != NO_DEALLOC && warp == 1) DEALLOC("1", d, D == GIVES_BACK_OTHERS ? 32 : columns);  // !! tcgen05 misuse: GIVES_BACK_OTHERS; race: DEALLOC_EARLY NO_WAIT_LD
}
