// explain: --grid 2 --block 32 --arg x:float32:64 --arg least:float32:2 --arg most:int32:2 --expect "least = x.reshape(2, 32).min(1)" --expect "most = full(2, 2**31 - 1)"
#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <type_traits>

template <typename T>
__device__ T lowest(T a, T b)
{
    static_assert(std::is_same<T, float>::value, "");
    return std::min(a, b);
}

__global__ void minima(const float* x, float* least, int* most)
{
    uint lane = threadIdx.x;
    uint32_t i = blockIdx.x * warpSize + lane;
    float value = lane < 32 ? x[i] : INFINITY;
    for (uint offset = 16; offset; offset /= 2) value = lowest(value, __shfl_xor_sync(~0u, value, offset));
    value = fminf(value, std::numeric_limits<float>::max());
    if (lane == 0) least[blockIdx.x] = std::fmin(value, FLT_MAX), most[blockIdx.x] = INT_MAX;
}
