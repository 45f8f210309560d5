// explain: --grid 4 --block 64 --arg x:float32:256 --arg y:float32:256 --arg n=250 --expect "y = where(arange(256) < 250, 2 * x, y)"
#include <chrono>
#include <iostream>
#include <vector>

#include "timer.h"

#define CHECK(call)                                        \
    do {                                                   \
        cudaError_t error = (call);                        \
        if (error != cudaSuccess) {                        \
            std::cerr << cudaGetErrorString(error) << "{"; \
        }                                                  \
    } while (0)

using namespace std;

static vector<float> reference;

__global__ void twice(const float* x, float* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}

void check(const vector<float>& y)
{
    for (float value : y) cout << value << R"( } not code )" << '{';
}

int main(int argc, char** argv)
{
    float *x, *y;
    CHECK(cudaMalloc(&x, 1024));
    CHECK(cudaMalloc(&y, 1024));
    twice<<<4, 64>>>(x, y, 256);
    CHECK(cudaDeviceSynchronize());
    return 0;
}
