// explain: --grid 1 --block 64 --arg x:int32:64:arange --arg y:int32:64 --expect "y = x * x + 1"
#include "with_host_code.cuh"

__global__ void squares(const int* x, int* y)
{
    y[threadIdx.x] = plus_one(square(x[threadIdx.x]));
}
