// The tiles of a symmetric C.
#pragma once

#ifndef TRIANGLE  // 1 where C is symmetric: only tiles that reach its diagonal, or are below it, are computed
#define TRIANGLE 0
#endif

// The largest r for which r · (r + 1) / 2 is at most this number. A root is rounded, so it may be wrong by one.
__device__ __forceinline__ int root_of_triangle(int number)
{
    const int r = (int)((sqrtf(8.0f * number + 1) - 1) / 2);
    return r + ((r + 1) * (r + 2) / 2 <= number) - (r * (r + 1) / 2 > number);
}
