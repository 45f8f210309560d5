// Copies of operands into shared memory, by all threads of a block, for kernels that take pointers and strides.
#pragma once

#include "../../kernels/cuda/prelude.cuh"
#include "strided.cuh"

// The tile of a block: its first row and column, its number among all products and parts, its first step of k, and its steps.
struct Place {
    int top, left, z, product, first, length;
};

// Blocks that run together should share rows of A and columns of B in the second-level cache: they are numbered down GROUP
// tiles, then across. Of 8192×8192, 132 tiles of 128×256 at a time read 8·128 rows and 17·256 columns; in row order, 5·128 and
// 32·256.
__device__ __forceinline__ Place place_of_block(const Call& call)
{
    const unsigned down = (call.m - 1) / BM + 1, across = (call.n - 1) / BN + 1;
    const unsigned z = blockIdx.x / (down * across), tile = blockIdx.x - z * (down * across);
    const unsigned group = tile / (GROUP * across), inside = tile % (GROUP * across), rows = min(GROUP, down - group * GROUP);
    const long long first = (long long)(z % call.parts) * call.part_steps * BK;
    const int length = (int)max(0ll, min((long long)call.part_steps * BK, call.k - first));
    return { (int)(group * GROUP + inside % rows) * BM, (int)(inside / rows) * BN, (int)z, (int)(z / call.parts), (int)first, length };
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    static_assert(BYTES >= 2 && BYTES <= 16, "an element, or what cp.async copies");
    if (BYTES == 2) *(unsigned short*)to = inside ? *(const unsigned short*)from : 0;
    else if (BYTES == 4) copy_async_4(to, from, inside);
    else if (BYTES == 8) copy_async_8(to, from, inside);
    else copy_async_16(to, from, inside);
}

__host__ __device__ constexpr int power_of_two(int most)
{
    return most < 2 ? 1 : 2 * power_of_two(most / 2);
}

// What a thread copies of BK steps of SIDE rows of A, or columns of B, a stage. In memory the elements of a step follow each other
// if ACROSS, else the steps of a row. In shared memory element (step, place) lies at step·STEP + place·NEXT, and if it has a
// SWIZZLE, odd places have these bits of the step inverted.
// Places beyond the edge repeat the last one: what they give is not stored, and no copy needs a guard. Only k must be exact, so
// the first stage is the short one, of 1 to BK steps: the main loop has whole stages only.
// KEEP: registers hold the address of every copy; else that is computed again each time.
template <typename T, int SIDE, bool ACROSS, int WIDTH, int THREADS, int STEP, int NEXT, int SWIZZLE, bool KEEP>
struct Slab {
    // All threads at once copy STEPS steps of PASS places: where not ACROSS, LANES threads copy steps of one place.
    static constexpr int LANES = BK / WIDTH < 8 ? BK / WIDTH : 8;
    static constexpr int MOST = THREADS * WIDTH / SIDE, STEPS = ACROSS ? power_of_two(MOST < BK ? MOST : BK) : LANES * WIDTH;
    static constexpr int PASS = ACROSS ? THREADS / STEPS * WIDTH : THREADS / LANES, COPIES = (SIDE - 1) / PASS + 1;
    static_assert(BK % STEPS == 0, "copies cover the slab");
    static_assert(SWIZZLE == 0 || PASS % 2 == 0, "all places of a thread are odd, or none is");

    const T *operand, *from[KEEP ? COPIES : 1];
    long long outer, inner;  // the distance of two places, and of two steps
    int step, place, last;

    // `operand` points to the first element of this part's first step; the tile begins at place `begin` of `extent`.
    __device__ __forceinline__ Slab(const T* operand, int begin, int extent, long long outer, long long inner)
        : operand(operand), outer(outer), inner(inner)
    {
        const int thread = threadIdx.x;
        step = ACROSS ? thread * WIDTH / PASS : thread % LANES * WIDTH;
        place = ACROSS ? thread * WIDTH % PASS : thread / LANES;
        last = extent - begin - (ACROSS ? WIDTH : 1);
        from[0] = operand + begin * outer + step * inner;
        if (KEEP)
            #pragma unroll
            for (int l = COPIES - 1; l >= 0; l--) from[KEEP ? l : 0] = from[0] + min(place + l * PASS, last) * outer;
    }

    __device__ __forceinline__ const T* source(int l)
    {
        if (KEEP) return from[KEEP ? l : 0];
        int at = min(place + l * PASS, last);
        asm volatile("" : "+r"(at));  // otherwise the compiler keeps the address
        return from[0] + at * outer;
    }

    // The next `steps` steps. If these are BK, as in the main loop, the compiler knows that everything is inside.
    __device__ __forceinline__ void copy(T* stage, int steps)
    {
        #pragma unroll
        for (int i = 0; i < BK; i += STEPS) {
            const bool inside = steps == BK || step + i < steps;
            T* to = stage + place * NEXT + (SWIZZLE ? (step + i) ^ place % 2 * SWIZZLE : step + i) * STEP;
            #pragma unroll
            for (int l = 0; l < COPIES; l++)
                if (SIDE % PASS == 0 || place + l * PASS < SIDE)
                    copy_async<WIDTH * sizeof(T)>(
                        to + l * PASS * NEXT, inside ? source(l) + (ACROSS ? 0 : i) : operand, inside);
            if (ACROSS) advance((steps == BK ? STEPS : min(max(steps - i, 0), STEPS)) * inner);
        }
        if (!ACROSS) advance(steps);
    }

    __device__ __forceinline__ void advance(long long elements)
    {
        #pragma unroll
        for (int l = 0; l < (KEEP ? COPIES : 1); l++) from[l] += elements;
    }
};
