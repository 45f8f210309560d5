// Prepares float64 or complex128 matrices for products by int8 tensor cores (see ``residues.cuh``): one or two in a launch.
//
// A line is a row of A or a column of B. Its elements are multiplied by the largest power of two with which its 2-norm
// is at most the square root of `most`, and are rounded to whole numbers y: so sums of products are determined (see `Norm`).
// Of each y the residues are stored as int8, those of a line one after another: a plane for each modulus.
// Those of the second operand are multiplied by the inverse of the other moduli, which spares ``reconstruct.cu`` a multiplication.
// Of some steps of k another plane has the upper 7 bits of magnitudes: their product is a lower bound of |A||B|.
// A complex number is two of these, with one power of two for all of its line.
#include "../launches.cuh"
#include "../residues.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int LINES = 32 / EACH, STEP = 128, NEIGHBOURS = 2 / EACH;  // lines of a block; steps at once; elements in 16 bytes
#ifndef BLOCKS
#define BLOCKS 2  // of a multiprocessor
#endif
constexpr int FOUND = 1024 / EACH, AT_ONCE = 4;  // steps of k of a block that searches, and STEPs of one that rounds

struct Operand {
    long long line, step;                     // of the source: elements to the next line, and to the next of k
    long long sample, found, of_lines;        // bytes from the first plane to the magnitudes, to what is found, and to the Lines
    int lines, k, pitch, sample_pitch;        // bytes from one line of a plane to the next
    int parts, padded, finding, rounding;     // of k that are searched apart; lines with room for what is found; blocks
};
struct Call {
    Operand of[2];
    int every, flags;  // of STEPs of k, one in `every` is sampled; numbers that are set to zero
    double most;       // no line of whole numbers, before they are rounded, has a sum of squares above it
};

__device__ __forceinline__ double power_of_two(int e)  // 2^e, a normal number
{
    return __longlong_as_double((long long)(e + 1023) << 52);
}

// A complex number, or two neighbours, of k if ALONG, else of the lines. What lies outside is zero.
template <bool ALONG, bool VECTOR>
__device__ __forceinline__ double2 load(const double* x, const Operand& o, int line, int p)
{
    const int left = ALONG ? o.k - p : o.lines - line;
    if ((ALONG ? line >= o.lines : p >= o.k) || left <= 0) return make_double2(0, 0);
    const double* from = x + (line * o.line + p * o.step) * EACH;
    if (VECTOR && left >= NEIGHBOURS) return *(const double2*)from;
    if (COMPLEX) return make_double2(from[0], from[1]);
    return make_double2(from[0], left > 1 ? from[ALONG ? o.step : o.line] : 0);
}

// ---- the norm of each line, of each part of k ---------------------------------------------------------------------------
// Let P be the product of the moduli, and n the real numbers of a line, at most 65,536, or 131,072 of complex ones. A line y
// that is scaled has |y|² <= most, and its whole numbers have a norm of at most |y| + ½·√n, as each is rounded by ½ or less.
// `most` is such that the square of that is at most P/2 · (1 - 2^-15). So the sum x of products of two lines has
// 2·|x| <= P · (1 - 2^-15), and its residues determine it; the rest of P is for the rounding of x / P in ``reconstruct.cu``.

// No magnitude is 4·2^exponent or more, and the sum of squares is at most squares·4^exponent. With an infinity or a NaN the
// exponent is UNFIT_EXPONENT.
struct Norm {
    int exponent;
    float squares;
};
constexpr int LEAST_EXPONENT = -1023, UNFIT_EXPONENT = 1023;

__device__ __forceinline__ Norm sum_of(const Norm& x, const Norm& y)
{
    const int exponent = max(x.exponent, y.exponent);
    auto squares = [&](const Norm& of) {  // a factor of 2^-120 in place of a smaller one is none too few
        return __fmul_ru(of.squares, __int_as_float(127 + 2 * max(of.exponent - exponent, -60) << 23));
    };
    return { exponent, __fadd_ru(squares(x), squares(y)) };
}

// Each number is multiplied by a power of two, which loses at most what is below 2^-1022 where another one is 2 or more. So
// the sum of up to 32 squares, each rounded to nearest, is less than 2^-40 of it too small.
template <int COUNT>
__device__ __forceinline__ Norm norm_of(const double (&v)[COUNT])
{
    int most = 0;  // the upper half of the largest magnitude
    #pragma unroll
    for (int j = 0; j < COUNT; j++) most = max(most, __double2hiint(v[j]) & 0x7FFFFFFF);
    const int exponent = max(most >> 20, 1) - 1024;
    const double factor = power_of_two(-exponent);
    double sum = 0;
    #pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const double y = v[j] * factor;
        sum = __fma_rn(y, y, sum);
    }
    return { exponent, __double2float_ru(sum * (1 + 1.0 / (1ll << 40))) };
}

