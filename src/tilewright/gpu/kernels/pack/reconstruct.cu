// float64 or complex128 numbers from the residues that ``residues_hopper.cu`` or ``residues_mma.cu`` have left (see
// ``residues.cuh``). With the residues t of x, of which B carries the inverses of the other moduli, x = Σ t · (P / p) - q · P,
// where P is the product of all moduli. All sums are whole numbers in three limbs and exact, so x is; it is rounded once, and
// scaled.
//
// A complex number x + i·y has the residues u = x + s·y and v = x - s·y. B carries one half, so x = u + v and y = -s · (u - v).
#include "../launches.cuh"
#include "../residues.cuh"
#include "../triangle.cuh"

#ifndef GRAM
#define GRAM 0
#endif

// Threads of a block, and of a chunk; chunks of a block. Words of four residues that a thread has of a plane: of complex
// numbers two threads have the halves of 16 bytes.
constexpr int THREADS = 256, IN_CHUNK = 128 * EACH, TOGETHER = THREADS / IN_CHUNK, WORDS = 4 / EACH;
#if COMPLEX
typedef uint2 Words;
#else
typedef uint4 Words;
#endif

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
struct __align__(16) Residues { unsigned of[MODULI * EACH][WORDS]; };

constexpr double LIMB = 1ull << LIMB_BITS;

// PART: of complex numbers 0 for real parts and 1 for imaginary ones. If B has the same residues as A (GRAM), it carries no inverses.
template <int I, int PART>
__device__ __forceinline__ void add(Sum& sum, const Residues& residues, int number)
{
    constexpr int p = MODULUS[I], factor = PART ? p - root_of_minus_one(p) : GRAM ? inverse_of_others(I) : 1, BIAS = PART ? 256 : 0;
    constexpr Limbs others = product_of_moduli(I, factor);
    constexpr double limbs[3] = { (double)others.of[0], others.of[1] * LIMB, others.of[2] * LIMB * LIMB };
    unsigned t = __byte_perm(residues.of[I * EACH][number / 4], 0, 0x4440 + number % 4) + BIAS;
    if (COMPLEX) {
        const unsigned v = __byte_perm(residues.of[I * EACH + EACH - 1][number / 4], 0, 0x4440 + number % 4);
        t = PART ? t - v : t + v;
    }
    const double value = __dadd_rn(__hiloint2double(0x43300000, t), -4503599627370496.0 - BIAS);  // 2^52
    #pragma unroll
    for (int l = 0; l < 3; l++) sum.of[l] = __fma_rn(value, limbs[l], sum.of[l]);
    if constexpr (I + 1 < MODULI) add<I + 1, PART>(sum, residues, number);
}

template <int PART>
__device__ __forceinline__ double reconstructed(const Residues& residues, int number)
{
    constexpr Limbs all = product_of_moduli(-1);
    constexpr double limbs[3] = { (double)all.of[0], all.of[1] * LIMB, all.of[2] * LIMB * LIMB };
    constexpr double INVERSE = 1 / (limbs[0] + limbs[1] + limbs[2]);
    Sum sum = {};
    add<0, PART>(sum, residues, number);
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
    const int at = blockIdx.x * TOGETHER + threadIdx.x / IN_CHUNK, piece = threadIdx.x % IN_CHUNK;
    const int thread = piece / EACH, first = piece % EACH * WORDS, lane = thread % 32;
    const int chunk = at % CHUNKS, half = at / CHUNKS % 2, tile = at / CHUNKS / 2;
    const int top = tile / call.across * TILE_ROWS + half * 64, left = tile % call.across * WIDTH + chunk * CHUNK_COLUMNS;
    if (top >= call.m || left >= call.n || (TRIANGLE && left >= top + 64)) return;
    if (flags[top / FLAGGED_ROWS * ((call.n - 1) / FLAGGED_COLUMNS + 1) + left / FLAGGED_COLUMNS]) return;
    const long long plane = (long long)call.down * call.across * (TILE_ROWS * WIDTH);
    Residues of;
    #pragma unroll
    for (int i = 0; i < MODULI * EACH; i++)
        *(Words*)of.of[i] = *(const Words*)(residues + i * plane + (long long)at * CHUNK_BYTES + piece * sizeof(Words));
    const int row = top + thread / 32 * 16 + lane / 4, col = left + lane % 4 * 2 + first * 8;
    const int upper = row < call.m ? of_a[row].shift : 0, lower = row + 8 < call.m ? of_a[row + 8].shift : 0;
    #pragma unroll
    for (int j = 0; j < WORDS; j++) {
        const int column = col + j * 8;
        if (column >= call.n) continue;
        const int of_first = of_b[column].shift, of_second = column + 1 < call.n ? of_b[column + 1].shift : 0;
        #pragma unroll
        for (int l = 0; l < 2; l++) {
            double x[2 * EACH];
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                const int number = j * 4 + l * 2 + i, e = -(l ? lower : upper) - (i ? of_second : of_first);
                x[i * EACH] = scaled(reconstructed<0>(of, number), e);
                if constexpr (COMPLEX) x[i * EACH + 1] = scaled(reconstructed<1>(of, number), e);
            }
            if (row + l * 8 >= call.m) continue;
            double* to = c + ((row + l * 8) * call.row_c + column) * EACH;
            #pragma unroll
            for (int i = 0; i < 2 * EACH; i++) {
                if (column + i / EACH >= call.n) break;
                if (!STORE_PAIRS) to[i] = x[i];
                else if (i % 2 == 0) *(double2*)(to + i) = make_double2(x[i], x[i + 1]);  // of real numbers n is even
            }
        }
    }
}
