#pragma once
// In place of PyTorch's headers, which are for host code: the types of theirs that kernels use.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
namespace c10 {
using Half = __half;
using BFloat16 = __nv_bfloat16;
}
namespace at {
using c10::BFloat16;
using c10::Half;
}
