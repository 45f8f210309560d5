// Finishes products: C = activation(alpha · scale_a · scale_b · S + beta · C + bias), rounded once, for sums S and C of any strides.
// x is the way along which elements of C follow each other: a warp takes 128 of them, and a block as many at eight places of y.
#include "../launches.cuh"
#include "../types.cuh"

#if SUM == 0
#error "SUM names a dtype that types.cuh does not define"
#elif SUM == FLOAT64
typedef double Wide;
typedef double Sum;
#elif SUM == INT32
typedef float Wide;
typedef int Sum;
#else
typedef float Wide;
typedef float Sum;
#endif

#include "../finish.cuh"

// Strides in elements; along the axes of a batch `from_next` of S, `next` of C. Scales that all elements share have the step 0.
struct Finish {
    long long from_x, from_y, to_x, to_y, from_next[AXES], next[AXES], bias_step, scale_a_step, scale_b_step;
    double alpha, beta;
    unsigned x, y, lengths[AXES], products, scales;
};

// ACROSS: x runs along the columns of C. `scales`: rows of C for which there are scales of A; those of a batch that was merged repeat.
extern "C" __global__ void __launch_bounds__(256)
finish(const Sum* sums, Number<OUT>::Bits* c, const Number<BIAS>::Bits* bias, const float* scale_a, const float* scale_b,
       const __grid_constant__ Finish f)
{
    wait_for_launch_before();
    const unsigned lane = threadIdx.x % 32, wide = (f.x - 1) / 128 + 1, high = (f.y - 1) / 8 + 1;
    const unsigned of_product = wide * high, count = of_product * f.products;
    for (unsigned tile = blockIdx.x; tile < count; tile += gridDim.x) {
        unsigned z = f.products > 1 ? tile / of_product : 0;
        const unsigned place = tile - z * of_product, band = place / wide, y = band * 8 + threadIdx.x / 32;
        if (y >= f.y) continue;
        long long from = 0, to = 0;
        if (f.products > 1)
            #pragma unroll
            for (int i = AXES - 1; i >= 0; i--) {
                const unsigned next = z / f.lengths[i], at = z - next * f.lengths[i];
                from += at * f.from_next[i];
                to += at * f.next[i];
                z = next;
            }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned x = (place - band * wide) * 128 + i * 32 + lane;
            if (x >= f.x) break;
            const unsigned row = ACROSS ? y : x, column = ACROSS ? x : y;
            Number<OUT>::Bits& result = c[to + x * f.to_x + y * f.to_y];
            Wide value = (Wide)sums[from + x * f.from_x + y * f.from_y] * (Wide)f.alpha;
            if (SCALED_A) value *= scale_a[(row < f.scales ? row : row % f.scales) * f.scale_a_step];
            if (SCALED_B) value *= scale_b[column * f.scale_b_step];
            if (ADDS) value += (Wide)f.beta * Number<OUT>::wide(result);
            if (BIASED) value += Number<BIAS>::wide(bias[column * f.bias_step]);
            result = Number<OUT>::rounded(activated(value));
        }
    }
}
