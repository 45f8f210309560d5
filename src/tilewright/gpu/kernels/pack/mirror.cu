// Copies the elements of each C below its diagonal to their places above it, so that C equals its transpose in every bit.
#include "../launches.cuh"
#include "../triangle.cuh"

typedef ELEMENT Element;  // its bits
constexpr int THREADS = 256, ROWS = THREADS / 32, WIDE = SIDE / 32;  // a block copies squares of SIDE rows

// Of `batch` matrices of `n` rows, whose elements are `row` and `column` apart, and the next matrix `next`.
extern "C" __global__ void __launch_bounds__(THREADS)
mirror(Element* c, long long row, long long column, long long next, int n, int batch)
{
    __shared__ Element square[SIDE][SIDE + 1];
    wait_for_launch_before();
    let_next_launch_begin();
    const int sides = (n - 1) / SIDE + 1, each = sides * (sides + 1) / 2, lane = threadIdx.x % 32;
    for (int job = blockIdx.x; job < each * batch; job += gridDim.x) {
        const int z = job / each, number = job - z * each, down = root_of_triangle(number);
        const int top = down * SIDE, left = (number - down * (down + 1) / 2) * SIDE;
        Element* of = c + z * next;
        Element held[SIDE / ROWS][WIDE];  // all that a thread reads comes first
        #pragma unroll
        for (int i = 0; i < SIDE / ROWS; i++)
            #pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const int y = top + threadIdx.x / 32 + i * ROWS, x = left + lane + j * 32;
                held[i][j] = y < n && x < n ? of[y * row + x * column] : Element {};
            }
        __syncthreads();  // the square before has been stored
        #pragma unroll
        for (int i = 0; i < SIDE / ROWS; i++)
            #pragma unroll
            for (int j = 0; j < WIDE; j++) square[threadIdx.x / 32 + i * ROWS][lane + j * 32] = held[i][j];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < SIDE / ROWS; i++)
            #pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const int y = left + threadIdx.x / 32 + i * ROWS, x = top + lane + j * 32;
                if (y < n && x < n && y < x) of[y * row + x * column] = square[lane + j * 32][threadIdx.x / 32 + i * ROWS];
            }
    }
}
