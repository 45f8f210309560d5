// Splits float32 matrices for products by tensor cores of float16: one or two operands, all matrices of a batch, in one launch.
//
// A line is a row of A or a column of B. Its elements are multiplied by a power of two that brings the largest into [2^14, 2^15), which
// is exact. Then y = hi + lo / 2^11, with hi and lo in float16: hi is y rounded, lo what was lost, times 2^11, rounded. Of y in
// [2^e, 2^(e+1)) what is lost then is at most max(2^(e-23), 2^-36). The excess of a line are the binades by which its least magnitude
// lies below 2^-14, where float16 begins to lose bits.
//
// A cluster of PARTS blocks splits 32 lines, each block a part of k: it finds the largest and the least magnitude of its part, reads
// those of the others, and splits. Of its numbers each thread holds HELD · 4 in shared memory meanwhile, and reads the rest again.
// (With 64 or 128 lines at once, which follow each other in memory, it was no faster on an H200.) If PLANES is 1, hi alone is written.
#include "../hopper.cuh"
#include "../launches.cuh"
#include "../powers.cuh"

constexpr int LINES = 32, THREADS = 256, WARPS = THREADS / 32;
constexpr int UNFIT = 1 << 20;  // the excess of a line with an infinity or a NaN

struct Operand {
    long long line, step, next;  // of the source: elements to the next line, to the next of k, to the next matrix
    long long pitch, plane;      // of the planes: elements to the next row in memory; from hi to lo, and from there to the next matrix
    long long room;              // words of what is found of each matrix
    int lines, k, matrices, groups, part, blocks;  // `groups` of 32 lines; `part`: of k, a multiple of 128
};
struct Call { Operand of[2]; };

extern __shared__ __align__(16) float4 held[];

// Four neighbours: of k if ALONG, else of the lines. What lies outside is zero.
template <bool ALONG, bool VECTOR>
__device__ __forceinline__ float4 load(const float* x, const Operand& o, int line, int p)
{
    const int left = ALONG ? o.k - p : o.lines - line;
    if ((ALONG ? line >= o.lines : p >= o.k) || left <= 0) return make_float4(0, 0, 0, 0);
    const float* from = x + line * o.line + p * o.step;
    if (VECTOR && left >= 4) return *(const float4*)from;
    const long long inner = ALONG ? o.step : o.line;
    return make_float4(from[0], left > 1 ? from[inner] : 0, left > 2 ? from[2 * inner] : 0, left > 3 ? from[3 * inner] : 0);
}

__device__ __forceinline__ void note(unsigned& most, unsigned& least, float v)
{
    const unsigned bits = __float_as_uint(v) & 0x7FFFFFFF;
    most = max(most, bits);
    least = min(least, bits - 1);  // of zero the largest number
}

__device__ __forceinline__ void unite(unsigned& most, unsigned& least, int distance)
{
    most = max(most, __shfl_xor_sync(~0u, most, distance));
    least = min(least, __shfl_xor_sync(~0u, least, distance));
}

__device__ __forceinline__ int binade(unsigned bits)  // e of a magnitude in [2^e, 2^(e+1)), from its bits
{
    return bits >> 23 ? (int)(bits >> 23) - 127 : -118 - __clz(bits);  // of 1, which is 2^-149, 31 bits are zero
}

__device__ __forceinline__ unsigned packed(float low, float high)
{
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float unpacked(unsigned short bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// What one block of the cluster has found, of all of them.
__device__ __forceinline__ uint2 found_by(const uint2& mine, int rank)
{
    unsigned at;
    uint2 theirs;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(&mine)), "r"(rank));
    asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];" : "=r"(theirs.x), "=r"(theirs.y) : "r"(at) : "memory");
    return theirs;
}

// Writes four neighbours of each plane.
__device__ __forceinline__ void store(unsigned short* to, long long plane, float a, float b, float c, float d)
{
    const uint2 hi = make_uint2(packed(a, b), packed(c, d));
    *(uint2*)to = hi;
    if (PLANES == 1) return;
    a -= unpacked((unsigned short)hi.x);
    b -= unpacked(hi.x >> 16);
    c -= unpacked((unsigned short)hi.y);
    d -= unpacked(hi.y >> 16);
    const uint2 lo = make_uint2(packed(a * 2048, b * 2048), packed(c * 2048, d * 2048));
    *(uint2*)(to + plane) = lo;
}

