// The product that results on a GPU are verified against, and checks of memory there. The macro DTYPE_… selects the type of
// the elements. These kernels are written to be simple, not fast; the product is tiled only to keep verification short.

#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
typedef unsigned short element;
#elif defined(DTYPE_FLOAT64)
typedef double element;
#else
typedef float element;
#endif

typedef unsigned long long Count;

// The value of an element, exactly, in float64.
__device__ double wide(element x)
{
#if defined(DTYPE_FLOAT16)
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
#elif defined(DTYPE_BFLOAT16)
    return __uint_as_float((unsigned)x << 16);  // a bfloat16 is the upper half of a float32
#else
    return x;
#endif
}

// exact = A·B and magnitude = |A||B| in float64, both m×n, each sum in order of k: blocks of 32×8 threads, four rows a thread.
extern "C" __global__ void __launch_bounds__(256)
exact_product(const element* a, const element* b, double* exact, double* magnitude, int m, int n, int k)
{
    __shared__ double a_tile[32][32];
    __shared__ double b_tile[32][32];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long col = (long long)blockIdx.x * 32 + x;

    for (long long top = (long long)blockIdx.y * 32; top < m; top += (long long)gridDim.y * 32) {
        double sum[4] = {}, size[4] = {};
        for (long long p = 0; p < k; p += 32) {
            for (int i = y; i < 32; i += 8) {
                a_tile[i][x] = top + i < m && p + x < k ? wide(a[(top + i) * k + p + x]) : 0;
                b_tile[i][x] = p + i < k && col < n ? wide(b[(p + i) * n + col]) : 0;
            }
            __syncthreads();
            for (int i = 0; i < 32; i++)
                for (int r = 0; r < 4; r++) {
                    sum[r] = fma(a_tile[y + 8 * r][i], b_tile[i][x], sum[r]);
                    size[r] = fma(fabs(a_tile[y + 8 * r][i]), fabs(b_tile[i][x]), size[r]);
                }
            __syncthreads();
        }
        for (int r = 0; r < 4; r++) {
            const long long row = top + y + 8 * r;
            if (row >= m || col >= n) continue;
            exact[row * n + col] = sum[r];
            magnitude[row * n + col] = size[r];
        }
    }
}

// found: the first element that is outside its bound (none: all ones), the largest error, the largest error / bound.
// The bound is relative·|A||B| + rounding·|A·B| + tiny. Errors are not negative, so their bits compare as integers do.
extern "C" __global__ void __launch_bounds__(256)
compare(const element* c, const double* exact, const double* magnitude, long long count,
        double relative, double rounding, double tiny, Count* found)
{
    const double infinity = __longlong_as_double(0x7ff0000000000000);
    Count first = ~0ull;
    double worst = 0, ratio = 0;
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < count; i += (long long)gridDim.x * 256) {
        double error = fabs(wide(c[i]) - exact[i]);
        const double bound = relative * magnitude[i] + rounding * fabs(exact[i]) + tiny;
        if (!(error < infinity)) error = infinity;  // also NaN
        if (!(error <= bound && error < infinity) && first == ~0ull) first = i;
        worst = fmax(worst, error);
        if (error > 0) ratio = fmax(ratio, error / bound);
    }
    atomicMin(&found[0], first);
    atomicMax(&found[1], (Count)__double_as_longlong(worst));
    atomicMax(&found[2], (Count)__double_as_longlong(ratio));
}

// sums[y] += a weighted sum over the units (of 2 bytes) of part y. Weights are odd, so a change of one unit changes the sum.
extern "C" __global__ void __launch_bounds__(256)
checksum(const unsigned char* bytes, long long period, long long units, Count* sums)
{
    const unsigned short* x = (const unsigned short*)(bytes + blockIdx.y * period);
    Count sum = 0;
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < units; i += (long long)gridDim.x * 256)
        sum += x[i] * ((i * 0x9e3779b97f4a7c15ull ^ i >> 7) | 1);
    atomicAdd(&sums[blockIdx.y], sum);
}

// first: the least position, part·length + byte, of a byte that is not 0xFF (none: all ones).
extern "C" __global__ void __launch_bounds__(256)
touched(const unsigned char* bytes, long long period, long long length, Count* first)
{
    const unsigned char* x = bytes + blockIdx.y * period;
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < length; i += (long long)gridDim.x * 256)
        if (x[i] != 0xff) atomicMin(first, (Count)blockIdx.y * length + i);
}

// Keeps the GPU busy for so many nanoseconds, while launches are queued behind it.
extern "C" __global__ void hold(long long nanoseconds)
{
    Count start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < (Count)nanoseconds);
}
