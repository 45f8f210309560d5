// Loads alone, as those of `hopper` for a C of few tiles and a long k: a ring of tiles that the copy engine brings, which nobody
// multiplies. Every tile of A is read by the blocks of one row of tiles, every tile of B by those of one column. Clusters of NEAR blocks
// have no other purpose than their place: a cluster lies in one group of multiprocessors.
#include "../src/tilewright/gpu/kernels/hopper.cuh"

extern __shared__ __align__(1024) unsigned char memory[];

__device__ __forceinline__ void load(void* to, const void* from, int bytes, Barrier& barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(&barrier)) : "memory");
}

// Block `tile` reads, of its part of k, STEPS tiles of A of its row and of B of its column; `sums` is what their first words add up to.
extern "C" __global__ void __cluster_dims__(NEAR) __launch_bounds__(32, 1)
near_blocks(const unsigned char* a, const unsigned char* b, unsigned* sums, int rows, int columns, int blocks, int steps, int all_steps)
{
    __shared__ Barrier full[STAGES];
    const int tile = blockIdx.x, part = tile / (rows * columns), inside = tile % (rows * columns);
    if (threadIdx.x || tile >= blocks) return;
    for (int i = 0; i < STAGES; i++) barrier_init(full[i], 1);
    barrier_publish();

    // Sixteen tiles that follow each other are four rows of four columns.
    const int band = inside / (4 * columns), row = band * 4 + inside % (4 * columns) % 4, column = inside % (4 * columns) / 4;
    const int first = part * steps, count = min(steps, all_steps - first);
    auto issue = [&](int step) {
        unsigned char* stage = memory + step % STAGES * (BYTES_A + BYTES_B);
        Barrier& barrier = full[step % STAGES];
        barrier_expect(barrier, BYTES_A + BYTES_B);
        load(stage, a + ((long long)(first + step) * rows + row) * BYTES_A, BYTES_A, barrier);
        load(stage + BYTES_A, b + ((long long)(first + step) * columns + column) * BYTES_B, BYTES_B, barrier);
    };
    for (int step = 0; step < min(STAGES, count); step++) issue(step);
    unsigned sum = 0;
    for (int step = 0; step < count; step++) {
        const unsigned char* stage = memory + step % STAGES * (BYTES_A + BYTES_B);
        barrier_wait(full[step % STAGES], step / STAGES % 2);
        sum += *(const volatile unsigned*)stage + *(const volatile unsigned*)(stage + BYTES_A);
        if (step + STAGES < count) issue(step + STAGES);
    }
    sums[tile] = sum;
}
