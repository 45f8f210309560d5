// The types that macros such as TYPE and OUT name, as numbers. They begin at 1: of a name that is not defined the preprocessor makes 0.
#pragma once

#define BFLOAT16 1
#define FLOAT16 2
#define FLOAT32 3
#define FLOAT64 4
#define INT8 5
#define INT32 6
#define FLOAT8_E4M3FN 7
#define FLOAT8_E5M2 8
#define COMPLEX64 9
#define COMPLEX128 10
#define TF32 11         // float32 rounded to 10 bits of mantissa
#define FLOAT8 12       // float8 of any kind; TYPE_A and TYPE_B name those of A and of B
#define FLOAT8_FAST 13  // the same, summed by tensor cores alone

#if defined(TYPE) && !TYPE || defined(TYPE_A) && !TYPE_A || defined(TYPE_B) && !TYPE_B || defined(OUT) && !OUT || defined(BIAS) && !BIAS
#error "TYPE, TYPE_A, TYPE_B, OUT or BIAS names a dtype that types.cuh does not define"
#endif
