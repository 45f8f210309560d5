// What epilogues compute of a number, in the type Wide: how it is read, activated and rounded.
#pragma once
#include "types.cuh"

#define NONE 0
#define RELU 1
#define GELU 2
#define SILU 3

template <int DTYPE> struct Number;  // how a number of this type lies in memory, widened and rounded to nearest, ties to even
template <> struct Number<FLOAT64> {
    typedef double Bits;
    static __device__ Wide wide(Bits x) { return (Wide)x; }
    static __device__ Bits rounded(Wide x) { return x; }
};
template <> struct Number<FLOAT32> {
    typedef float Bits;
    static __device__ Wide wide(Bits x) { return x; }
    static __device__ Bits rounded(Wide x) { return (Bits)x; }
};
// float64 to float32 toward zero, with the last bit set if anything was lost: rounding that once more gives what one rounding gives.
__device__ float to_odd(double x)
{
    const float y = __double2float_rz(x);
    return (double)y != x && x == x ? __uint_as_float(__float_as_uint(y) | 1) : y;
}
__device__ float to_odd(float x) { return x; }
template <> struct Number<BFLOAT16> {
    typedef unsigned short Bits;
    static __device__ Wide wide(Bits x) { return __uint_as_float((unsigned)x << 16); }
    static __device__ Bits rounded(Wide x)
    {
        unsigned both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(to_odd(x)));
        return (Bits)both;
    }
};
template <> struct Number<FLOAT16> {
    typedef unsigned short Bits;
    static __device__ Wide wide(Bits x)
    {
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
        return y;
    }
    static __device__ Bits rounded(Wide x)
    {
        Bits y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(to_odd(x)));
        return y;
    }
};

// The error function of gelu: of float64 as it is, of float32 by the approximation 7.1.26 of Abramowitz and Stegun, whose error is at
// most 1.5e-7: Φ(x), for the sake of its small values from erfc of |x|.
__device__ __forceinline__ double normal(double x) { return 0.5 * (1 + erf(x * 0.70710678118654752440)); }
__device__ __forceinline__ float normal(float x)
{
    const float z = fabsf(x) * 0.70710678f, t = __fdividef(1, 1 + 0.3275911f * z);
    const float sum = t * (0.5f * 0.254829592f + t * (0.5f * -0.284496736f + t * (0.5f * 1.421413741f +
                      t * (0.5f * -1.453152027f + t * (0.5f * 1.061405429f)))));
    const float tail = sum * __expf(-z * z);
    return x < 0 ? tail : 1 - tail;
}

__device__ __forceinline__ double quotient(double x, double y) { return x / y; }
__device__ __forceinline__ float quotient(float x, float y) { return __fdividef(x, y); }  // within two units in the last place

__device__ __forceinline__ Wide activated(Wide x)
{
    if (ACTIVATION == RELU) return x < 0 ? 0 : x;  // NaN stays
    if (ACTIVATION == GELU) return x * normal(x);
    if (ACTIVATION == SILU) return quotient(x, 1 + exp(-x));
    return x;
}
