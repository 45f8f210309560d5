// Multiply-adds alone, in independent chains, to measure a GPU's peak. The macro DTYPE_FLOAT64 selects float64.

#ifdef DTYPE_FLOAT64
typedef double number;
#else
typedef float number;
#endif

constexpr int CHAINS = 8;  // a multiply-add takes 4 cycles (8 in float64); a sub-partition has up to 16 warps to choose from

// 2·8·32·rounds operations a thread. x and y are arguments, or the compiler would compute the sum.
extern "C" __global__ void __launch_bounds__(256) multiply_add(number* out, int rounds, number x, number y)
{
    number sums[CHAINS];
    for (int i = 0; i < CHAINS; i++) sums[i] = threadIdx.x + i;
    for (int round = 0; round < rounds; round++)
        #pragma unroll
        for (int step = 0; step < 32; step++)  // 256 in a row, so that the loop's own instructions do not count
            #pragma unroll
            for (int i = 0; i < CHAINS; i++) sums[i] = fma(sums[i], x, y);
    number total = 0;
    for (int i = 0; i < CHAINS; i++) total += sums[i];
    if (total == y) *out = total;  // never, but the compiler cannot know
}

#if defined(DTYPE_FLOAT64) && __CUDA_ARCH__ >= 800
// The same by tensor cores: 8·8·rounds matrix instructions a warp, of m·n·k multiply-adds each (16·8·16; before 9.0 8·8·4).
extern "C" __global__ void __launch_bounds__(256) multiply_add_matrix(number* out, int rounds, number x, number y)
{
    double sums[CHAINS][4] = {};
    double a[8], b[4];  // in registers of their own, which the instruction needs to be consecutive
    for (int i = 0; i < 8; i++) a[i] = x + threadIdx.x + i;
    for (int i = 0; i < 4; i++) b[i] = y - threadIdx.x - i;
    for (int round = 0; round < rounds; round++)
        #pragma unroll
        for (int step = 0; step < 8; step++)
            #pragma unroll
            for (int i = 0; i < CHAINS; i++) {
#if __CUDA_ARCH__ >= 900
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 "
                             "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                             : "+d"(sums[i][0]), "+d"(sums[i][1]), "+d"(sums[i][2]), "+d"(sums[i][3])
                             : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
                               "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
                asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                             : "+d"(sums[i][0]), "+d"(sums[i][1]) : "d"(a[0]), "d"(b[0]));
#endif
            }
    double total = 0;
    for (int i = 0; i < CHAINS; i++) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    if (total == -1) *out = total;
}
#endif
