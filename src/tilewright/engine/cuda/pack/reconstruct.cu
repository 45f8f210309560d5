// float64 numbers from the residues that ``residues_hopper.cu`` has left (see ``residues.cuh``). With the residues t of x, of which B
// carries the inverses of the other moduli, x = Σ t · (P / p) - q · P, where P is the product of all moduli. All sums are whole
// numbers in three limbs and exact, so x is; it is rounded once, and scaled.
#include "../launches.cuh"
#include "../residues.cuh"

constexpr int THREADS = 256, TOGETHER = THREADS / 128;  // chunks of a block

struct Call {
    long long row_c;  // elements to the next row of C
    int m, n, down, across;  // tiles
};

__device__ __forceinline__ double power_of_two(int e)  // 2^e, a normal number
{
    return __longlong_as_double((long long)(e + 1023) << 52);
}

// v · 2^e, rounded once. No v that is not zero is below 1 or above 2^120; below 2^-1300 the result is zero in any case.
__device__ __forceinline__ double scaled(double v, int e)
{
    e = max(e, -1300);
    return v * power_of_two(e / 2) * power_of_two(e - e / 2);
}

struct Sum { double of[3]; };

constexpr double LIMB = 1ull << LIMB_BITS;

template <int I>
__device__ __forceinline__ void add(Sum& sum, const uint4 (&residues)[MODULI], int number)
{
    constexpr Limbs others = product_of_moduli(I);
    constexpr double limbs[3] = { (double)others.of[0], others.of[1] * LIMB, others.of[2] * LIMB * LIMB };
    const uint4& r = residues[I];
    const unsigned word = number < 4 ? r.x : number < 8 ? r.y : number < 12 ? r.z : r.w;
    const unsigned t = __byte_perm(word, 0, 0x4440 + number % 4);
    const double value = __dadd_rn(__hiloint2double(0x43300000, t), -4503599627370496.0);  // 2^52
    #pragma unroll
    for (int l = 0; l < 3; l++) sum.of[l] = __fma_rn(value, limbs[l], sum.of[l]);
    if constexpr (I + 1 < MODULI) add<I + 1>(sum, residues, number);
}

__device__ __forceinline__ double reconstructed(const uint4 (&residues)[MODULI], int number)
{
    constexpr Limbs all = product_of_moduli(-1);
    constexpr double limbs[3] = { (double)all.of[0], all.of[1] * LIMB, all.of[2] * LIMB * LIMB };
    constexpr double INVERSE = 1 / (limbs[0] + limbs[1] + limbs[2]);
    Sum sum = {};
    add<0>(sum, residues, number);
    const double most = limbs[2] > LIMB * LIMB * 4294967296 ? sum.of[2] : sum.of[0] + sum.of[1] + sum.of[2];
    const double q = rint(most * INVERSE);
    #pragma unroll
    for (int l = 0; l < 3; l++) sum.of[l] = __fma_rn(-q, limbs[l], sum.of[l]);
    // The two larger ones, and what their sum loses.
    const double s = __dadd_rn(sum.of[2], sum.of[1]), part = __dadd_rn(s, -sum.of[2]);
    const double lost = __dadd_rn(__dadd_rn(sum.of[2], -__dadd_rn(s, -part)), __dadd_rn(sum.of[1], -part));
    return __dadd_rn(s, __dadd_rn(lost, sum.of[0]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
reconstruct(const unsigned char* residues, double* c, const Line* of_a, const Line* of_b, const int* flags,
            const __grid_constant__ Call call)
{
    let_next_launch_begin();
    wait_for_launch_before();
    constexpr int CHUNKS = WIDTH / CHUNK_COLUMNS;
    const int at = blockIdx.x * TOGETHER + threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
    const int chunk = at % CHUNKS, half = at / CHUNKS % 2, tile = at / CHUNKS / 2;
    const int top = tile / call.across * TILE_ROWS + half * 64, left = tile % call.across * WIDTH + chunk * CHUNK_COLUMNS;
    if (top >= call.m || left >= call.n) return;
    if (flags[top / FLAGGED_ROWS * ((call.n - 1) / FLAGGED_COLUMNS + 1) + left / FLAGGED_COLUMNS]) return;
    const long long plane = (long long)call.down * call.across * (TILE_ROWS * WIDTH);
    uint4 of[MODULI];
    #pragma unroll
    for (int i = 0; i < MODULI; i++) of[i] = *(const uint4*)(residues + i * plane + (long long)at * CHUNK_BYTES + thread * 16);
    const int row = top + thread / 32 * 16 + lane / 4, col = left + lane % 4 * 2;
    const int upper = row < call.m ? of_a[row].shift : 0, lower = row + 8 < call.m ? of_a[row + 8].shift : 0;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        const int column = col + j * 8;
        if (column >= call.n) continue;
        const int of_first = of_b[column].shift, of_second = column + 1 < call.n ? of_b[column + 1].shift : 0;
        #pragma unroll
        for (int l = 0; l < 2; l++) {
            const double x = scaled(reconstructed(of, j * 4 + l * 2), -(l ? lower : upper) - of_first);
            const double y = scaled(reconstructed(of, j * 4 + l * 2 + 1), -(l ? lower : upper) - of_second);
            if (row + l * 8 >= call.m) continue;
            double* to = c + (row + l * 8) * call.row_c + column;
            if (STORE_PAIRS) *(double2*)to = make_double2(x, y);  // then n is even
            else {
                to[0] = x;
                if (column + 1 < call.n) to[1] = y;
            }
        }
    }
}
