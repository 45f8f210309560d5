// Copies a matrix of any strides from float32 or float64 to float32 or float64. A warp reads along the shorter stride of the source
// and writes along that of the target, so that both access whole sectors; if these differ, shared memory transposes the tile.

template <typename From, typename To>
__device__ void copy(
    const From* from, To* to, long long rows, long long columns,
    long long from_row, long long from_column, long long to_row, long long to_column)
{
    __shared__ To tile[32][33];
    const bool read_down = llabs(from_row) < llabs(from_column), write_down = llabs(to_row) < llabs(to_column);
    const long long across = (columns + 31) / 32, tiles = across * ((rows + 31) / 32);
    for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        const long long top = t / across * 32, left = t % across * 32;
        #pragma unroll
        for (int i = threadIdx.y; i < 32; i += 8) {
            const int r = read_down ? threadIdx.x : i, s = read_down ? i : threadIdx.x;
            if (top + r < rows && left + s < columns)
                tile[r][s] = (To)from[(top + r) * from_row + (left + s) * from_column];
        }
        __syncthreads();
        #pragma unroll
        for (int i = threadIdx.y; i < 32; i += 8) {
            const int r = write_down ? threadIdx.x : i, s = write_down ? i : threadIdx.x;
            if (top + r < rows && left + s < columns)
                to[(top + r) * to_row + (left + s) * to_column] = tile[r][s];
        }
        __syncthreads();
    }
}

#define COPY(name, From, To)                                                                                       \
    extern "C" __global__ void name(                                                                               \
        const From* from, To* to, long long rows, long long columns,                                               \
        long long from_row, long long from_column, long long to_row, long long to_column)                          \
    {                                                                                                              \
        copy(from, to, rows, columns, from_row, from_column, to_row, to_column);                                   \
    }

COPY(float32_to_float32, float, float)
COPY(float32_to_float64, float, double)
COPY(float64_to_float32, double, float)
COPY(float64_to_float64, double, double)
