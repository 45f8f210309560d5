// Groups of which only the GPU knows the sizes: their ends are numbers in its memory, as those of a mixture of experts. GROUPED says what
// they divide: the rows of A and C (OF_ROWS), where each group has a B of its own, or k (OF_K), where each has a C of its own.
#pragma once

#define OF_ROWS 1
#define OF_K 2
#ifndef GROUPED
#define GROUPED 0
#endif
#if GROUPED  // kernels have a parameter: the ends of the groups
#define OFFSETS offsets
#define OFFSETS_PARAMETER const int* offsets,
#else
#define OFFSETS nullptr
#define OFFSETS_PARAMETER
#endif

struct Range { int begin, end; };

// Group `group` of `count`, whose ends are `offsets`, of `size` rows or steps. Number `count` is what follows the last group. Offsets that
// decrease or reach beyond `size` are cut, so nothing outside is read or written.
__device__ __forceinline__ Range range_of_group(const int* offsets, int group, int count, int size)
{
    const int begin = group > 0 ? min(max(offsets[group - 1], 0), size) : 0;
    const int end = group < count ? min(offsets[group], size) : size;
    return { begin, max(begin, end) };
}

// A band: HEIGHT rows of one group, or fewer at its end. `number` is its number within the group.
struct Band { int group, number; Range rows; };

// Band `band` of all groups in their order, and of what follows the last group. A warp looks at 32 groups at once, and all of its threads
// must ask. Beyond the last band the number is how many bands there are.
template <int HEIGHT> __device__ __forceinline__ Band find_band(const int* offsets, int count, int size, int band)
{
    const int lane = threadIdx.x % 32;
    int before = 0;  // bands of earlier groups
    for (int first = 0; first <= count; first += 32) {
        const Range rows = first + lane <= count ? range_of_group(offsets, first + lane, count, size) : Range { size, size };
        const int own = (rows.end - rows.begin + HEIGHT - 1) / HEIGHT;
        int through = own;  // bands up to this group, of these 32
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int others = __shfl_up_sync(0xFFFFFFFF, through, step);
            through += lane >= step ? others : 0;
        }
        const unsigned later = __ballot_sync(0xFFFFFFFF, before + through > band);
        if (later) {
            const int found = __ffs(later) - 1, inside = before + __shfl_sync(0xFFFFFFFF, through - own, found);
            return { first + found, band - inside, { __shfl_sync(0xFFFFFFFF, rows.begin, found), __shfl_sync(0xFFFFFFFF, rows.end, found) } };
        }
        before += __shfl_sync(0xFFFFFFFF, through, 31);
    }
    return { count, before, { size, size } };
}
