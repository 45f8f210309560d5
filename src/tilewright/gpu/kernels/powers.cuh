// Multiplications by powers of two, which scale the lines of split operands and their products.
#pragma once

__device__ __forceinline__ float power_of_two(int e)  // 2^e, a normal number
{
    return __int_as_float(e + 127 << 23);
}

// v · 2^e, rounded once where the result is a normal number. None of v is above 2^62; below 2^-250 the result is zero in any case.
__device__ __forceinline__ float scaled(float v, int e)
{
    e = max(e, -250);
    return v * power_of_two(e / 2) * power_of_two(e - e / 2);
}
