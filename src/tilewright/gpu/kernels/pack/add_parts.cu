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
#if SUM == 0
#error "SUM names a dtype that types.cuh does not define"
#elif SUM == COMPLEX64
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

// EACH numbers that follow each other: one access of memory.
template <typename T, int EACH> struct alignas(EACH * sizeof(T)) Several { T of[EACH]; };

constexpr int WARPS = 8, LANES = 32, WHOLE = 16 / sizeof(Sum);  // numbers in 16 bytes

// Where numbers are: in matrix z, from `column` of `row` on.
struct Place { long long z, row, column; };

// Some warps of a block add the same numbers, each those of other parts of k, and the first of them adds up what these found: so all of a
// multiprocessor's warps wait for memory at once. Of up to eight parts each warp reads one, of more an eighth. A lane has EACH numbers
// that follow each other, TIMES times. With ACROSS columns of C follow each other, and a warp has whole sectors of both at a time: 16 rows
// of 2 · EACH numbers.
template <int EACH, int TIMES, bool ACROSS>
__device__ __forceinline__ void add(const Sum* parts, Out* c, long long rows, long long columns, long long row_c, long long column_c,
                                    long long next_c, int count, int batch)
{
    wait_for_launch_before();
    typedef Several<Sum, EACH> Sums;
    typedef Several<Out, EACH> Outs;
    __shared__ Sums found[WARPS][TIMES][LANES];
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int together = count > 4 ? 8 : count > 2 ? 4 : 2, mine = warp % together;
    const int first = count > 8 ? mine * count / 8 : mine, stop = count > 8 ? (mine + 1) * count / 8 : min(mine + 1, count);
    const long long size = rows * columns, all = size * batch, bands = (rows + 15) / 16, strips = (columns + 2 * EACH - 1) / (2 * EACH);
    const bool contiguous = column_c == 1 && row_c == columns && (batch == 1 || next_c == size);
    const long long pieces = ACROSS ? bands * strips * batch : (all + LANES * EACH - 1) / (LANES * EACH);  // each for a warp
    auto place_of = [&](long long piece) {
        const long long z = ACROSS ? piece / (bands * strips) : batch > 1 ? (piece * LANES + lane) * EACH / size : 0;
        const long long at = ACROSS ? piece - z * bands * strips : (piece * LANES + lane) * EACH - z * size;
        if (ACROSS) return Place { z, at % bands * 16 + lane % 16, (at / bands * 2 + lane / 16) * EACH };
        const long long row = contiguous ? 0 : at / columns;  // as one row
        return Place { z, row, at - row * columns };
    };
    auto is_in = [&](long long piece, const Place& at) {
        return piece < pieces && (ACROSS ? at.row < rows && at.column < columns : (piece * LANES + lane) * EACH < all);
    };
    constexpr int OF_BLOCK = WARPS * TIMES;
    for (long long start = blockIdx.x * (OF_BLOCK / together); start < pieces; start += gridDim.x * (OF_BLOCK / together)) {
        const long long piece = start + warp / together * TIMES;
        const Sum* from[TIMES];
        Sums sums[TIMES] = {};
        #pragma unroll
        for (int t = 0; t < TIMES; t++) {
            const Place at = place_of(piece + t);
            from[t] = is_in(piece + t, at) ? parts + at.z * count * size + at.row * columns + at.column : nullptr;
        }
        #pragma unroll 4
        for (int p = first; p < stop; p++)
            #pragma unroll
            for (int t = 0; t < TIMES; t++) {
                if (!from[t]) continue;
                const Sums next = *(const Sums*)(from[t] + p * size);
                #pragma unroll
                for (int i = 0; i < EACH; i++) sums[t].of[i] += next.of[i];
            }
        #pragma unroll
        for (int t = 0; t < TIMES; t++) found[warp][t][lane] = sums[t];
        __syncthreads();
        // Each of these warps adds up what all have found for some of the pieces.
        #pragma unroll
        for (int t = 0; t < TIMES; t++) {
            if (t % together != mine) continue;
            Sums total = found[warp - mine][t][lane];
            for (int w = 1; w < together; w++)
                #pragma unroll
                for (int i = 0; i < EACH; i++) total.of[i] += found[warp - mine + w][t][lane].of[i];
            const Place at = place_of(piece + t);
            if (!is_in(piece + t, at)) continue;
            Out* to = c + at.z * next_c + at.row * row_c + at.column * column_c;
            Outs out;
            #pragma unroll
            for (int i = 0; i < EACH; i++) out.of[i] = rounded(total.of[i]);
            if (column_c == 1 && (unsigned long long)to % sizeof(Outs) == 0) *(Outs*)to = out;
            else
                #pragma unroll
                for (int i = 0; i < EACH; i++) to[i * column_c] = out.of[i];
        }
        __syncthreads();
    }
}

#define ADD(NAME, EACH, TIMES, ACROSS)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(LANES * WARPS) NAME(const Sum* parts, Out* c, long long rows, long long columns,     \
                                                                     long long row_c, long long column_c, long long next_c, int count, \
                                                                     int batch)                                                        \
    {                                                                                                                                  \
        add<EACH, TIMES, ACROSS>(parts, c, rows, columns, row_c, column_c, next_c, count, batch);                                      \
    }
ADD(add_parts, WHOLE, 1, false)
ADD(add_many_parts, WHOLE, 4, false)
ADD(add_parts_across, WHOLE, 1, true)
ADD(add_many_parts_across, WHOLE, 4, true)
ADD(add_single_parts, 1, 4, false)