template <bool ALONG, bool VECTOR>
__device__ __forceinline__ void find(const double* x, unsigned char* planes, const Operand& o, int block)
{
    __shared__ Norm of_steps[THREADS * NEIGHBOURS / LINES][LINES];
    const int first = block / o.parts * LINES, part = block % o.parts, begin = part * FOUND;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Norm* found = (Norm*)(planes + o.found) + (long long)part * o.padded + first;
    constexpr int LOADS = 16;
    if (ALONG)
        #pragma unroll 1
        for (int i = warp; i < LINES; i += WARPS) {
            double v[2 * LOADS];
            static_assert(LOADS * 32 * NEIGHBOURS == FOUND, "a warp loads a part of a line at once");
            #pragma unroll
            for (int j = 0; j < LOADS; j++) {
                const double2 two = load<ALONG, VECTOR>(x, o, first + i, begin + (j * 32 + lane) * NEIGHBOURS);
                v[2 * j] = two.x, v[2 * j + 1] = two.y;
            }
            Norm norm = norm_of(v);
            #pragma unroll
            for (int distance = 16; distance; distance /= 2) {
                const int exponent = __shfl_xor_sync(~0u, norm.exponent, distance);
                norm = sum_of(norm, { exponent, __shfl_xor_sync(~0u, norm.squares, distance) });
            }
            if (lane == 0) found[i] = norm;
        }
    else {
        constexpr int ACROSS = LINES / NEIGHBOURS, STEPS = THREADS / ACROSS, PARTS = 2 / NEIGHBOURS;
        const int i = threadIdx.x % ACROSS * NEIGHBOURS, step = threadIdx.x / ACROSS;
        Norm norms[NEIGHBOURS];  // of two lines, or of a complex one
        #pragma unroll
        for (int l = 0; l < NEIGHBOURS; l++) norms[l] = { LEAST_EXPONENT, 0 };
        #pragma unroll 1
        for (int p = step; p < FOUND; p += STEPS * LOADS) {
            double v[NEIGHBOURS][LOADS * PARTS];
            #pragma unroll
            for (int j = 0; j < LOADS; j++) {
                const double2 two = load<ALONG, VECTOR>(x, o, first + i, begin + p + j * STEPS);
                v[0][j * PARTS] = two.x, v[NEIGHBOURS - 1][j * PARTS + PARTS - 1] = two.y;
            }
            #pragma unroll
            for (int l = 0; l < NEIGHBOURS; l++) norms[l] = sum_of(norms[l], norm_of(v[l]));
        }
        #pragma unroll
        for (int l = 0; l < NEIGHBOURS; l++) of_steps[step][i + l] = norms[l];
        __syncthreads();
        if (threadIdx.x < LINES) {
            Norm all = { LEAST_EXPONENT, 0 };
            for (int s = 0; s < STEPS; s++) all = sum_of(all, of_steps[s][threadIdx.x]);
            found[threadIdx.x] = all;
        }
    }
    if (part == 0 && threadIdx.x < LINES) ((Line*)(planes + o.of_lines))[first + threadIdx.x] = { 0, 0, 0, 0 };
}

extern "C" __global__ void __launch_bounds__(THREADS)
find_norms(const double* x, unsigned char* planes_x, const double* y, unsigned char* planes_y, int* flags,
           const __grid_constant__ Call call)
{
    let_next_launch_begin();
    wait_for_launch_before();
    const int block = blockIdx.x, other = block - call.of[0].finding;
    for (int i = block * THREADS + threadIdx.x; i < call.flags; i += gridDim.x * THREADS) flags[i] = 0;
    if (other < 0) find<ALONG_0, VECTOR_0>(x, planes_x, call.of[0], block);
    else find<ALONG_1, VECTOR_1>(y, planes_y, call.of[1], other);
}

// ---- the residues -----------------------------------------------------------------------------------------------------------

__device__ constexpr int centred(int value, int p)  // of the same residue, from -128 to 127
{
    return value > 127 ? value - p : value;
}

// Factors of bytes `first` and following of a whole number, as dp4a takes them.
__device__ constexpr int factors(int first, int bytes, int w, int p)
{
    unsigned all = 0;
    for (int i = 0; i < bytes; i++) all |= (unsigned)(centred(power_modulo(256, first + i, p) * w % p, p) & 255) << 8 * i;
    return (int)all;
}

__device__ __forceinline__ int sum_of_bytes(unsigned bytes, int factors, int sum)
{
    int result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(bytes), "r"(factors), "r"(sum));
    return result;
}

