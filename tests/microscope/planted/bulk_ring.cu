// cp.async.bulk and mbarriers: one thread asks for the copies of two stages, two warps add up what arrives.
// y[t] = sum over i of x[i][t] + x[i][t + 64].
template <int D, int U> DEV void run(const float* x, float* y)
{
    __shared__ alignas(128) float stage[2][128];
    __shared__ u64 full[2], empty[2];
    constexpr bool by_lane = D == RIGHT_LANE_RELEASES || D == LANE_RELEASES_EARLY;  // or else each thread releases
    const int t = threadIdx.x;
    if (t == 64) {
        for (int s = 0; s < 2; s++) {
            INIT(&full[s], D == FULL_NEEDS_TWO_ARRIVALS ? 2 : 1);
            INIT(&empty[s], by_lane ? 2 : D == RELEASED_BY_ONE_WARP ? 32 : D == ONE_RELEASE_TOO_MANY ? 65 : 64);
        }
        if (D != NO_INIT_FENCE) FENCE_INIT();
    }
    if (D != NO_BARRIER_AFTER_INIT) __syncthreads();
    if (t == 64) {
        #pragma unroll U
        for (int i = 0; i < STEPS; i++) {
            const int s = i % 2, phase = i / 2 & 1;
            if (D == INIT_AGAIN && i == 2) INIT(&full[0], 1);  // !! barrier misuse: INIT_AGAIN
            if (D == EMPTY_PARITY_INVERTED) WAIT(&empty[s], phase);  // !! endless wait: EMPTY_PARITY_INVERTED
            else if (D == EMPTY_PARITY_STUCK) WAIT(&empty[s], 1);
            else if (D != PRODUCER_NO_WAIT) WAIT(&empty[s], phase ^ 1);  // !! endless wait: NO_RELEASE ONE_RELEASE_TOO_MANY WAITS_ONCE
            if (D == NO_EXPECT) ARRIVE(&full[s]);
            else if (D == EXPECTS_HALF) ARRIVE_EXPECT(&full[s], 256);  // !! byte count: EXPECTS_HALF
            else if (D == EXPECTS_MORE) ARRIVE_EXPECT(&full[s], 528);  // !! byte count: EXPECTS_MORE
            else ARRIVE_EXPECT(&full[s], 512);
            if (D == FILLS_OTHER_STAGE) LOAD(stage[s ^ 1], x + 128 * i, 512, &full[s]);  // !! race: FILLS_OTHER_STAGE
            else if (D == SIGNALS_OTHER_STAGE) LOAD(stage[s], x + 128 * i, 512, &full[s ^ 1]);
            else if (D == COPIES_OVERLAP) {
                LOAD(stage[s], x + 128 * i, 256, &full[s]);
                LOAD(stage[s] + 60, x + 128 * i + 60, 256, &full[s]);  // !! race: COPIES_OVERLAP
            } else LOAD(stage[s], x + 128 * i, 512, &full[s]);  // !! race: PRODUCER_NO_WAIT EMPTY_PARITY_STUCK RELEASED_BY_ONE_WARP RELEASES_BEFORE_READING LANE_RELEASES_EARLY; missing fence: NO_INIT_FENCE; byte count: NO_EXPECT
        }
    } else if (t < 64) {
        float sum = 0;
        #pragma unroll U
        for (int i = 0; i < STEPS; i++) {
            const int s = i % 2, phase = i / 2 & 1, from = D == READS_OTHER_STAGE ? s ^ 1 : s;
            if (D == FULL_PARITY_INVERTED) WAIT(&full[s], phase ^ 1);
            else if (D == FULL_PARITY_STUCK) WAIT(&full[s], 0);  // !! wrong parity: FULL_PARITY_STUCK
            else if (D == PARITY_OF_THE_STEP) WAIT(&full[s], i & 1);  // !! endless wait: PARITY_OF_THE_STEP
            else if (D == ONE_LANE_WAITS || D == RIGHT_LANE_WAITS) { if (t % 32 == 0) WAIT(&full[s], phase); }
            else if (D == ONE_WARP_WAITS) { if (t < 32) WAIT(&full[s], phase); }
            else if (D == WAITS_ONCE) { if (i < 2) WAIT(&full[s], 0); }
            else if (D != CONSUMER_NO_WAIT) WAIT(&full[s], phase);  // !! endless wait: FULL_NEEDS_TWO_ARRIVALS EXPECTS_MORE; race: NO_BARRIER_AFTER_INIT
            if (D == RIGHT_LANE_WAITS) __syncwarp();
            if (D == RELEASES_BEFORE_READING) ARRIVE(&empty[s]);
            sum += stage[from][t] + stage[from][t + 64];  // !! unwritten read: CONSUMER_NO_WAIT FULL_PARITY_INVERTED READS_OTHER_STAGE SIGNALS_OTHER_STAGE ONE_WARP_WAITS ONE_LANE_WAITS
            if (by_lane) {
                if (D == RIGHT_LANE_RELEASES) __syncwarp();
                if (t % 32 == 0) ARRIVE(&empty[s]);
            } else if (D == RELEASED_BY_ONE_WARP) { if (t < 32) ARRIVE(&empty[s]); }
            else if (D != NO_RELEASE && D != RELEASES_BEFORE_READING) ARRIVE(&empty[s]);
        }
        y[t] = sum;
    }
}
