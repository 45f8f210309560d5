/*
idea = "A thread computes a whole column of the tile of C: no other thread needs its elements of B, so it loads them into registers, and only A is in shared memory."
parent = "cuda/dgemm_normal"
row = "S3.3, S3.4"
block = ["H"]
grid = ["cdiv(m, W) * cdiv(n, H)"]
dtypes = ["float64"]
capability = "6.0"
constraints = ["W * R % H == 0"]
tile = ["H", "W"]

[formulas]
global_load_sectors = "m * n * k // 4 // H + m * n * k // 4 // W"

[params]
W = { default = 16, values = [8, 16, 32, 64] }
H = { default = 64, values = [32, 64, 128, 256] }
R = { default = 16, values = [8, 16, 32] }
*/

// The compiler may use no more registers than a block of this size can have.
extern "C" __global__ void __launch_bounds__(H)
dgemm_column(const double* a, const double* b, double* c, int m, int n, int k)
{
    // Transposed, and aligned to 16 bytes: in a step all threads read the same W elements, two by one instruction. Rows are 2
    // longer, or the 16 threads that store 16 steps of one row of A would access one bank.
    __shared__ __align__(16) double a_tile[R][W + 2];  // 16·18 doubles: 2.25 KiB
    const int x = threadIdx.x;

    const int across = (n - 1) / H + 1;
    const unsigned top = blockIdx.x / across * W, left = blockIdx.x % across * H, col = left + x;
    double sum[W] = {};  // 16 doubles: 32 registers

    for (unsigned p = 0; p < k; p += R) {
        #pragma unroll
        for (int e = 0; e < W * R; e += H) {
            const int row = (e + x) / R, i = (e + x) % R;
            a_tile[i][row] = top + row < m && p + i < k ? a[(size_t)(top + row) * k + p + i] : 0;
        }
        // Neighbouring threads have neighbouring columns: 32 consecutive doubles a warp. No other thread needs them: not shared.
        // All loads start before the first result is used: R loads under way at a time.
        double of_b[R];
        #pragma unroll
        for (int i = 0; i < R; i++) of_b[i] = p + i < k && col < n ? b[(size_t)(p + i) * n + col] : 0;
        __syncthreads();  // the tile of A is complete before any thread reads it

        // 16 multiply-adds of a step read 8 times from shared memory, the same address in all threads: one wavefront each.
        #pragma unroll
        for (int i = 0; i < R; i++)
            #pragma unroll
            for (int r = 0; r < W; r++) sum[r] += a_tile[i][r] * of_b[i];
        __syncthreads();  // all threads have read the tiles before the next ones overwrite them
    }

    #pragma unroll
    for (int r = 0; r < W; r++)
        if (top + r < m && col < n) c[(size_t)(top + r) * n + col] = sum[r];
}
