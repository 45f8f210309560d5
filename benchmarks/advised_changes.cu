// Kernels before (CHANGED=0) and after (CHANGED=1) what the microscope advises. Each reads x and writes a sum of it to y.

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)

// A matrix is transposed by tiles of 32 × 32.
extern "C" __global__ void transpose(const float* x, float* y, int n)
{
    __shared__ float tile[32][32 + CHANGED];
    int i = threadIdx.x, j = threadIdx.y;
    tile[j][i] = x[(blockIdx.y * 32 + j) * n + blockIdx.x * 32 + i];
    __syncthreads();
    y[(blockIdx.x * 32 + j) * n + blockIdx.y * 32 + i] = tile[i][j];
}

// Columns of a tile are read many times.
extern "C" __global__ void columns(const float* x, float* y, int n)
{
    __shared__ float tile[32][32 + CHANGED];
    int i = threadIdx.x, j = threadIdx.y;
    tile[j][i] = x[THREAD % n + j];
    __syncthreads();
    float sum = 0;
    for (int r = 0; r < 256; r++)
        sum += tile[i][(j + r) % 32];
    y[blockIdx.x * 1024 + j * 32 + i] = sum;
}

// The same of a tile of 64 rows of 16 doubles.
extern "C" __global__ void double_columns(const double* x, double* y, int n)
{
    __shared__ double tile[32][16 + CHANGED];
    int i = threadIdx.x, j = threadIdx.y;
    if (i < 16)
        tile[j][i] = x[THREAD % n + j];
    __syncthreads();
    double sum = 0;
    for (int r = 0; r < 256; r++)
        sum += tile[i][(j + r) % 16];
    y[blockIdx.x * 1024 + j * 32 + i] = sum;
}

// Each thread adds up a row of 32 elements, or, if the matrix is stored transposed, a column.
extern "C" __global__ void rows(const float* x, float* y, int n)
{
    float sum = 0;
    for (int k = 0; k < 32; k++)
        sum += CHANGED ? x[k * n + THREAD] : x[THREAD * 32 + k];
    y[THREAD] = sum;
}

// The first member of structures of 16 bytes, or an array of these members, again and again.
extern "C" __global__ void members(const float* x, float* y, int n)
{
    float sum = 0;
    for (int r = 0; r < 64; r++)
        sum += x[(CHANGED ? 1 : 4) * ((THREAD + 256 * r) % n)];
    y[THREAD] = sum;
}

// Each thread adds up four neighbours.
extern "C" __global__ void quads(const float* x, float* y, int n)
{
    float sum = 0;
    for (int r = 0; r < 16; r++) {
        const float* at = x + 4 * ((THREAD + 256 * r) % n);
#if CHANGED
        float4 q = *(const float4*)at;
        sum += q.x + q.y + q.z + q.w;
#else
        sum += at[0] + at[1] + at[2] + at[3];
#endif
    }
    y[THREAD] = sum;
}

// Elements of one byte, one by one or four at once.
extern "C" __global__ void bytes(const unsigned char* x, float* y, int n)
{
    unsigned sum = 0;
#if CHANGED
    for (int r = 0; r < 16; r++) {
        uchar4 q = ((const uchar4*)x)[(THREAD + 256 * r) % (n / 4)];
        sum += q.x + q.y + q.z + q.w;
    }
#else
    for (int r = 0; r < 64; r++)
        sum += x[(THREAD + 256 * r) % n];
#endif
    y[THREAD] = sum;
}

// A histogram of 16 bins in an array of the thread, or in registers.
extern "C" __global__ void bins(const unsigned char* x, float* y, int n)
{
    float bin[16];
    for (int b = 0; b < 16; b++)
        bin[b] = 0;
    for (int r = 0; r < 64; r++) {
        int which = x[(THREAD + 256 * r) % n] % 16;
#if CHANGED
#pragma unroll
        for (int b = 0; b < 16; b++)
            bin[b] += b == which;
#else
        bin[which] += 1;
#endif
    }
    float sum = 0;
#pragma unroll
    for (int b = 0; b < 16; b++)
        sum += b * bin[b];
    y[THREAD] = sum;
}
