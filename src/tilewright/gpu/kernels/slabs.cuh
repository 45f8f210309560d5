// Copies of operands into shared memory, by all threads of a block, for kernels that take pointers and strides.
#pragma once

#include "../../kernels/cuda/prelude.cuh"
#include "lists.cuh"

// A tile of C: its first row and column, its number among all products and parts, its first step of k, and its steps.
struct Place {
    int top, left, z, product, first, length;
};

// The tiles of C, of all products and parts of k.
__device__ __forceinline__ unsigned tiles_of_call(const Call& call)
{
    return (unsigned)((call.m - 1) / BM + 1) * ((call.n - 1) / BN + 1) * call.batch * call.parts;
}

// Blocks that run together should share rows of A and columns of B in the second-level cache: they are numbered down GROUP
// tiles, then across. Of 8192×8192, 132 tiles of 128×256 at a time read 8·128 rows and 17·256 columns; in row order, 5·128 and
// 32·256.
__device__ __forceinline__ Place place_of_tile(const Call& call, unsigned number)
{
    const unsigned down = (call.m - 1) / BM + 1, across = (call.n - 1) / BN + 1;
    const unsigned z = number / (down * across), tile = number - z * (down * across);
    const unsigned group = tile / (GROUP * across), inside = tile % (GROUP * across), rows = min(GROUP, down - group * GROUP);
    const long long first = (long long)(z % call.parts) * call.part_steps * BK;
    const int length = (int)max(0ll, min((long long)call.part_steps * BK, call.k - first));
    return { (int)(group * GROUP + inside % rows) * BM, (int)(inside / rows) * BN, (int)z, (int)(z / call.parts), (int)first, length };
}

__device__ __forceinline__ Place place_of_block(const Call& call) { return place_of_tile(call, block_of_call(call)); }

template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    static_assert(BYTES >= 2 && BYTES <= 16, "an element, or what cp.async copies");
    if (BYTES == 2) *(unsigned short*)to = inside ? *(const unsigned short*)from : 0;
    else if (BYTES == 4) copy_async_4(to, from, inside);
    else if (BYTES == 8) copy_async_8(to, from, inside);
    else copy_async_16(to, from, inside);
}

__host__ __device__ constexpr int largest_power_of_two(int most)
{
    return most < 2 ? 1 : 2 * largest_power_of_two(most / 2);
}

// Steps in fours, of which the places 0 to 3 have 0, 1, 2, 3 first, or 2, 3, 0, 1 and so on: so four float64 each of four places,
// and eight each of two neighbours, lie in different banks.
__device__ __forceinline__ int swizzled(int step, int place)
{
    return step ^ (place % 2 * 8 | place / 2 % 2 * 4);
}

// What a thread copies of BK steps of SIDE rows of A, or columns of B, a stage: WIDTH numbers at a time, which are elements, or of
// complex ones one of two PLANES, real and imaginary. In memory the elements of a step follow each other if ACROSS, else the steps
// of a row, of which AT_ONCE threads copy some. In shared memory number (step, place) of a plane lies at step·STEP + place·NEXT;
// with SWIZZLE, steps are exchanged in fours, by the place as ``swizzled`` says.
// Only k must be exact, so the first stage is the short one, of 1 to BK steps: the main loop has whole stages only. Beyond the last
// place others are copied again: what they give is not stored, and no copy needs a guard.
template <typename T, int PLANES, int SIDE, bool ACROSS, int WIDTH, int THREADS, int AT_ONCE, int STEP, int NEXT, bool SWIZZLE>
struct Slab {
    static constexpr int LANES = BK / WIDTH < AT_ONCE ? BK / WIDTH : AT_ONCE;
    static constexpr int MOST = THREADS * WIDTH / SIDE, STEPS = ACROSS ? largest_power_of_two(MOST < BK ? MOST : BK) : LANES * WIDTH;
    static constexpr int PASS = ACROSS ? THREADS / STEPS * WIDTH : THREADS / LANES, COPIES = (SIDE - 1) / PASS + 1;
    static constexpr int PLANE = NEXT == 1 ? BK * STEP : SIDE * NEXT;
    static_assert(BK % STEPS == 0, "copies cover the slab");
    static_assert(PLANES == 1 || WIDTH == 1, "numbers of a plane do not follow each other in memory");
    static_assert(!SWIZZLE || PASS % 4 == 0, "all places of a thread are swizzled alike");

    const T *operand, *from[COPIES];
    long long inner;  // numbers from one step to the next
    int step, place;

    // `operand` points to the first step of this part; the tile begins at place `begin` of `extent`.
    __device__ __forceinline__ Slab(const T* operand, int begin, int extent, long long outer, long long inner)
        : operand(operand), inner(inner * PLANES)
    {
        const int thread = threadIdx.x;
        step = ACROSS ? thread * WIDTH / PASS : thread % LANES * WIDTH;
        place = ACROSS ? thread * WIDTH % PASS : thread / LANES;
        #pragma unroll
        for (int l = 0; l < COPIES; l++) {
            // If all threads beyond the edge copied the same number, they would wait for each other.
            int at = begin + place + l * PASS;
            if (at >= extent) at = at >= SIDE && at - SIDE < extent ? at - SIDE : at % extent;
            from[l] = operand + (at * outer + step * inner) * PLANES;
        }
    }

    // The next `steps` steps. If these are BK, as in the main loop, the compiler knows that everything is inside.
    __device__ __forceinline__ void copy(T* stage, int steps)
    {
        #pragma unroll
        for (int i = 0; i < BK; i += STEPS) {
            const bool inside = steps == BK || step + i < steps;
            T* to = stage + place * NEXT + (SWIZZLE ? swizzled(step + i, place) : step + i) * STEP;
            #pragma unroll
            for (int l = 0; l < COPIES; l++)
                #pragma unroll
                for (int plane = 0; plane < PLANES; plane++) {
                    const T* source = from[l] + (ACROSS ? 0 : i * PLANES) + plane;
                    if (SIDE % PASS == 0 || place + l * PASS < SIDE)
                        copy_async<WIDTH * sizeof(T)>(to + l * PASS * NEXT + plane * PLANE, inside ? source : operand, inside);
                }
            if (ACROSS) advance((steps == BK ? STEPS : min(max(steps - i, 0), STEPS)) * inner);
        }
        if (!ACROSS) advance(steps * PLANES);
    }

    __device__ __forceinline__ void advance(long long numbers)
    {
        #pragma unroll
        for (int l = 0; l < COPIES; l++) from[l] += numbers;
    }
};
