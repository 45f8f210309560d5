// explain sums<float,128>: --grid 3 --block 128 --arg x:float32:3x200 --arg sums:float32:3 --arg n=200 --expect "sums = x.sum(1)"
#include <cassert>
#include <cooperative_groups.h>
#include <cstdio>
#include <map>
#include <thrust/device_vector.h>

template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS) sums(const T* __restrict__ x, T* __restrict__ sums, int n)
{
    __shared__ T parts[THREADS];
    T sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) sum += x[blockIdx.x * n + i];
    parts[threadIdx.x] = sum;
    __syncthreads();
#pragma unroll
    for (int half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}

template <int THREADS>
static void launch(const float* x, float* y, int rows, int n)
{
    static std::map<int, const char*> names = {{128, "a }"}};
    sums<float, THREADS><<<rows, THREADS>>>(x, y, n);
    printf("%s\n", names[THREADS]);
}

float first(const thrust::device_vector<float>& x) { return x[0]; }

template void launch<128>(const float*, float*, int, int);
