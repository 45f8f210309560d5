// Prepares float64 matrices for products by int8 tensor cores (see ``residues.cuh``): one or two operands in one launch.
//
// A line is a row of A or a column of B. Its elements are multiplied by the power of two that brings the largest below 2^BITS, and are
// rounded to whole numbers y. Of each y the residues are stored as int8, those of a line one after another: a plane for each modulus.
// Those of the second operand are multiplied by the inverse of the other moduli, which spares ``reconstruct.cu`` a multiplication.
// Of some steps of k another plane has magnitudes of 7 bits, rounded down: their product is a lower bound of |A||B|.
#include "../launches.cuh"
#include "../residues.cuh"

constexpr int LINES = 32, THREADS = 256, WARPS = THREADS / 32, STEP = 128;  // lines of a block, and steps of k at a time
#ifndef BLOCKS
#define BLOCKS 2  // of a multiprocessor
#endif
constexpr int FOUND = 1024, AT_ONCE = 4;  // steps of k of a block that looks for the largest magnitude, and STEPs of one that rounds

struct Operand {
    long long line, step;                     // of the source: elements to the next line, and to the next of k
    long long sample, found, of_lines;        // bytes from the first plane to the magnitudes, to what is found, and to the Lines
    int lines, k, pitch, sample_pitch;        // bytes from one line of a plane to the next
    int parts, padded, finding, rounding;     // of k that are searched apart; lines with room for what is found; blocks
};
struct Call {
    Operand of[2];
    int every, flags;  // of STEPs of k, one in `every` is sampled; numbers that are set to zero
};

__device__ __forceinline__ double power_of_two(int e)  // 2^e, a normal number
{
    return __longlong_as_double((long long)(e + 1023) << 52);
}

// Two neighbours, of k if ALONG, else of the lines. What lies outside is zero.
template <bool ALONG, bool VECTOR>
__device__ __forceinline__ double2 load(const double* x, const Operand& o, int line, int p)
{
    const int left = ALONG ? o.k - p : o.lines - line;
    if ((ALONG ? line >= o.lines : p >= o.k) || left <= 0) return make_double2(0, 0);
    const double* from = x + line * o.line + p * o.step;
    if (VECTOR && left >= 2) return *(const double2*)from;
    return make_double2(from[0], left > 1 ? from[ALONG ? o.step : o.line] : 0);
}

// ---- the largest magnitude of each line, of each part of k ------------------------------------------------------------------------

template <bool ALONG, bool VECTOR>
__device__ __forceinline__ void find(const double* x, unsigned char* planes, const Operand& o, int block)
{
    __shared__ unsigned long long of_steps[THREADS / (LINES / 2)][LINES];
    const int first = block / o.parts * LINES, part = block % o.parts, begin = part * FOUND;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned long long* found = (unsigned long long*)(planes + o.found) + (long long)part * o.padded + first;
    auto magnitude = [](double v) { return (unsigned long long)__double_as_longlong(v) & ~(1ull << 63); };
    if (ALONG)
        #pragma unroll 1
        for (int i = warp; i < LINES; i += WARPS) {
            double2 v[FOUND / 64];
            #pragma unroll
            for (int j = 0; j < FOUND / 64; j++) v[j] = load<ALONG, VECTOR>(x, o, first + i, begin + j * 64 + lane * 2);
            unsigned long long most = 0;
            #pragma unroll
            for (int j = 0; j < FOUND / 64; j++) most = max(most, max(magnitude(v[j].x), magnitude(v[j].y)));
            #pragma unroll
            for (int distance = 16; distance; distance /= 2) most = max(most, __shfl_xor_sync(~0u, most, distance));
            if (lane == 0) found[i] = most;
        }
    else {
        constexpr int ACROSS = LINES / 2, STEPS = THREADS / ACROSS;
        const int i = threadIdx.x % ACROSS * 2, step = threadIdx.x / ACROSS;
        unsigned long long most[2] = {};
        #pragma unroll 16
        for (int p = step; p < FOUND; p += STEPS) {
            const double2 v = load<ALONG, VECTOR>(x, o, first + i, begin + p);
            most[0] = max(most[0], magnitude(v.x));
            most[1] = max(most[1], magnitude(v.y));
        }
        of_steps[step][i] = most[0];
        of_steps[step][i + 1] = most[1];
        __syncthreads();
        if (threadIdx.x < LINES) {
            unsigned long long all = 0;
            for (int s = 0; s < STEPS; s++) all = max(all, of_steps[s][threadIdx.x]);
            found[threadIdx.x] = all;
        }
    }
    if (part == 0 && threadIdx.x < LINES) ((Line*)(planes + o.of_lines))[first + threadIdx.x] = { 0, 0, 0 };
}

