// The types that macros such as TYPE and OUT name, as numbers.
#pragma once

#define BFLOAT16 0
#define FLOAT16 1
#define FLOAT32 2
#define FLOAT64 3
#define INT8 4
#define INT32 5
#define FLOAT8_E4M3FN 6
#define FLOAT8_E5M2 7
#define COMPLEX64 8
#define COMPLEX128 9
#define TF32 10         // float32 rounded to 10 bits of mantissa
#define FLOAT8 11       // float8 of any kind; TYPE_A and TYPE_B name those of A and of B
#define FLOAT8_FAST 12  // the same, summed by tensor cores alone