struct Whole { unsigned low[4], high[4]; };  // of four whole numbers y the 52 bits of y + 2^51

// `BEGIN` and a number that is W·y modulo P: the bytes of y + 2^51 are multiplied by factors.
template <int P, int W, int BEGIN>
__device__ __forceinline__ int multiplied(unsigned low, unsigned high)
{
    constexpr int least = factors(0, 4, W, P), most = factors(4, 3, W, P);
    constexpr int start = BEGIN + centred((P - power_modulo(2, 51, P)) % P * W % P, P);
    return sum_of_bytes(low, least, sum_of_bytes(high, most, start));
}

// The residue of a number below 2^20, in the lowest byte. `number` is the float 1.5·2^23 plus that number.
constexpr int BITS_OF_MAGIC = 0x4B400000;
template <int P>
__device__ __forceinline__ unsigned residue_of(int number)
{
    constexpr float MAGIC = 12582912, INVERSE = 1.0f / P;
    const float sum = __int_as_float(number);
    const float quotient = __fadd_rn(__fmaf_rn(__fadd_rn(sum, -MAGIC), INVERSE, MAGIC), -MAGIC);
    return __float_as_uint(__fmaf_rn(quotient, -(float)P, sum));
}

__device__ __forceinline__ unsigned lowest_bytes(const unsigned (&of)[4])
{
    return __byte_perm(__byte_perm(of[0], of[1], 0x0040), __byte_perm(of[2], of[3], 0x0040), 0x5410);
}

// Stores the residues of four elements for modulus I and those that follow. Of complex numbers the second operand has the
// factor 1/2, with which the sum and the difference of both residues give the parts.
template <int I, bool SECOND>
__device__ __forceinline__ void store_residues(unsigned char* to, long long plane, const Whole (&parts)[EACH])
{
    constexpr int p = MODULUS[I], half = COMPLEX ? (p + 1) / 2 : 1, w = SECOND ? inverse_of_others(I) * half % p : 1;
    unsigned r[EACH][4];
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        const int x = multiplied<p, w, BITS_OF_MAGIC>(parts[0].low[j], parts[0].high[j]);
        if constexpr (COMPLEX) {
            constexpr int s = root_of_minus_one(p);
            const int y = multiplied<p, s * w % p, 0>(parts[1].low[j], parts[1].high[j]);
            r[0][j] = residue_of<p>(x + y);
            r[1][j] = residue_of<p>(x - y);
        } else r[0][j] = residue_of<p>(x);
    }
    #pragma unroll
    for (int e = 0; e < EACH; e++) *(unsigned*)(to + e * plane) = lowest_bytes(r[e]);
    if constexpr (I + 1 < MODULI) store_residues<I + 1, SECOND>(to + EACH * plane, plane, parts);
}

// A lower bound of the magnitude of x + i·y, from those of its parts: 28² + 15² is below 32².
__device__ __forceinline__ unsigned least_magnitude(unsigned x, unsigned y)
{
    const unsigned more = max(x, y), less = min(x, y);
    return max(more, (28 * more + 15 * less) / 32);
}

// A STEP of lines that do not lie along k. It is the same memory for both operands, of which a block has one.
typedef double Across[STEP][LINES * EACH + 2];
__device__ __forceinline__ Across& shared_step()
{
    __shared__ __align__(16) Across across;
    return across;
}

