// What kernels share whose warps multiply slices of k of their own, straight from global memory: how lanes load an operand, and how
// the sums of the slices are added.
#pragma once
#include "strided.cuh"

// COUNT elements that follow each other, in one access.
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

// The same of an operand that no other warp of the multiprocessor reads: it leaves the first-level cache to others. ALONG_K: the next
// 256 bytes are soon read too.
template <bool ALONG_K, int COUNT, typename T> __device__ __forceinline__ void load_once(T* to, const T* from)
{
    if constexpr (COUNT * sizeof(T) == 16) {
        unsigned x[4];
        if (ALONG_K)
            asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(from));
        else
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(from));
        memcpy(to, x, 16);
    } else load<COUNT>(to, from);  // another access of the warp takes the rest of the sector
}

// A warp's part of an operand: rows of A or columns of B ("indices"), LANES · COUNT of them, COUNT for each lane, and of each EACH
// elements along k. Where elements along k follow each other in memory, a lane has every LANES-th index; else COUNT or fewer that
// follow each other, as many as one access of at most VECTOR elements has, and the next ones LANES accesses further.
template <typename T, bool ALONG_K, int LANES, int COUNT, int EACH, int VECTOR, bool ONCE = false> struct Operand {
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

    // The inverse: which element of which lane an index is.
    static __device__ __forceinline__ int element(int index)
    {
        return ALONG_K ? index / LANES : index / (WIDTH * LANES) * WIDTH + index % WIDTH;
    }
    static __device__ __forceinline__ int lane_of(int index) { return ALONG_K ? index % LANES : index / WIDTH % LANES; }

    template <int WIDE> static __device__ __forceinline__ void take(T* to, const T* from)
    {
        if (ONCE) load_once<ALONG_K, WIDE>(to, from);
        else load<WIDE>(to, from);
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
                for (int e = 0; e < EACH; e += ALONG) take<ALONG>(&to.elements[j][e], rows[j] + k + e);
        } else {
            const T* row = rows[0] + k * step;
            #pragma unroll
            for (int e = 0; e < EACH; e++, row += step)
                #pragma unroll
                for (int i = 0; i < ACCESSES; i++) take<WIDTH>(&to.elements[e][i * WIDTH], row + places[i]);
        }
    }
    __device__ __forceinline__ void get(Fragments& to, int k, int has) const
    {
        if constexpr (ALONG_K) {
            if (has >= EACH) get(to, k);
            else
                #pragma unroll
                for (int e = 0; e < EACH; e++)
                    #pragma unroll
                    for (int j = 0; j < COUNT; j++) to.elements[j][e] = e < has ? rows[j][k + e] : T{};
        } else
            #pragma unroll
            for (int e = 0; e < EACH; e++)
                #pragma unroll
                for (int i = 0; i < ACCESSES; i++)
                    if (e < has) load<WIDTH>(&to.elements[e][i * WIDTH], rows[0] + (k + e) * step + places[i]);
                    else
                        #pragma unroll
                        for (int j = 0; j < WIDTH; j++) to.elements[e][i * WIDTH + j] = T{};
    }
};

// The sums of all warps of a block in shared memory, COUNT of each lane, of numbers of several words a part of them at a time. `total`
// adds those of the SLICES, of TEAM warps each, always in the same order.
template <int SLICES, int TEAM, int COUNT, typename Sum> struct SliceSums {
    static constexpr int WORDS = sizeof(Sum) / 4, PASSES = COUNT < WORDS ? COUNT : WORDS, EACH = COUNT / PASSES;
    static constexpr int STEP = 33;  // so that neighbours of C, which lie in several registers or lanes, are in several banks
    Sum* sums;
    __device__ __forceinline__ void put(const Sum (&from)[COUNT], int pass)
    {
        Sum* to = sums + threadIdx.x / 32 * EACH * STEP + threadIdx.x % 32;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i / EACH == pass) to[i % EACH * STEP] = from[i];
        __syncthreads();
    }
    __device__ __forceinline__ Sum total(int warp, int i, int lane) const
    {
        const Sum* from = sums + (warp * EACH + i % EACH) * STEP + lane;
        Sum sum = from[0];
        #pragma unroll
        for (int slice = 1; slice < SLICES; slice++) sum += from[slice * TEAM * EACH * STEP];
        return sum;
    }
};

// Stores COUNT elements of a row of C, or those of them that C has, in one access where it may be.
template <int COUNT, typename Out> __device__ __forceinline__ void store(Out* to, const Out* from, int has, long long step)
{
    constexpr int BYTES = COUNT * sizeof(Out);
    if (BYTES == 16 && C_VECTOR == 16 && step == 1 && has >= COUNT) {
        uint4 all;
        memcpy(&all, from, BYTES == 16 ? 16 : 0);
        *(uint4*)to = all;
    } else if (BYTES == 8 && C_VECTOR >= 8 && step == 1 && has >= COUNT) {
        uint2 all;
        memcpy(&all, from, BYTES == 8 ? 8 : 0);
        *(uint2*)to = all;
    } else
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i < has) to[i * step] = from[i];
}

// Calls `store(row, column)` for each element of a tile of C of ROWS × COLUMNS; neighbouring threads get neighbours in memory.
template <int ROWS, int COLUMNS, typename Store> __device__ __forceinline__ void for_each_element(bool down, Store store)
{
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x)
        if (down) store(i % ROWS, i / ROWS);
        else store(i / COLUMNS, i % COLUMNS);
}

// Multiplies the warp's chunks of k, CHUNK elements each, up to `whole`: of each turn AHEAD chunks that follow each other, which
// `get(buffer, k)` loads while those of the turn before wait for `multiply(buffer, k)`. Turns of a warp are TURN elements apart.
template <int AHEAD, int CHUNK, int TURN, typename Get, typename Multiply>
__device__ __forceinline__ void stream(int k, int whole, Get get, Multiply multiply)
{
    #pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (k + i * CHUNK < whole) get(i, k + i * CHUNK);
    for (; k < whole; k += TURN)
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (k + i * CHUNK >= whole) break;
            multiply(i, k + i * CHUNK);
            if (k + i * CHUNK + TURN < whole) get(i, k + i * CHUNK + TURN);
        }
}
