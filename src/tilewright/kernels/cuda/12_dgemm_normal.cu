/*
idea = "A block computes a W×H tile of C over all of k with 2·W·H·k operations and W·H + W·k + k·H accesses, so square tiles need the fewest accesses for an operation."
parent = "cuda/register_rows"
row = "S3.1, S3.2"
block = ["H", "W // ROWS"]
grid = ["cdiv(m, W) * cdiv(n, H)"]
dtypes = ["float64"]
capability = "6.0"
constraints = ["ROWS <= W", "H * W // ROWS <= 1024", "H * W // ROWS >= 32", "W * R % (H * W // ROWS) == 0", "R * H % (H * W // ROWS) == 0", "8 * (W * R + R * H) <= 49152"]
notes = ["The paper's card had 16,384 bytes of shared memory and as many registers: 8·(W·R + R·H) < 16384, 2·W·H <= 16384."]
tile = ["H", "W"]

[formulas]
global_load_sectors = "m * n * k // 4 // H + m * n * k // 4 // W"

[params]
W = { default = 32, values = [16, 32, 64] }
H = { default = 64, values = [32, 64, 128] }
R = { default = 16, values = [8, 16, 32] }
ROWS = { default = 4, values = [1, 2, 4, 8, 16] }
*/

constexpr int APART = W / ROWS;       // the distance of a thread's rows: 32/4 = 8
constexpr int THREADS = H * APART;    // 64·8 = 512

// The compiler may use no more registers than a block of this size can have.
extern "C" __global__ void __launch_bounds__(THREADS)
dgemm_normal(const double* a, const double* b, double* c, int m, int n, int k)
{
    __shared__ double a_tile[W][R];  // 32·16 doubles: 4 KiB
    __shared__ double b_tile[R][H];  // 16·64 doubles: 8 KiB
    const int x = threadIdx.x, y = threadIdx.y, thread = y * H + x;

    const int across = (n - 1) / H + 1;
    const unsigned top = blockIdx.x / across * W, left = blockIdx.x % across * H;
    double sum[ROWS] = {};

    for (unsigned p = 0; p < k; p += R) {
        // 512 threads fetch 512 elements of A, one each, and 1024 of B. Beyond the edge they are zero.
        #pragma unroll
        for (int e = 0; e < W * R; e += THREADS) {
            const int row = (e + thread) / R, i = (e + thread) % R;
            a_tile[row][i] = top + row < m && p + i < k ? a[(size_t)(top + row) * k + p + i] : 0;
        }
        #pragma unroll
        for (int e = 0; e < R * H; e += THREADS) {
            const int i = (e + thread) / H, col = (e + thread) % H;
            b_tile[i][col] = p + i < k && left + col < n ? b[(size_t)(p + i) * n + left + col] : 0;
        }
        __syncthreads();  // the tiles are complete before any thread reads them

        // Every operation takes an operand from shared memory: 5 reads of 8 bytes for 4 multiply-adds. Unrolled by 4 only: more
        // steps at a time do not fit the 64 registers a thread with which two blocks share a multiprocessor.
        #pragma unroll 4
        for (int i = 0; i < R; i++) {
            const double of_b = b_tile[i][x];
            #pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r] += a_tile[y + r * APART][i] * of_b;
        }
        __syncthreads();  // all threads have read the tiles before the next ones overwrite them
    }

    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const unsigned row = top + y + r * APART, col = left + x;
        if (row < m && col < n) c[(size_t)row * n + col] = sum[r];
    }
}
