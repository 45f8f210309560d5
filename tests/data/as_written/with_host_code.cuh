#pragma once
#include <stdexcept>

inline void check(cudaError_t error)
{
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

constexpr int square(int x) { return x * x; }

__device__ int plus_one(int x) { return x + 1; }
