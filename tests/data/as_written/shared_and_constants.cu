// explain smooth: --grid 2 --block 64 --shared 264 --constant taps:float32:3:arange --arg x:float32:130 --arg out:float32:128
// explain smooth: --expect "out = 1 * x[1:129] + 2 * x[2:]"
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define DEVICE_INLINE __device__ __forceinline__
#define BINDING(name) \
    torch::Tensor name##_binding(torch::Tensor x) { return x; }

const int TAPS = 3;
__constant__ float taps[TAPS];

DEVICE_INLINE float weighted(const float* row, int i)
{
    float sum = 0;
    for (int tap = 0; tap < TAPS; tap++) sum += taps[tap] * row[i + tap];
    return sum;
}

__global__ void smooth(const float* x, float* out)
{
    extern __shared__ float row[];
    const float* mine = x + blockIdx.x * blockDim.x;
    row[threadIdx.x] = mine[threadIdx.x];
    if (threadIdx.x < 2) row[blockDim.x + threadIdx.x] = mine[blockDim.x + threadIdx.x];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = weighted(row, threadIdx.x);
}

BINDING(smooth)

torch::Tensor smooth_forward(torch::Tensor x)
{
    auto out = torch::empty_like(x);
    smooth<<<2, 64, 66 * sizeof(float), at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), out.data_ptr<float>());
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("smooth", &smooth_forward); }
