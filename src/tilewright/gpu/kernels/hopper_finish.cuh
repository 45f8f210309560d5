// What becomes of the sums of a tile before they are stored, as ``pack/finish.cu`` computes it, in the registers of the kernel itself.
// Here rows and columns are those of the kernel's C. BIASED and SCALED say where the bias and the scales have a number each.
#pragma once

#if FINISHED || BLOCKS
struct Vectors {  // addresses; those that are absent are not used
    const void* bias;
    const float *row_scales, *column_scales;
};
#endif

#if FINISHED
#define BY_ROW 1
#define BY_COLUMN 2
typedef float Wide;
#include "finish.cuh"

typedef float2 Values;  // of two neighbours in a row

struct Slab { float2 scales[SLAB / 8], biases[SLAB / 8]; };  // of a thread's columns, two of each eight

// The numbers of a thread's two rows are in its registers. Those of the tile's columns are loaded before the products, which hide the
// latency, and are in shared memory after them.
struct Finish {
    static constexpr int EACH = (BN + 127) / 128;  // columns for each thread of a group
    typedef Number<BIAS>::Bits Bias;
    const Call& call;
    // As they are in memory: nothing is computed of them before the products, so no thread waits for them there.
    float row_scales[2], column_scales[EACH];
    Bias row_biases[2], column_biases[EACH];

    __device__ __forceinline__ Finish(const Call& call, const Vectors& v, int top, int left, int bottom) : call(call)
    {
        const int thread = threadIdx.x % 128;
        const auto* bias = (const Bias*)v.bias;
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = min(top + row_of_sums(thread / 32, thread % 32, r), bottom - 1);
            if (SCALED & BY_ROW) row_scales[r] = v.row_scales[row * call.row_scale_step];
            if (BIASED == BY_ROW) row_biases[r] = bias[row * call.bias_step];
        }
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int column = min(left + (thread + 128 * i) % BN, call.n - 1);
            if (SCALED & BY_COLUMN) column_scales[i] = v.column_scales[column * call.column_scale_step];
            if (BIASED == BY_COLUMN) column_biases[i] = bias[column * call.bias_step];
        }
    }

    // Makes the numbers of the columns known to the whole group.
    __device__ __forceinline__ void share(float (&columns)[VECTORS + !VECTORS][BN], int half) const
    {
        if (VECTORS == 0) return;
        if (!STORE_BOXES) group_sync(1 + half, 128);  // those of the tile before have been read
        const int thread = threadIdx.x % 128;
        #pragma unroll
        for (int i = 0; i < EACH; i++)
            if (BN % 128 == 0 || thread + 128 * i < BN) {
                if (SCALED & BY_COLUMN) columns[0][thread + 128 * i] = column_scales[i];
                if (BIASED == BY_COLUMN) columns[VECTORS - 1][thread + 128 * i] = Number<BIAS>::wide(column_biases[i]);
            }
        group_sync(1 + half, 128);
    }

    // The numbers of a thread's columns in the slab that begins at this column of the tile, all loaded at once.
    __device__ __forceinline__ Slab slab(const float (&columns)[VECTORS + !VECTORS][BN], int left) const
    {
        Slab found;
        #pragma unroll
        for (int i = 0; i < SLAB / 8; i++) {
            if (left + i * 8 >= BN) break;
            const int column = left + i * 8 + threadIdx.x % 4 * 2;
            if (SCALED & BY_COLUMN) found.scales[i] = *(const float2*)&columns[0][column];
            if (BIASED == BY_COLUMN) found.biases[i] = *(const float2*)&columns[VECTORS - 1][column];
        }
        return found;
    }

    // The results of sums `i` of a thread in a slab and of the next one, its neighbour to the right.
    __device__ __forceinline__ Values pair(SUM x, SUM y, int i, const Slab& slab, float2 old) const
    {
        const int r = i / 2 % 2;
        Values value = { (float)x, (float)y };
        if (FACTORS) {
            const float factor = SCALED & BY_ROW ? call.alpha * row_scales[r] : call.alpha;
            value = { value.x * factor, value.y * factor };
        }
        if (SCALED & BY_COLUMN) value = { value.x * slab.scales[i / 4].x, value.y * slab.scales[i / 4].y };
        if (ADDS) value = { value.x + call.beta * old.x, value.y + call.beta * old.y };
        if (BIASED == BY_ROW) {
            const float bias = Number<BIAS>::wide(row_biases[r]);
            value = { value.x + bias, value.y + bias };
        }
        if (BIASED == BY_COLUMN) value = { value.x + slab.biases[i / 4].x, value.y + slab.biases[i / 4].y };
        return { activated(value.x), activated(value.y) };
    }
};
#else
struct Values { SUM x, y; };  // of two neighbours in a row

struct Slab {};

struct Finish {
    __device__ __forceinline__ void share(float (&)[1][BN], int) const {}
    __device__ __forceinline__ Slab slab(const float (&)[1][BN], int) const { return {}; }
    __device__ __forceinline__ Values pair(SUM x, SUM y, int, const Slab&, float2) const { return { x, y }; }
};
#endif