template <bool ALONG, bool VECTOR, bool SECOND>
__device__ __forceinline__ void round_lines(const double* x, unsigned char* planes, const Operand& o, const Call& call, int block)
{
    __shared__ int shifts[LINES], bits[LINES];
    const int groups = (o.lines - 1) / LINES + 1, first = block % groups * LINES, begin = block / groups * STEP * AT_ONCE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Line* lines = (Line*)(planes + o.of_lines) + first;
    if (threadIdx.x < LINES) {
        const Norm* found = (const Norm*)(planes + o.found) + first + threadIdx.x;
        Norm norm = { LEAST_EXPONENT, 0 };
        for (int part = 0; part < o.parts; part++) norm = sum_of(norm, found[(long long)part * o.padded]);
        const bool fits = norm.exponent < UNFIT_EXPONENT;
        // 4^(shift + exponent) is at most the quotient. No whole number has more than 52 bits.
        const int quotient = (__double2hiint(__ddiv_rd(call.most, norm.squares)) >> 20) - 1023;
        const int shift = fits && norm.squares > 0 ? (quotient >> 1) - norm.exponent : 0;
        shifts[threadIdx.x] = shift;
        bits[threadIdx.x] = max(7, min(52, norm.exponent + 2 + shift));
        if (begin == 0) {
            lines[threadIdx.x].shift = (short)shift;
            lines[threadIdx.x].bits = (short)bits[threadIdx.x];
            if (!fits) atomicOr(&lines[threadIdx.x].kind, UNFIT);
        }
    }
    __syncthreads();
    // A thread has 128 bytes of a STEP in registers, while it handles those of the one before: four elements at once.
    constexpr int TURNS = LINES / WARPS, LOADS = 4 / NEIGHBOURS, HELD = TURNS * LOADS;
    constexpr int ACROSS = LINES / NEIGHBOURS, STEPS = THREADS / ACROSS;
    double2 held[HELD];
    auto fetch = [&](int at) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int line = ALONG ? warp + i / LOADS * WARPS : threadIdx.x % ACROSS * NEIGHBOURS;
            const int step = ALONG ? lane * 4 + i % LOADS * NEIGHBOURS : threadIdx.x / ACROSS + i * STEPS;
            held[i] = load<ALONG, VECTOR>(x, o, first + line, at + step);
        }
    };
    unsigned long long sums[TURNS] = {};
    unsigned rounded = 0;  // a bit for each line
    const int end = min(o.k, begin + STEP * AT_ONCE);
    fetch(begin);
    for (int at = begin; at < end; at += STEP) {
        double v[TURNS][4 * EACH];
        if constexpr (ALONG)
            #pragma unroll
            for (int i = 0; i < HELD; i++) {
                double* to = &v[i / LOADS][i % LOADS * 2];
                to[0] = held[i].x, to[1] = held[i].y;
            }
        else {
            if (at > begin) __syncthreads();
            #pragma unroll
            for (int i = 0; i < HELD; i++)
                *(double2*)&shared_step()[threadIdx.x / ACROSS + i * STEPS][threadIdx.x % ACROSS * 2] = held[i];
            __syncthreads();
        }
        if (at + STEP < end) fetch(at + STEP);
        #pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int i = warp + turn * WARPS, line = first + i, p = at + lane * 4;
            if (line >= o.lines) break;
            if constexpr (!ALONG)
                #pragma unroll
                for (int j = 0; j < 4; j++)
                    #pragma unroll
                    for (int e = 0; e < EACH; e++)
                        v[turn][j * EACH + e] = shared_step()[lane * 4 + j][i * EACH + e];
            const int once = max(min(shifts[i], 1000), -1000);  // a denormal number takes two steps
            const double f = power_of_two(once), g = power_of_two(shifts[i] - once);
            Whole parts[EACH];
            unsigned magnitudes = 0;
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                unsigned upper[EACH];
                #pragma unroll
                for (int e = 0; e < EACH; e++) {
                    constexpr double MAGIC = 6755399441055744;  // 1.5·2^52
                    const double of = v[turn][j * EACH + e], y = of * f * g, whole = __dadd_rn(y, MAGIC);
                    if (__dadd_rn(whole, -MAGIC) != y || (y == 0 && of != 0)) rounded |= 1 << turn;
                    const unsigned low = __double2loint(whole), high = __double2hiint(whole) & 0xFFFFF;
                    parts[e].low[j] = low;
                    parts[e].high[j] = high;
                    const long long number = (long long)((unsigned long long)high << 32 | low) - (1ll << 51);
                    const unsigned long long magnitude = number < 0 ? -number : number;
                    sums[turn] += magnitude;
                    upper[e] = (unsigned)(magnitude >> bits[i] - 7);
                }
                magnitudes |= min(127u, COMPLEX ? least_magnitude(upper[0], upper[EACH - 1]) : upper[0]) << 8 * j;
            }
            if (p < o.pitch)
                store_residues<0, SECOND>(planes + (long long)line * o.pitch + p, (long long)o.lines * o.pitch, parts);
            if (at / STEP % call.every == 0)
                *(unsigned*)(planes + o.sample + (long long)line * o.sample_pitch + at / STEP / call.every * STEP + lane * 4) = magnitudes;
        }
    }
    rounded = __reduce_or_sync(~0u, rounded);
    #pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int i = warp + turn * WARPS;
        unsigned long long sum = sums[turn];
        #pragma unroll
        for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
        if (lane == 0 && first + i < o.lines) {
            atomicAdd(&lines[i].sum, sum);
            if (rounded >> turn & 1) atomicOr(&lines[i].kind, ROUNDED);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
write_residues(const double* x, unsigned char* planes_x, const double* y, unsigned char* planes_y, const __grid_constant__ Call call)
{
    let_next_launch_begin();
    wait_for_launch_before();
    const int block = blockIdx.x, other = block - call.of[0].rounding;
    if (other < 0) round_lines<ALONG_0, VECTOR_0, false>(x, planes_x, call.of[0], call, block);
    else round_lines<ALONG_1, VECTOR_1, true>(y, planes_y, call.of[1], call, other);
}
