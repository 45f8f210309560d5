// Within a warp: sums by halving, each step of which reads what other lanes have written. y[i][warp] = sum of 32 of x[i].
#define WAIT_FOR_COPIES() asm volatile("cp.async.wait_all;" ::: "memory")

template <int D, int U> DEV void run(const float* x, float* y)
{
    __shared__ float sums[64];
    const int t = threadIdx.x, lane = t % 32, first = t - lane;
    constexpr bool copied = D == RIGHT_COPY || D == COPY_NO_SYNCWARP || D == COPY_ONE_LANE_WAITS;
    constexpr bool is_volatile = D == RIGHT_VOLATILE || D == VOLATILE_NO_SYNCWARP;
    constexpr bool branch = D == RIGHT_SYNC_IN_A_BRANCH || D == NO_SYNCWARP_AFTER_THE_BRANCH;
    #pragma unroll U
    for (int i = 0; i < STEPS; i++) {
        if (copied) {
            COPY(&sums[t], &x[64 * i + t]);
            if (D != COPY_ONE_LANE_WAITS || lane == 0) WAIT_FOR_COPIES();
        } else sums[t] = x[64 * i + t];  // !! race: NO_SYNCWARP_AFTER_THE_BRANCH
        if (D != COPY_NO_SYNCWARP && D != NO_SYNCWARP_BEFORE_THE_SUM) __syncwarp();
        if (copied) {  // lane 0 adds up what all lanes have copied
            if (lane == 0) {
                float sum = 0;
                for (int other = 0; other < 32; other++) sum += sums[first + other];  // !! race: COPY_NO_SYNCWARP; unwritten read: COPY_ONE_LANE_WAITS
                y[2 * i + t / 32] = sum;
            }
            __syncwarp();
            continue;
        }
        if (D == NO_SYNCWARP_BEFORE_THE_SUM) { if (lane == 0) y[2 * i + t / 32] = sums[first + 31]; }  // !! race: NO_SYNCWARP_BEFORE_THE_SUM
        #pragma unroll U
        for (int step = 16; step > 0; step /= 2) {
            if (is_volatile) {
                volatile float* v = sums + first;
                if (lane < step) v[lane] += v[lane + step];  // !! volatile race: VOLATILE_NO_SYNCWARP
                if (D == RIGHT_VOLATILE) __syncwarp();
                continue;
            }
            if (lane < step) {
                sums[t] += sums[t + step];  // !! race: NO_SYNCWARP_BETWEEN_STEPS SYNC_OF_A_QUARTER ONE_SYNCWARP_FOR_TWO_STEPS
                if (branch) __syncwarp((1u << step) - 1);
            }
            if (D == SYNC_OF_A_QUARTER) { if (lane < 8) __syncwarp(0xFF); else __syncwarp(0xFFFFFF00); }
            else if (D == ONE_SYNCWARP_FOR_TWO_STEPS) { if (step & 0x15) __syncwarp(); }
            else if (D != NO_SYNCWARP_BETWEEN_STEPS && !branch) __syncwarp();
        }
        if (lane == 0) y[2 * i + t / 32] = sums[t];
        if (D == RIGHT_SYNC_IN_A_BRANCH) __syncwarp();
    }
}
