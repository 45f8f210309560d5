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

template <int HEIGHT> __device__ __forceinline__ int bands_of(Range rows) { return (rows.end - rows.begin + HEIGHT - 1) / HEIGHT; }

// The bands of all groups, and of what follows the last one. All threads of a warp must ask.
template <int HEIGHT> __device__ __forceinline__ int count_bands(const int* offsets, int count, int size)
{
    int own = 0;
    #pragma unroll 4
    for (int group = threadIdx.x % 32; group <= count; group += 32) own += bands_of<HEIGHT>(range_of_group(offsets, group, count, size));
    return __reduce_add_sync(0xFFFFFFFF, own);
}

// Band `band` of these. A warp looks at 32 groups at once. Beyond the last one it is a band without rows.
template <int HEIGHT> __device__ __forceinline__ Band find_band(const int* offsets, int count, int size, int band)
{
    const int lane = threadIdx.x % 32;
    int before = 0;  // bands of earlier groups
    for (int first = 0; first <= count; first += 32) {
        const Range rows = first + lane <= count ? range_of_group(offsets, first + lane, count, size) : Range { size, size };
        const int own = bands_of<HEIGHT>(rows), all = __reduce_add_sync(0xFFFFFFFF, own);
        if (before + all <= band) {
            before += all;
            continue;
        }
        int through = before + own;  // bands up to this group
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int others = __shfl_up_sync(0xFFFFFFFF, through, step) - before;
            through += lane >= step ? others : 0;
        }
        const int found = __ffs(__ballot_sync(0xFFFFFFFF, through > band)) - 1, of_group = __shfl_sync(0xFFFFFFFF, through - own, found);
        return { first + found, band - of_group, { __shfl_sync(0xFFFFFFFF, rows.begin, found), __shfl_sync(0xFFFFFFFF, rows.end, found) } };
    }
    return { count, 0, { size, size } };
}
