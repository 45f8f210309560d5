// TMA with multicast: each of the two blocks of a cluster loads one half of every row for both. The second half reaches
// beyond the tensor, whose rows have 48 floats. y[block][t] = sum over i of x[i][t] + x[i][t + 32].
#define MULTICAST(d, m, x, y, b, mask) asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(sm(d)), "l"(&m), "r"(x), "r"(y), "r"(sm(b)), "h"((short)(mask)) : "memory")
#define ARRIVE_AT(b, rank) asm volatile("{ .reg .b32 R; mapa.shared::cluster.u32 R, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [R]; }" :: "r"(sm(b)), "r"(rank) : "memory")
#define CLUSTER_ARRIVE() asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory")
#define CLUSTER_WAIT() asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory")

template <int D, int U> DEV void run(const TensorMap& map, float* y)
{
    __shared__ alignas(128) float stage[2][2][32];
    __shared__ u64 full[2], empty[2];
    const int t = threadIdx.x, rank = blockIdx.x % 2;
    if (t == 0) {
        for (int s = 0; s < 2; s++) {
            INIT(&full[s], 1);
            INIT(&empty[s], D == WAITS_FOR_OWN_BLOCK || D == PEER_LEAVES ? 1 : 2);
        }
        if (D != NO_INIT_FENCE) FENCE_INIT();
    }
    if (D == NO_CLUSTER_BARRIER) __syncthreads();
    else { CLUSTER_ARRIVE(); CLUSTER_WAIT(); }
    if (D == PEER_LEAVES && rank) return;
    if (t == 32) {
        #pragma unroll U
        for (int i = 0; i < STEPS; i++) {
            const int s = i % 2, phase = i / 2 & 1;
            if (D != NO_EMPTY_WAIT) WAIT(&empty[s], phase ^ 1);  // !! endless wait: RELEASES_OWN_BLOCK_ONLY
            if (D == PEER_LEAVES) ARRIVE_EXPECT(&full[s], 128);
            else if (D == EXPECTS_OWN_HALF) ARRIVE_EXPECT(&full[s], 128);  // !! byte count: EXPECTS_OWN_HALF
            else if (D == EXPECTS_WHAT_IS_INSIDE) ARRIVE_EXPECT(&full[s], 192);  // !! byte count: EXPECTS_WHAT_IS_INSIDE
            else ARRIVE_EXPECT(&full[s], 256);  // !! byte count: COPIES_TO_ONE_BLOCK
            if (D == BOTH_TO_ONE_HALF) MULTICAST(stage[s][0], map, 32 * rank, i, &full[s], 3);  // !! race: BOTH_TO_ONE_HALF
            else if (D == COPIES_TO_ONE_BLOCK) MULTICAST(stage[s][rank], map, 32 * rank, i, &full[s], 1 << rank);
            else if (D == COPIES_BEYOND_CLUSTER) MULTICAST(stage[s][rank], map, 32 * rank, i, &full[s], 7);  // !! out of bounds: COPIES_BEYOND_CLUSTER
            else MULTICAST(stage[s][rank], map, 32 * rank, i, &full[s], 3);  // !! race: WAITS_FOR_OWN_BLOCK NO_EMPTY_WAIT NO_CLUSTER_BARRIER; block left early: PEER_LEAVES; missing fence: NO_INIT_FENCE
        }
    } else if (t < 32) {
        float sum = 0;
        #pragma unroll U
        for (int i = 0; i < STEPS; i++) {
            const int s = i % 2, phase = i / 2 & 1;
            if (D != NO_FULL_WAIT) WAIT(&full[s], D == FULL_PARITY_INVERTED ? phase ^ 1 : phase);  // !! endless wait: COPIES_TO_ONE_BLOCK
            sum += stage[s][0][t] + (D == PEER_LEAVES ? 0 : stage[s][1][t]);  // !! unwritten read: NO_FULL_WAIT FULL_PARITY_INVERTED EXPECTS_OWN_HALF
            __syncwarp();
            if (D == RELEASES_OWN_BLOCK_ONLY || D == WAITS_FOR_OWN_BLOCK || D == PEER_LEAVES) { if (t == 0) ARRIVE(&empty[s]); }
            else if (t < 2) ARRIVE_AT(&empty[s], t);  // !! block left early: NO_LAST_BARRIER
        }
        y[32 * blockIdx.x + t] = sum;
    }
    __syncwarp();
    if (D != NO_LAST_BARRIER && D != PEER_LEAVES) { CLUSTER_ARRIVE(); CLUSTER_WAIT(); }
}
