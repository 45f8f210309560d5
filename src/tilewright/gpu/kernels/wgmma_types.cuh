// The bytes and the wgmma of the types that TYPE, TYPE_A and TYPE_B name, for ``wgmma.cuh``.
#pragma once
#include "types.cuh"

#if TYPE == BFLOAT16 || TYPE == FLOAT16
#define SIZE 2
#define SHAPE_K "k16"
#define TAIL ", 1, 1, " TEXT(A_DOWN) ", " TEXT(B_ACROSS)
#elif TYPE == TF32
#define SIZE 4
#define SHAPE_K "k8"
#define TAIL ", 1, 1"
#else
#define SIZE 1
#define SHAPE_K "k32"
#define TAIL ", 1, 1"
#endif
#if TYPE == INT8
#define SUM int
#define LETTER "+r"
#undef TAIL
#define TAIL ""
#else
#define SUM float
#define LETTER "+f"
#endif
#if TYPE == BFLOAT16
#define TYPES ".f32.bf16.bf16"
#elif TYPE == FLOAT16
#define TYPES ".f32.f16.f16"
#elif TYPE == TF32
#define TYPES ".f32.tf32.tf32"
#elif TYPE == INT8
#define TYPES ".s32.s8.s8"
#elif TYPE_A == FLOAT8_E4M3FN && TYPE_B == FLOAT8_E4M3FN
#define TYPES ".f32.e4m3.e4m3"
#elif TYPE_A == FLOAT8_E4M3FN
#define TYPES ".f32.e4m3.e5m2"
#elif TYPE_B == FLOAT8_E4M3FN
#define TYPES ".f32.e5m2.e4m3"
#else
#define TYPES ".f32.e5m2.e5m2"
#endif