template <bool ALONG, bool VECTOR>
__device__ __forceinline__ void split(const float* x, unsigned short* planes, int* words, const Operand& o, int block)
{
    constexpr int LANES = LINES / 4, STEPS = THREADS / LANES;
    __shared__ uint2 of_warps[WARPS][LINES], mine[LINES];
    __shared__ __align__(16) float factors[2][LINES];
    const int rank = block % PARTS, group = block / PARTS % o.groups, matrix = block / PARTS / o.groups, first = group * LINES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, begin = rank * o.part, end = min(begin + o.part, o.k);
    // Of each line a warp has 128 neighbours at once, four lines in turns; or a block has STEPS steps of k of all lines.
    auto line_of = [&](int i) { return first + (ALONG ? warp + i % 4 * WARPS : (int)threadIdx.x % LANES * 4); };
    auto step_of = [&](int i) { return begin + (ALONG ? lane * 4 + i / 4 * 128 : (int)threadIdx.x / LANES + i * STEPS); };
    const int count = end <= begin ? 0 : ALONG ? (end - begin + 127) / 128 * 4 : (end - begin + STEPS - 1) / STEPS;
    x += matrix * o.next;
    planes += matrix * PLANES * o.plane;
    words += matrix * o.room;

    // ---- the largest and the least magnitude of each line --------------------------------------------------------------------
    unsigned most[4] = {}, least[4] = { ~0u, ~0u, ~0u, ~0u };
    #pragma unroll 1
    for (int i = 0; i < count; i += 8) {
        float4 v[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) v[j] = i + j < count ? load<ALONG, VECTOR>(x, o, line_of(i + j), step_of(i + j)) : make_float4(0, 0, 0, 0);
        #pragma unroll
        for (int j = 0; j < 8; j++) {
            if (i + j < HELD) held[(i + j) * THREADS + threadIdx.x] = v[j];
            note(most[ALONG ? j % 4 : 0], least[ALONG ? j % 4 : 0], v[j].x);
            note(most[ALONG ? j % 4 : 1], least[ALONG ? j % 4 : 1], v[j].y);
            note(most[ALONG ? j % 4 : 2], least[ALONG ? j % 4 : 2], v[j].z);
            note(most[ALONG ? j % 4 : 3], least[ALONG ? j % 4 : 3], v[j].w);
        }
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        #pragma unroll
        for (int distance = ALONG ? 1 : LANES; distance < 32; distance *= 2) unite(most[i], least[i], distance);
        if (ALONG && lane == 0) mine[warp + i * WARPS] = make_uint2(most[i], least[i]);
        if (!ALONG && lane < LANES) of_warps[warp][lane * 4 + i] = make_uint2(most[i], least[i]);
    }
    if (!ALONG) {
        __syncthreads();
        if (threadIdx.x < LINES) {
            uint2 all = of_warps[0][threadIdx.x];
            #pragma unroll
            for (int i = 1; i < WARPS; i++) {
                all.x = max(all.x, of_warps[i][threadIdx.x].x);
                all.y = min(all.y, of_warps[i][threadIdx.x].y);
            }
            mine[threadIdx.x] = all;
        }
    }
    if (PARTS > 1) cluster_sync();
    else __syncthreads();
    if (warp == 0) {
        uint2 all = mine[lane];
        for (int i = 1; i < PARTS; i++) {
            const uint2 theirs = found_by(mine[lane], (rank + i) % PARTS);
            all.x = max(all.x, theirs.x);
            all.y = min(all.y, theirs.y);
        }
        const bool finite = all.x < 0x7F800000, empty = all.x == 0;
        const int exponent = empty || !finite ? 0 : binade(all.x) - 14;
        const int once = min(-exponent, 100);  // a denormal number takes two steps
        factors[0][lane] = power_of_two(once);
        factors[1][lane] = power_of_two(-exponent - once);
        int excess = finite ? empty ? 0 : max(0, binade(all.x) - binade(all.y + 1) - 28) : UNFIT;
        #pragma unroll
        for (int distance = 16; distance; distance /= 2) excess = max(excess, __shfl_xor_sync(~0u, excess, distance));
        if (rank == 0) words[first + lane] = exponent;
        if (rank == 0 && lane == 0) words[o.groups * LINES + group] = excess;
    }
    __syncthreads();

    // ---- the planes ----------------------------------------------------------------------------------------------------------
    #pragma unroll 4
    for (int i = 0; i < count; i++) {
        const int line = line_of(i), step = step_of(i);
        if (ALONG ? line >= o.lines || step >= o.k : line >= o.lines || step >= o.k) continue;
        const float4 v = i < HELD ? held[i * THREADS + threadIdx.x] : load<ALONG, VECTOR>(x, o, line, step);
        unsigned short* to = planes + (ALONG ? line * o.pitch + step : step * o.pitch + line);
        if (ALONG) {
            const float f = factors[0][line - first], g = factors[1][line - first];
            store(to, o.plane, v.x * f * g, v.y * f * g, v.z * f * g, v.w * f * g);
        } else {
            const float4 f = *(const float4*)&factors[0][line - first], g = *(const float4*)&factors[1][line - first];
            store(to, o.plane, v.x * f.x * g.x, v.y * f.y * g.y, v.z * f.z * g.z, v.w * f.w * g.w);
        }
    }
    if (PARTS > 1) cluster_sync();  // no block leaves while another reads what it has found
}

extern "C" __global__ void __cluster_dims__(PARTS) __launch_bounds__(THREADS)
split_matrices(const float* x, unsigned short* planes_x, int* found_x, const float* y, unsigned short* planes_y, int* found_y,
               const __grid_constant__ Call call)
{
    let_next_launch_begin();
    wait_for_launch_before();
    const int block = blockIdx.x, other = block - call.of[0].blocks;
    if (other < 0) split<ALONG_0, VECTOR_0>(x, planes_x, found_x, call.of[0], block);
    else split<ALONG_1, VECTOR_1>(y, planes_y, found_y, call.of[1], other);
}
