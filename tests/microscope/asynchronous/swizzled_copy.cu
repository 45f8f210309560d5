// y = xᵀ: the copy engine brings a box of x into shared memory in the order of its tensor map, and threads read columns of it.
// SWIZZLE is 0, 32, 64 or 128 bytes. The box has 32 rows of that many bytes (of 128 without a swizzle), and the copy engine
// writes the 16-byte chunk c of row r to the place of chunk c ^ (r·row bytes/128 mod chunks), which spreads a column over
// the banks.
#include "hopper.cuh"

constexpr int ROW_BYTES = SWIZZLE ? SWIZZLE : 128, COLS = ROW_BYTES / 4, ROWS = 32, THREADS = 256;

__device__ int place(int row, int col)  // of an element in the box
{
    const int chunk = col / 4, turned = SWIZZLE ? chunk ^ row * ROW_BYTES / 128 % (ROW_BYTES / 16) : chunk;
    return row * COLS + turned * 4 + col % 4;
}

extern "C" __global__ void __launch_bounds__(THREADS) swizzled_copy(const __grid_constant__ TensorMap x, float* y, int rows, int cols)
{
    __shared__ alignas(1024) float box[ROWS * COLS];
    __shared__ Barrier arrived;
    const int top = blockIdx.y * ROWS, left = blockIdx.x * COLS;

    if (threadIdx.x == 0) {
        barrier_init(arrived, 1);
        barrier_publish();
    }
    __syncthreads();  // the barrier is there

    if (threadIdx.x == 0) {
        barrier_expect(arrived, sizeof(box));  // all of the box: outside of x, it is filled with zeros
        load_tile(box, x, left, top, arrived);
    }
    barrier_wait(arrived, 0);

    for (int i = threadIdx.x; i < ROWS * COLS; i += THREADS) {
        const int row = i % ROWS, col = i / ROWS;
        if (top + row < rows && left + col < cols)
            y[(left + col) * rows + top + row] = box[place(row, col)];
    }
}
