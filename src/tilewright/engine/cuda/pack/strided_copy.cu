// Copies a matrix of any strides from any floating-point type to any. A warp reads along the shorter stride of the source and
// writes along that of the target, so that both access whole sectors; if these differ, shared memory transposes the tile.

struct BFloat16 { unsigned short bits; };
struct Float16 { unsigned short bits; };

// A wider type of what is read, that represents it exactly.
__device__ __forceinline__ double wide(double x) { return x; }
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(BFloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float wide(Float16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Rounded once to nearest, ties to even, as C++ rounds float64 to float32.
__device__ __forceinline__ void narrow(double x, double& to) { to = x; }
__device__ __forceinline__ void narrow(double x, float& to) { to = (float)x; }
__device__ __forceinline__ void narrow(float x, double& to) { to = x; }
__device__ __forceinline__ void narrow(float x, float& to) { to = x; }
__device__ __forceinline__ void narrow(float x, BFloat16& to)
{
    const unsigned bits = __float_as_uint(x);
    to.bits = x != x ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ void narrow(float x, Float16& to)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}
template <typename To> __device__ __forceinline__ void narrow(double x, To& to)
{
    // To float32 toward zero with the last bit set if anything was lost: rounding that once more gives what one rounding gives.
    float y = __double2float_rz(x);
    if ((double)y != x && x == x) y = __uint_as_float(__float_as_uint(y) | 1);
    narrow(y, to);
}

template <typename T> __device__ __forceinline__ void convert(T x, T& to) { to = x; }
template <typename From, typename To> __device__ __forceinline__ void convert(From x, To& to) { narrow(wide(x), to); }

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
                convert(from[(top + r) * from_row + (left + s) * from_column], tile[r][s]);
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
#define COPIES(name, From)                                                                                         \
    COPY(name##_to_float32, From, float)                                                                           \
    COPY(name##_to_float64, From, double)                                                                          \
    COPY(name##_to_bfloat16, From, BFloat16)                                                                       \
    COPY(name##_to_float16, From, Float16)

COPIES(float32, float)
COPIES(float64, double)
COPIES(bfloat16, BFloat16)
COPIES(float16, Float16)
