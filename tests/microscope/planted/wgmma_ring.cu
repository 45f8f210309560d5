// Two warpgroups multiply 64 rows of A each by the same B, m64n8k16, from a ring of two stages that one thread fills. Slabs
// lie in global memory as they shall lie in shared memory: 2 · 2,048 bytes of A and 256 of B for each step.
#define WG_FENCE() asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory")
#define WG_COMMIT() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WG_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %4;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "n"(n) : "memory")
#define WGMMA(a, b) asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b) : "memory")

// Core matrices of 8 rows of 16 bytes: neighbours along k are 128 bytes apart, along rows 256.
DEV u64 tile(const void* at) { return (u64)(sm(at) >> 4 & 0x3FFF) | 8ull << 16 | 16ull << 32; }

template <int D, int U> DEV void run(const char* x, float* y)
{
    __shared__ alignas(128) char a[2][2][2048];
    __shared__ alignas(128) char b[2][256];
    __shared__ u64 full[2], empty[2];
    constexpr int SLAB = 2 * 2048 + 256;
    constexpr bool by_threads = D == RIGHT_B_BY_THREADS || D == B_BY_THREADS_NO_FENCE;  // who writes the first two B
    const int t = threadIdx.x, group = t / 128;
    if (t == 256) {
        for (int s = 0; s < 2; s++) {
            INIT(&full[s], 1);
            INIT(&empty[s], D == RELEASED_BY_ONE_GROUP ? 1 : 2);
        }
        FENCE_INIT();
    }
    if (by_threads && t < 128) ((int*)b)[t] = ((const int*)(x + t / 64 * SLAB + 4096))[t % 64];
    if (D == RIGHT_B_BY_THREADS) FENCE();
    __syncthreads();
    if (t == 256) {
        #pragma unroll U
        for (int i = 0; i < STEPS; i++) {
            const int s = i % 2, phase = i / 2 & 1;
            const char* slab = x + i * SLAB;
            const bool with_b = !by_threads || i > 1;
            WAIT(&empty[s], phase ^ 1);  // !! endless wait: RELEASES_NOTHING
            ARRIVE_EXPECT(&full[s], with_b ? SLAB : 4096);
            LOAD(a[s], slab, 4096, &full[s]);  // !! race: GROUP_0_NEVER_WAITS RELEASES_CURRENT_STAGE ONE_PRODUCT_TOO_MANY_LEFT RELEASED_BY_ONE_GROUP WAITS_AFTER_RELEASE NO_WAIT
            if (with_b) LOAD(b[s], slab + 4096, 256, &full[s]);  // !! race: GROUP_0_NEVER_WAITS RELEASED_BY_ONE_GROUP
        }
    } else if (t < 256) {
        float d[4] = {0, 0, 0, 0};
        #pragma unroll U
        for (int i = 0; i < STEPS; i++) {
            const int s = i % 2, phase = i / 2 & 1;
            if (D == PARITY_OF_THE_STEP) WAIT(&full[s], i & 1);  // !! endless wait: PARITY_OF_THE_STEP
            else if (D == ONE_GROUP_WAITS) { if (group == 0) WAIT(&full[s], phase); }
            else if (D != NO_FULL_WAIT) WAIT(&full[s], phase);
            if (D != NO_WGMMA_FENCE) WG_FENCE();
            WGMMA(tile(a[D == MULTIPLIES_OTHER_STAGE ? s ^ 1 : s][group]), tile(b[s]));  // !! unwritten read: NO_FULL_WAIT MULTIPLIES_OTHER_STAGE ONE_GROUP_WAITS; missing fence: NO_WGMMA_FENCE B_BY_THREADS_NO_FENCE
            if (D != NO_COMMIT) WG_COMMIT();
            if (D == TOUCHES_SUMS) d[0] += 1;  // !! accumulator in flight: TOUCHES_SUMS
            const bool releases = i > 0 && t % 128 == 0;
            if (D == WAITS_AFTER_RELEASE && releases) ARRIVE(&empty[(i - 1) % 2]);
            if (D == ONE_PRODUCT_TOO_MANY_LEFT) WG_WAIT(2);
            else if (D == RIGHT_WAITS_FOR_ALL) WG_WAIT(0);
            else if (D == GROUP_0_NEVER_WAITS) { if (group == 1) WG_WAIT(1); }
            else if (D != NO_WAIT) WG_WAIT(1);
            if (D == RELEASES_CURRENT_STAGE || D == RIGHT_WAITS_FOR_ALL) { if (t % 128 == 0) ARRIVE(&empty[s]); }
            else if (D == RELEASED_BY_ONE_GROUP) { if (releases && group == 0) ARRIVE(&empty[(i - 1) % 2]); }
            else if (D != WAITS_AFTER_RELEASE && D != RELEASES_NOTHING && releases) ARRIVE(&empty[(i - 1) % 2]);
        }
        if (D == LAST_PRODUCT_LEFT) WG_WAIT(1);
        else if (D != NO_LAST_WAIT) WG_WAIT(0);
        for (int r = 0; r < 4; r++)
            y[(64 * group + t % 128 / 32 * 16 + t % 32 / 4 + r / 2 * 8) * 8 + t % 4 * 2 + r % 2] = d[r];  // !! accumulator in flight: LAST_PRODUCT_LEFT NO_LAST_WAIT NO_COMMIT
    }
}
