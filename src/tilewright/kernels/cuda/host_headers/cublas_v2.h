#pragma once
// For host code; kernels use the types that it brings.
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
