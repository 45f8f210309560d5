// What kernels share whose warps multiply slices of k of their own, straight from global memory: how lanes load an operand, and how
// the sums of the slices are added.
#pragma once
#include "strided.cuh"

// COUNT elements that follow each other, in one access. Each is read once, or by few warps at about the same time.
template <int COUNT, typename T> __device__ __forceinline__ void load(T* to, const T* from)
{
    constexpr int BYTES = COUNT * sizeof(T);
    if constexpr (BYTES == 16) {
        unsigned x[4];
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(from));
        memcpy(to, x, BYTES);
    } else if constexpr (BYTES == 8) {
        unsigned long long x;
        asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(x) : "l"(from));
        memcpy(to, &x, BYTES);
    } else if constexpr (BYTES == 4) {
        unsigned x;
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(from));
        memcpy(to, &x, BYTES);
    } else {
        unsigned short x;
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(x) : "l"(from));
        memcpy(to, &x, BYTES);
    }
}

// A warp's part of an operand: rows of A or columns of B ("indices"), LANES · COUNT of them, COUNT for each lane, and of each EACH
// elements along k. Where elements along k follow each other in memory, a lane has every LANES-th index; else COUNT or fewer that
// follow each other, as many as one access of at most VECTOR elements has, and the next ones LANES accesses further.
template <typename T, bool ALONG_K, int LANES, int COUNT, int EACH, int VECTOR> struct Operand {
    static constexpr int ALONG = VECTOR < EACH ? VECTOR : EACH, WIDTH = VECTOR < COUNT ? VECTOR : COUNT, ACCESSES = COUNT / WIDTH;
    const T* rows[ALONG_K ? COUNT : 1];
    int places[ACCESSES];
    long long step;  // from one index to the next where ALONG_K, else from one k to the next

    // The lane's number among LANES, and where its elements along k begin.
    __device__ Operand(const T* from, long long step, int first, int size, int lane, int k) : step(step)
    {
        if (ALONG_K)
            #pragma unroll
            for (int j = 0; j < COUNT; j++) rows[j] = from + min(first + index(j, lane), size - 1) * step + k;
        else {
            rows[0] = from + k * step;
            #pragma unroll
            for (int i = 0; i < ACCESSES; i++) places[i] = min(first + index(i * WIDTH, lane), size - WIDTH);
        }
    }
    static __device__ __forceinline__ int index(int j, int lane)
    {
        return ALONG_K ? lane + LANES * j : (j / WIDTH * LANES + lane) * WIDTH + j % WIDTH;
    }

    struct Fragments {
        T elements[ALONG_K ? COUNT : EACH][ALONG_K ? EACH : COUNT];
        __device__ __forceinline__ T at(int j, int e) const { return ALONG_K ? elements[j][e] : elements[e][j]; }
    };

    // From k on, all that the lane takes; or only `has` along k, and zeros.
    __device__ __forceinline__ void get(Fragments& to, int k) const
    {
        if constexpr (ALONG_K) {
            #pragma unroll
            for (int j = 0; j < COUNT; j++)
                #pragma unroll
                for (int e = 0; e < EACH; e += ALONG) load<ALONG>(&to.elements[j][e], rows[j] + k + e);
        } else {
            const T* row = rows[0] + k * step;
            #pragma unroll
            for (int e = 0; e < EACH; e++, row += step)
                #pragma unroll
                for (int i = 0; i < ACCESSES; i++) load<WIDTH>(&to.elements[e][i * WIDTH], row + places[i]);
        }
    }
    __device__ __forceinline__ void get(Fragments& to, int k, int has) const
    {
        #pragma unroll
        for (int e = 0; e < EACH; e++)
            #pragma unroll
            for (int j = 0; j < COUNT; j++) {
                T& x = ALONG_K ? to.elements[j][e] : to.elements[e][j];
                const T* row = rows[ALONG_K ? j : 0];
                x = e >= has ? T(0) : ALONG_K ? row[k + e] : row[(k + e) * step + places[j / WIDTH] + j % WIDTH];
            }
    }
};

// Adds the sums of the SLICES of a block, which TEAM warps have each, always in the same order; the first TEAM warps get them.
template <int SLICES, int TEAM, int COUNT, typename Sum> __device__ __forceinline__ void add_slices(Sum* sums, void* memory)
{
    typedef Sum Place[COUNT][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (int half = SLICES / 2; half > 0; half /= 2) {
        const bool gives = warp >= half * TEAM && warp < 2 * half * TEAM;
        Place& place = ((Place*)memory)[gives ? warp - half * TEAM : warp];
        if (gives)
            #pragma unroll
            for (int i = 0; i < COUNT; i++) place[i][lane] = sums[i];
        __syncthreads();
        if (warp < half * TEAM)
            #pragma unroll
            for (int i = 0; i < COUNT; i++) sums[i] += place[i][lane];
        __syncthreads();
    }
}

// The multiplication of the slice that begins at k, in steps of NEXT up to `whole` by `get(buffer, k)` and `multiply(buffer)`, with
// AHEAD loads under way.
template <int AHEAD, int NEXT, typename Get, typename Multiply>
__device__ __forceinline__ int stream(int k, int whole, Get get, Multiply multiply)
{
    #pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (k + i * NEXT < whole) get(i, k + i * NEXT);
    while (k < whole)
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (k >= whole) break;
            multiply(i, k);
            if (k + AHEAD * NEXT < whole) get(i, k + AHEAD * NEXT);
            k += NEXT;
        }
    return k;
}
