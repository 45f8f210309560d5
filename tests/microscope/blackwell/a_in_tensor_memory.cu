// C = A·Bᵀ of fp16, 128 × 32 × (STEPS·16): the threads store A to tensor memory, a row each, and B to shared memory.
constexpr int N = 32;

template <int D> DEV void run(const u32* a, const u32* b, float* c)
{
    __shared__ alignas(128) u32 part[N * 8];  // 8 rows of 16 bytes, then their other 16 bytes
    __shared__ u64 done;
    __shared__ u32 place;
    const int t = threadIdx.x, warp = t / 32;
    constexpr u32 shape = product_of(1, 0, 0, 128, N);
    if (t == 0) INIT(&done, 1);
    if (warp == 1) ALLOC("1", &place, 64);
    __syncthreads();
    const u32 d = place, d_a = d + 32;
    #pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        u32 v[8];
        for (int i = 0; i < 8; i++) v[i] = a[t * STEPS * 8 + step * 8 + i];
        if (D != HALF_OF_A || t < 64) ST8("32x32b.x8", d_a + lane_of(warp * 32, 0), v);  // !! race: OVERWRITES_A
        if (D != NO_WAIT_ST) WAIT_ST();
        if (t < N)
            for (int i = 0; i < 8; i++) part[t / 8 * 64 + i / 4 * 32 + t % 8 * 4 + i % 4] = b[t * STEPS * 8 + step * 8 + i];  // !! race: OVERWRITES_A
        if (D != NO_PROXY_FENCE) FENCE();
        if (D != NO_BEFORE_SYNC) BEFORE_SYNC();
        __syncthreads();
        if (t == 0) {
            if (D != NO_AFTER_SYNC) AFTER_SYNC();
            MMA_A_HERE("f16", d, d_a, tile(part, 128, 256, 0), shape, step > 0);  // !! accumulator in flight: NO_WAIT_ST; missing fence: NO_BEFORE_SYNC NO_AFTER_SYNC NO_PROXY_FENCE; unwritten read: HALF_OF_A
            COMMIT_TO("1", &done);
        }
        if (D != OVERWRITES_A || step == STEPS - 1) WAIT(&done, step & 1);
        AFTER_SYNC();
    }
    for (int n = 0; n < N; n += 8) {
        u32 v[8];
        LD8("32x32b.x8", v, d + lane_of(warp * 32, n));
        WAIT_LD();
        for (int i = 0; i < 8; i++) c[t * N + n + i] = __uint_as_float(v[i]);
    }
    BEFORE_SYNC();
    __syncthreads();
    if (warp == 1) DEALLOC("1", d, 64);
}
