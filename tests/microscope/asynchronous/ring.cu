// y[col] = sum of a column of x: one warp fills a ring of stages by bulk copies, four warps add up what arrives, row by row.
#include "hopper.cuh"

constexpr int COLS = 128, ROWS = 8, STAGES = 4, WARPS = 4;  // a stage is 8 rows of 512 bytes
constexpr int THREADS = WARPS * 32 + 32;

extern "C" __global__ void __launch_bounds__(THREADS) ring(const float* x, float* y, int rows, int cols)  // cols is a multiple of 128
{
    __shared__ alignas(128) float stage[STAGES][ROWS][COLS];
    __shared__ Barrier full[STAGES], empty[STAGES];
    const int left = blockIdx.x * COLS, warp = threadIdx.x / 32, steps = (rows + ROWS - 1) / ROWS;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full[i], 1);       // the producer, and the bytes that it announces
            barrier_init(empty[i], WARPS);  // one thread of each warp that reads
        }
        barrier_publish();
    }
    __syncthreads();  // the barriers are there

    if (warp == WARPS) {  // ---- PRODUCER
        if (elected())
            for (int step = 0; step < steps; step++) {
                const int slot = step % STAGES, parity = step / STAGES % 2, top = step * ROWS, count = min(ROWS, rows - top);
                barrier_wait(empty[slot], parity ^ 1);  // the first round waits for nothing: the phase before counts as complete
                barrier_expect(full[slot], count * COLS * 4);
                for (int row = 0; row < count; row++)
                    load_bulk(stage[slot][row], x + (long long)(top + row) * cols + left, COLS * 4, full[slot]);
            }
    } else {  // ---- CONSUMERS: a column each
        float sum = 0;
        for (int step = 0; step < steps; step++) {
            const int slot = step % STAGES, parity = step / STAGES % 2, count = min(ROWS, rows - step * ROWS);
            barrier_wait(full[slot], parity);
            for (int row = 0; row < count; row++)
                sum += stage[slot][row][threadIdx.x];
            __syncwarp();  // all lanes have read
            if (threadIdx.x % 32 == 0)
                barrier_arrive(empty[slot]);
        }
        y[left + threadIdx.x] = sum;
    }
}
