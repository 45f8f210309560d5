// Copies one or two batches of matrices of any strides into others, of the same type or with numbers rounded once. A thread reads
// vectors of 16 bytes along x, the direction in which elements of the source follow each other, and writes vectors of 16 bytes in the
// direction of the target: along the same x, or ACROSS it, along y. Then a thread transposes a small block in its registers. The
// lanes of a warp lie so that both what it reads and what it writes are whole sectors.
//
// A batch has up to AXES axes. For each of JOBS copies the host gives the types FROM_i and TO_i and ACROSS_i, and whether
//   LOADS_i: elements of the source follow each other along x; otherwise they are read one by one
//   SHIFTED_i: these vectors may begin at any address; whole ones are read around them and shifted
//   STORES_i: elements of the target follow each other, and rows of it begin at multiples of 16 bytes
//   CONJUGATE_i: imaginary parts change their sign
#include "../launches.cuh"
#include "../shifts.cuh"

typedef unsigned long long Address;

struct Job {
    long long x, y;                             // elements
    long long from_x, from_y, to_x, to_y;       // strides in elements
    long long room;                             // elements of the target that may be written in its own direction, at least its own
    long long from_start, to_start;             // elements before the first one, from the lowest address, of strides below 0
    long long bytes;                            // from the lowest address of the source to its end
    long long from_next[AXES], to_next[AXES];   // strides of the axes of the batch
    unsigned matrices[AXES];                    // and their lengths
    unsigned across, down, count;               // parts of x, of y and of all matrices, each of one warp
    unsigned lanes_x, blocks;                   // the logarithm of the lanes of a warp along x
};
struct Jobs { Job job[JOBS]; };

// ---- types ----------------------------------------------------------------------------------------------------------------

struct BFloat16 { unsigned short bits; };
struct Float16 { unsigned short bits; };
struct Complex64 { float real, imag; };
struct Complex128 { double real, imag; };
struct Bits128 { unsigned long long low, high; };

// A wider type of what is read, that represents it exactly.
__device__ __forceinline__ double wide(double x) { return x; }
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(BFloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float wide(Float16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Rounded once to nearest, ties to even, as C++ rounds float64 to float32.
__device__ __forceinline__ void narrow(double x, double& to) { to = x; }
__device__ __forceinline__ void narrow(double x, float& to) { to = (float)x; }
__device__ __forceinline__ void narrow(float x, double& to) { to = x; }
__device__ __forceinline__ void narrow(float x, float& to) { to = x; }
__device__ __forceinline__ void narrow(float x, BFloat16& to)
{
    const unsigned bits = __float_as_uint(x);
    to.bits = x != x ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ void narrow(float x, Float16& to)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}
template <typename To> __device__ __forceinline__ void narrow(double x, To& to)
{
    // To float32 toward zero with the last bit set if anything was lost: rounding that once more gives what one rounding gives.
    float y = __double2float_rz(x);
    if ((double)y != x && x == x) y = __uint_as_float(__float_as_uint(y) | 1);
    narrow(y, to);
}

template <typename T> __device__ __forceinline__ void convert(T x, T& to) { to = x; }
template <typename From, typename To> __device__ __forceinline__ void convert(From x, To& to) { narrow(wide(x), to); }
template <typename From> __device__ __forceinline__ void convert(From x, Complex64& to)
{
    convert(x, to.real);
    to.imag = 0;
}
template <typename From> __device__ __forceinline__ void convert(From x, Complex128& to)
{
    convert(x, to.real);
    to.imag = 0;
}
__device__ __forceinline__ void convert(Complex64 x, Complex64& to) { to = x; }
__device__ __forceinline__ void convert(Complex128 x, Complex128& to) { to = x; }
__device__ __forceinline__ void convert(Complex64 x, Complex128& to) { to = { x.real, x.imag }; }
__device__ __forceinline__ void convert(Complex128 x, Complex64& to) { to = { (float)x.real, (float)x.imag }; }

template <typename T> __device__ __forceinline__ void conjugate(T&) {}
__device__ __forceinline__ void conjugate(Complex64& x) { x.imag = -x.imag; }
__device__ __forceinline__ void conjugate(Complex128& x) { x.imag = -x.imag; }

// ---- elements in words of registers -----------------------------------------------------------------------------------------

template <typename T> __device__ __forceinline__ T element(const unsigned* words, int i)
{
    constexpr int SIZE = sizeof(T);
    union { T x; unsigned char byte; unsigned short half; unsigned word[(SIZE + 3) / 4]; } as;
    if constexpr (SIZE == 1) as.byte = words[i / 4] >> i % 4 * 8;
    else if constexpr (SIZE == 2) as.half = words[i / 2] >> i % 2 * 16;
    else
        #pragma unroll
        for (int j = 0; j < SIZE / 4; j++) as.word[j] = words[i * (SIZE / 4) + j];
    return as.x;
}

template <typename T> __device__ __forceinline__ void put(unsigned* words, int i, T x)
{
    constexpr int SIZE = sizeof(T);
    union { T x; unsigned char byte; unsigned short half; unsigned word[(SIZE + 3) / 4]; } as;
    as.x = x;
    if constexpr (SIZE == 1) words[i / 4] = (i % 4 ? words[i / 4] : 0) | (unsigned)as.byte << i % 4 * 8;
    else if constexpr (SIZE == 2) words[i / 2] = (i % 2 ? words[i / 2] : 0) | (unsigned)as.half << i % 2 * 16;
    else
        #pragma unroll
        for (int j = 0; j < SIZE / 4; j++) words[i * (SIZE / 4) + j] = as.word[j];
}

// Reads 16 bytes where `needed`. The instruction is predicated: a branch would keep the next load waiting for this one.
__device__ __forceinline__ void load(unsigned (&words)[4], Address at, bool needed)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]) : "l"(at), "r"((unsigned)needed));
}