extern "C" __global__ void __launch_bounds__(THREADS)
find_magnitudes(const double* x, unsigned char* planes_x, const double* y, unsigned char* planes_y, int* flags,
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

// Residue `I` of a whole number y in its lowest byte. `low` and `high` are the 52 bits of y + 2^51. The sum of its bytes times
// factors, below 2^18, is the low part of a float from the beginning, 1.5·2^23 plus the sum, and stays one.
template <int I, bool SECOND>
__device__ __forceinline__ unsigned residue_of(unsigned low, unsigned high)
{
    constexpr int p = MODULUS[I], w = SECOND ? inverse_of_others(I) : 1;
    constexpr int least = factors(0, 4, w, p), most = factors(4, 3, w, p);
    constexpr int start = 0x4B400000 + centred((p - power_modulo(2, 51, p)) % p * w % p, p);
    constexpr float MAGIC = 12582912, INVERSE = 1.0f / p;
    const float sum = __int_as_float(sum_of_bytes(low, least, sum_of_bytes(high, most, start)));
    const float quotient = __fadd_rn(__fmaf_rn(__fadd_rn(sum, -MAGIC), INVERSE, MAGIC), -MAGIC);
    return __float_as_uint(__fmaf_rn(quotient, -(float)p, sum));
}

template <int I, bool SECOND>
__device__ __forceinline__ void store_residues(unsigned char* to, long long plane, const unsigned (&low)[4], const unsigned (&high)[4])
{
    unsigned r[4];
    #pragma unroll
    for (int j = 0; j < 4; j++) r[j] = residue_of<I, SECOND>(low[j], high[j]);
    *(unsigned*)to = __byte_perm(__byte_perm(r[0], r[1], 0x0040), __byte_perm(r[2], r[3], 0x0040), 0x5410);
    if constexpr (I + 1 < MODULI) store_residues<I + 1, SECOND>(to + plane, plane, low, high);
}

template <bool ALONG, bool VECTOR, bool SECOND>
__device__ __forceinline__ void round_lines(const double* x, unsigned char* planes, const Operand& o, const Call& call, int block)
{
    __shared__ __align__(16) double across[ALONG ? 1 : STEP][ALONG ? 1 : LINES + 2];
    __shared__ int shifts[LINES];
    const int groups = (o.lines - 1) / LINES + 1, first = block % groups * LINES, begin = block / groups * STEP * AT_ONCE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Line* lines = (Line*)(planes + o.of_lines) + first;
    if (threadIdx.x < LINES) {
        const unsigned long long* found = (const unsigned long long*)(planes + o.found) + first + threadIdx.x;
        unsigned long long most = 0;
        for (int part = 0; part < o.parts; part++) most = max(most, found[(long long)part * o.padded]);
        const int biased = (int)(most >> 52), exponent = biased ? biased - 1022 : -1010 - __clzll(most);  // most < 2^exponent
        const bool fits = biased < 2047;
        shifts[threadIdx.x] = fits ? BITS - exponent : 0;
        if (begin == 0) {
            lines[threadIdx.x].shift = shifts[threadIdx.x];
            if (!fits) atomicOr(&lines[threadIdx.x].kind, UNFIT);
        }
    }
    __syncthreads();
    // A thread has 16 numbers of a STEP in registers, while it handles those of the one before: two neighbours at a time.
    constexpr int HELD = STEP * LINES / 2 / THREADS, ACROSS = LINES / 2, STEPS = THREADS / ACROSS;
    double2 held[HELD];
    auto fetch = [&](int at) {
        #pragma unroll
        for (int i = 0; i < HELD; i++)
            held[i] = ALONG ? load<ALONG, VECTOR>(x, o, first + warp + i / 2 * WARPS, at + lane * 4 + i % 2 * 2)
                            : load<ALONG, VECTOR>(x, o, first + threadIdx.x % ACROSS * 2, at + threadIdx.x / ACROSS + i * STEPS);
    };
    unsigned long long sums[LINES / WARPS] = {};
    unsigned rounded = 0;  // a bit for each line
    const int end = min(o.k, begin + STEP * AT_ONCE);
    fetch(begin);
    for (int at = begin; at < end; at += STEP) {
        double v[LINES / WARPS][4];
        if (ALONG)
            #pragma unroll
            for (int i = 0; i < HELD; i++) v[i / 2][i % 2 * 2] = held[i].x, v[i / 2][i % 2 * 2 + 1] = held[i].y;
        else {
            if (at > begin) __syncthreads();
            #pragma unroll
            for (int i = 0; i < HELD; i++) *(double2*)&across[threadIdx.x / ACROSS + i * STEPS][threadIdx.x % ACROSS * 2] = held[i];
            __syncthreads();
        }
        if (at + STEP < end) fetch(at + STEP);
        #pragma unroll
        for (int turn = 0; turn < LINES / WARPS; turn++) {
            const int i = warp + turn * WARPS, line = first + i, p = at + lane * 4;
            if (line >= o.lines) break;
            if (!ALONG)
                #pragma unroll
                for (int j = 0; j < 4; j++) v[turn][j] = across[ALONG ? 0 : lane * 4 + j][ALONG ? 0 : i];
            const int once = max(min(shifts[i], 1000), -1000);  // a denormal number takes two steps
            const double f = power_of_two(once), g = power_of_two(shifts[i] - once);
            unsigned low[4], high[4], magnitudes = 0;
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                constexpr double MAGIC = 6755399441055744;  // 1.5·2^52
                const double y = v[turn][j] * f * g, whole = __dadd_rn(y, MAGIC);
                if (__dadd_rn(whole, -MAGIC) != y || (y == 0 && v[turn][j] != 0)) rounded |= 1 << turn;
                low[j] = __double2loint(whole);
                high[j] = __double2hiint(whole) & 0xFFFFF;
                const long long number = (long long)((unsigned long long)high[j] << 32 | low[j]) - (1ll << 51);
                const unsigned long long magnitude = number < 0 ? -number : number;
                sums[turn] += magnitude;
                magnitudes |= min(127u, (unsigned)(magnitude >> BITS - 7)) << 8 * j;
            }
            if (p < o.pitch)
                store_residues<0, SECOND>(planes + (long long)line * o.pitch + p, (long long)o.lines * o.pitch, low, high);
            if (at / STEP % call.every == 0)
                *(unsigned*)(planes + o.sample + (long long)line * o.sample_pitch + at / STEP / call.every * STEP + lane * 4) = magnitudes;
        }
    }
    rounded = __reduce_or_sync(~0u, rounded);
    #pragma unroll
    for (int turn = 0; turn < LINES / WARPS; turn++) {
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
