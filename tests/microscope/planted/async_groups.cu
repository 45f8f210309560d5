// cp.async and its groups: each thread copies a float into a ring of three stages and reads what another thread copied. Two
// copies are under way while one stage is read. y[t] = sum over i of x[i][(t + 32) % 64].
#define GROUP() asm volatile("cp.async.commit_group;" ::: "memory")
#define GROUPS_LEFT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")

template <int D, int U> DEV void run(const float* x, float* y)
{
    __shared__ float stage[3][64];
    const int t = threadIdx.x;
    float sum = 0;
    for (int i = 0; i < (D == ONE_STAGE_AHEAD ? 1 : 2); i++) {
        COPY(&stage[i][t], &x[64 * i + t]);
        GROUP();
    }
    #pragma unroll U
    for (int i = 0; i < STEPS; i++) {
        const bool more = i + 2 < STEPS;
        const float* next = &x[64 * (i + 2) + t];
        if (D == BARRIER_BEFORE_WAIT) __syncthreads();
        if (D == COPY_BEFORE_BARRIER && more) COPY(&stage[(i + 2) % 3][t], next);  // !! race: COPY_BEFORE_BARRIER
        if (D == ONE_GROUP_TOO_MANY_LEFT) GROUPS_LEFT(2);
        else if (D == ONE_THREAD_WAITS) { if (t == 0) GROUPS_LEFT(0); }
        else if (D == ONE_WARP_WAITS) { if (t < 32) GROUPS_LEFT(0); }
        else if (D == FIRST_STEP_WAITS) { if (i == 0) GROUPS_LEFT(0); }
        else if (D == EVERY_OTHER_STEP_WAITS) { if (i % 2) GROUPS_LEFT(1); }
        else if (D != NO_WAIT) GROUPS_LEFT(1);
        if (D == STORE_OVER_COPY && more) stage[(i + 1) % 3][t] = 0;  // !! race: STORE_OVER_COPY
        if (D == BARRIER_OF_A_WARP) __syncwarp();
        else if (D != NO_BARRIER && D != BARRIER_BEFORE_WAIT) __syncthreads();
        sum += stage[(i + (D == READS_NEXT_STAGE)) % 3][(t + 32) % 64];  // !! unwritten read: NO_WAIT ONE_GROUP_TOO_MANY_LEFT ONE_THREAD_WAITS ONE_WARP_WAITS FIRST_STEP_WAITS EVERY_OTHER_STEP_WAITS READS_NEXT_STAGE TAIL_WITHOUT_GROUPS ONE_STAGE_AHEAD NEVER_A_GROUP; race: NO_BARRIER BARRIER_BEFORE_WAIT BARRIER_OF_A_WARP
        if (D == FILLS_NEXT_STAGE && more) COPY(&stage[(i + 1) % 3][t], next);  // !! race: FILLS_NEXT_STAGE
        else if (D == COPIES_FOR_ANOTHER_THREAD && more) COPY(&stage[(i + 2) % 3][t & 62], &x[64 * (i + 2) + (t & 62)]);  // !! race: COPIES_FOR_ANOTHER_THREAD
        else if (D != COPY_BEFORE_BARRIER && more) COPY(&stage[(i + 2) % 3][t], next);
        if (D == COPIES_TWICE && more) COPY(&stage[(i + 2) % 3][t], next);  // !! race: COPIES_TWICE
        if (D == TAIL_WITHOUT_GROUPS) { if (more) GROUP(); }
        else if (D != NEVER_A_GROUP) GROUP();
    }
    y[t] = sum;
}