// ---- copies ----------------------------------------------------------------------------------------------------------------

constexpr int THREADS = 256;
__device__ constexpr int least(int a, int b) { return a < b ? a : b; }

template <typename From, typename To, bool ACROSS, bool LOADS, bool SHIFTED, bool STORES, bool CONJUGATE>
__device__ __forceinline__ void copy(const From* from, To* to, const Job& job, unsigned block)
{
    // A thread copies VX elements in each of VY rows of the source.
    constexpr int SIZE = sizeof(From), OUT = sizeof(To);
    constexpr int VX = 16 / (ACROSS ? SIZE : least(SIZE, OUT)), VY = ACROSS ? least(8, 16 / OUT) : 1;
    constexpr int VECTOR = ACROSS ? VY : VX, VECTORS = ACROSS ? VX : 1;  // elements of the target in its direction, and how many
    constexpr int WORDS = VX * SIZE / 4, OUT_WORDS = VECTOR * OUT / 4, LOADED = WORDS / 4 + SHIFTED;
    const unsigned lane = threadIdx.x % 32, part = block * (THREADS / 32) + threadIdx.x / 32;
    if (part >= job.count) return;
    unsigned row = part / job.across, z = row / job.down;
    const long long x = (((long long)(part - row * job.across) << job.lanes_x) + (lane & (1u << job.lanes_x) - 1)) * VX;
    const long long y = ((long long)(row - z * job.down) * (32 >> job.lanes_x) + (lane >> job.lanes_x)) * VY;
    if (x >= job.x || y >= job.y) return;
    const From* source = from + job.from_start + x * job.from_x + y * job.from_y;
    To* target = to + job.to_start + x * job.to_x + y * job.to_y;
    #pragma unroll
    for (int axis = AXES - 1; axis >= 0; axis--) {
        const unsigned outer = z / job.matrices[axis], i = z - outer * job.matrices[axis];
        source += i * job.from_next[axis];
        target += i * job.to_next[axis];
        z = outer;
    }

    // ---- GLOBAL → REGISTERS: vectors of 16 bytes that lie wholly in the source, all of them at once
    const Address low = (Address)from, high = low + job.bytes;
    unsigned loaded[VY][LOADED][4], words[VY][WORDS];
    bool whole[VY];
    #pragma unroll
    for (int r = 0; LOADS && r < VY; r++) {
        const Address at = (Address)(source + r * job.from_y), start = SHIFTED ? at & -16ull : at;
        const bool shifted = SHIFTED && at != start;
        whole[r] = y + r < job.y && start >= low && start + WORDS * 4 + shifted * 16 <= high;
        #pragma unroll
        for (int i = 0; i < LOADED; i++) load(loaded[r][i], start + i * 16, whole[r] && (i < WORDS / 4 || shifted));
    }
    #pragma unroll
    for (int r = 0; r < VY; r++) {
        const From* at = source + r * job.from_y;
        if (SHIFTED) shift_words<WORDS>(words[r], loaded[r][0], (Address)at % 16);
        else
            #pragma unroll
            for (int i = 0; i < WORDS; i++) words[r][i] = loaded[r][i / 4][i % 4];
        if (!(LOADS && whole[r]) && y + r < job.y)  // element by element
            #pragma unroll
            for (int i = 0; i < VX; i++) put(words[r], i, x + i < job.x ? at[i * job.from_x] : From());
    }

    // ---- REGISTERS → GLOBAL
    #pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        if (x + v >= job.x) break;
        unsigned out[OUT_WORDS];
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            To converted;
            convert(ACROSS ? element<From>(words[i], v) : element<From>(words[0], i), converted);
            if (CONJUGATE) conjugate(converted);
            put(out, i, converted);
        }
        To* at = target + v * job.to_x;
        const long long inner = ACROSS ? y : x;
        if (STORES && inner + VECTOR <= job.room) {
            if (OUT_WORDS == 2) *(uint2*)at = make_uint2(out[0], out[1]);
            #pragma unroll
            for (int i = 0; i < OUT_WORDS / 4; i++)
                ((uint4*)at)[i] = make_uint4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
        } else
            #pragma unroll
            for (int i = 0; i < VECTOR; i++)
                if (inner + i < (ACROSS ? job.y : job.x)) at[i * (ACROSS ? job.to_y : job.to_x)] = element<To>(out, i);
    }
}

// `from` and `to` are the lowest addresses of their matrices.
extern "C" __global__ void __launch_bounds__(THREADS)
copy_matrices(const FROM_0* from_0, TO_0* to_0,
#if JOBS > 1
              const FROM_1* from_1, TO_1* to_1,
#endif
              const __grid_constant__ Jobs jobs)
{
    wait_for_launch_before();
    let_next_launch_begin();
#if JOBS > 1
    if (blockIdx.x >= jobs.job[0].blocks) {
        copy<FROM_1, TO_1, ACROSS_1, LOADS_1, SHIFTED_1, STORES_1, CONJUGATE_1>(from_1, to_1, jobs.job[1], blockIdx.x - jobs.job[0].blocks);
        return;
    }
#endif
    copy<FROM_0, TO_0, ACROSS_0, LOADS_0, SHIFTED_0, STORES_0, CONJUGATE_0>(from_0, to_0, jobs.job[0], blockIdx.x);
}
