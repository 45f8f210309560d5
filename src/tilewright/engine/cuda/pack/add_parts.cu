// Adds the sums of the parts of k in their own type, always in the same order, and rounds once. All parts of one product of a batch
// follow each other.
#include "../launches.cuh"
#include "../strided.cuh"

template <typename Real> struct Complex {
    Real re, im;
    __device__ __forceinline__ void operator+=(Complex x)
    {
        re += x.re;
        im += x.im;
    }
};
#if SUM == COMPLEX64
typedef Complex<float> Sum;
#elif SUM == COMPLEX128
typedef Complex<double> Sum;
#elif SUM == FLOAT64
typedef double Sum;
#elif SUM == INT32
typedef int Sum;
#else
typedef float Sum;
#endif
#if OUT == SUM
typedef Sum Out;
__device__ __forceinline__ Out rounded(Sum x) { return x; }
#elif OUT == INT8
typedef signed char Out;
__device__ __forceinline__ Out rounded(Sum x) { return (Out)x; }
#elif OUT == FLOAT32
typedef float Out;
__device__ __forceinline__ Out rounded(Sum x) { return (Out)x; }
#else
typedef unsigned short Out;
__device__ __forceinline__ Out rounded(float x)
{
    unsigned both;
    if (OUT == BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
    return (Out)both;
}
#endif

// The same for many elements: each thread adds four elements, 32 apart.
extern "C" __global__ void __launch_bounds__(256)
add_parts_in_threads(const Sum* parts, Out* c, long long rows, long long columns, long long row_c, long long column_c, long long next_c, int count,
              int batch)
{
    wait_for_launch_before();
    const long long size = rows * columns, all = size * batch;
    const bool contiguous = column_c == 1 && row_c == columns && (batch == 1 || next_c == size);
    const int first = threadIdx.x / 32 * 128 + threadIdx.x % 32;
    for (long long start = blockIdx.x * 1024ll + first; start < all; start += gridDim.x * 1024ll) {
        Sum sums[4] = {};
        const Sum* from[4];
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long i = min(start + 32 * j, all - 1), z = batch > 1 ? i / size : 0;
            from[j] = parts + z * count * size + (i - z * size);
        }
        if (count <= 8)
            #pragma unroll 4
            for (int p = 0; p < count; p++)
                #pragma unroll
                for (int j = 0; j < 4; j++) sums[j] += from[j][p * size];
        else
            for (int eighth = 0, p = 0; eighth < 8; eighth++) {
                Sum of[4] = {};
                #pragma unroll 4
                for (; p < (eighth + 1ll) * count / 8; p++)
                    #pragma unroll
                    for (int j = 0; j < 4; j++) of[j] += from[j][p * size];
                #pragma unroll
                for (int j = 0; j < 4; j++) sums[j] += of[j];
            }
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long i = start + 32 * j;
            if (i >= all) break;
            long long to = i;
            if (!contiguous) {
                const long long z = i / size, at = i - z * size, row = at / columns;
                to = z * next_c + row * row_c + (at - row * columns) * column_c;
            }
            c[to] = rounded(sums[j]);
        }
    }
}

constexpr int WARPS = 8;

// A warp adds up 32 elements of its eighth of the parts, and the first warp the eighths.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
add_parts(const Sum* parts, Out* c, long long rows, long long columns, long long row_c, long long column_c, long long next_c, int count,
          int batch)
{
    wait_for_launch_before();
    __shared__ Sum sums[WARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = (int)((long long)warp * count / WARPS), stop = (int)((long long)(warp + 1) * count / WARPS);
    const long long size = rows * columns, all = size * batch;
    for (long long start = blockIdx.x * 32ll; start < all; start += gridDim.x * 32ll) {
        const long long i = start + lane, z = i / size, at = i - z * size, row = at / columns;
        Sum sum = {};
        if (i < all) {
            const Sum* from = parts + z * count * size + at;
            #pragma unroll 8
            for (int p = first; p < stop; p++) sum += from[p * size];
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && i < all) {
            #pragma unroll
            for (int w = 1; w < WARPS; w++) sum += sums[w][lane];
            c[z * next_c + row * row_c + (at - row * columns) * column_c] = rounded(sum);
        }
        __syncthreads();
    }
}
