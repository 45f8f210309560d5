// y = 2·x: a bulk copy brings a part of x into shared memory, the threads double it there, a bulk copy takes it to y.
#include "hopper.cuh"

constexpr int PART = 2048, THREADS = 128;  // 8 KiB a block

extern "C" __global__ void __launch_bounds__(THREADS) bulk_copy(const float* x, float* y, int n)  // n is a multiple of 4
{
    __shared__ alignas(16) float part[PART];
    __shared__ Barrier arrived;
    const int first = blockIdx.x * PART, count = min(PART, n - first);

    if (threadIdx.x == 0) {
        barrier_init(arrived, 1);
        barrier_publish();
    }
    __syncthreads();  // the barrier is there

    if (threadIdx.x == 0) {
        barrier_expect(arrived, count * 4);
        load_bulk(part, x + first, count * 4, arrived);
    }
    barrier_wait(arrived, 0);
    for (int i = threadIdx.x; i < count; i += THREADS)
        part[i] *= 2;

    publish_shared();
    __syncthreads();  // the part is doubled
    if (threadIdx.x == 0) {
        store_bulk(y + first, part, count * 4);
        store_commit();
        store_wait_read();  // shared memory must outlive the copy
    }
}
