// The copy engine stores slabs that threads have written: y[i][t] = 2·x[i][t]. The right kernel has two slabs, one of which
// may still be read while the other is written.
template <int D, int U> DEV void run(const float* x, float* y)
{
    __shared__ alignas(128) float slab[2][64];
    constexpr bool one_slab = D == RIGHT_ONE_SLAB || D == ONE_SLAB_ONE_LEFT;
    const int t = threadIdx.x;
    #pragma unroll U
    for (int i = 0; i < STEPS; i++) {
        const int s = one_slab ? 0 : i % 2;
        if (t == (D == OTHER_THREAD_WAITS ? 32 : 0)) {
            if (D == TWO_LEFT) WAIT_READ(2);
            else if (D == RIGHT_ONE_SLAB) WAIT_READ(0);
            else if (D != NO_READ_WAIT) WAIT_READ(1);
        }
        if (D != NO_BARRIER_AFTER_READ_WAIT) __syncthreads();
        slab[s][t] = 2 * x[64 * i + t];  // !! race: NO_READ_WAIT TWO_LEFT ONE_SLAB_ONE_LEFT OTHER_THREAD_WAITS NO_GROUP NO_BARRIER_AFTER_READ_WAIT
        if (D == FENCE_BEFORE_WRITE) { }
        else if (D == ONE_WARP_FENCES) { if (t < 32) FENCE(); }
        else if (D != NO_FENCE) FENCE();
        if (D == BARRIER_OF_A_WARP) __syncwarp();
        else if (D != NO_BARRIER_BEFORE_STORE) __syncthreads();
        if (t == 0) {
            STORE(y + 64 * i, slab[s], 256);  // !! missing fence: NO_FENCE ONE_WARP_FENCES FENCE_BEFORE_WRITE; race: NO_BARRIER_BEFORE_STORE BARRIER_OF_A_WARP LEAVES_WHILE_READ LAST_GROUP_OPEN
            if (D == WRITES_AFTER_STORE) slab[s][0] = 0;  // !! race: WRITES_AFTER_STORE
            if (D != NO_GROUP && !(D == LAST_GROUP_OPEN && i == STEPS - 1)) COMMIT();
            if (D == READS_BACK_TOO_EARLY) WAIT_READ(0);
            if (D == RIGHT_READS_BACK) WAIT_ALL(0);
            if (D == READS_BACK_TOO_EARLY || D == RIGHT_READS_BACK) y[64 * STEPS] = y[64 * i + 1];  // !! unwritten read: READS_BACK_TOO_EARLY
        }
        if (D == FENCE_BEFORE_WRITE) FENCE();
    }
    if (t == 0 && D != LEAVES_WHILE_READ) WAIT_READ(0);
}
