// Writes each number of B as two pairs, itself and i times itself, in two rows that follow each other. With pairs as two columns of
// reals these are the 2×2 matrix by which a row (re, im) of A is multiplied to give re and im of the product. Of a B that lies by
// columns the matrix is transposed: the number is conjugated first.
#include "../launches.cuh"

#if DOUBLE
typedef double2 Pair;
#else
typedef float2 Pair;
#endif

constexpr int EACH = 4, THREADS = 256;  // elements of a thread

// Of `batch` matrices of `rows` rows of `columns` numbers. Their elements are `row` and `column` apart, and the next matrix `next`.
extern "C" __global__ void __launch_bounds__(THREADS)
write_pairs(const Pair* from, Pair* to, long long rows, long long columns, long long row, long long column, long long next, int batch)
{
    wait_for_launch_before();
    let_next_launch_begin();
    const long long chunks = (columns - 1) / (EACH * THREADS) + 1, jobs = rows * batch * chunks;
    for (long long job = blockIdx.x; job < jobs; job += gridDim.x) {
        const long long line = job / chunks, first = (job - line * chunks) * EACH * THREADS + threadIdx.x, z = line / rows;
        const Pair* at = from + z * next + (line - z * rows) * row;
        Pair* out = to + 2 * line * columns;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const long long j = first + i * THREADS;
            if (j >= columns) break;
            Pair x = at[j * column];
            if (BY_COLUMNS) x.y = -x.y;
            Pair turned;
            turned.x = -x.y;
            turned.y = x.x;
            out[j] = x;
            out[columns + j] = turned;
        }
    }
}
