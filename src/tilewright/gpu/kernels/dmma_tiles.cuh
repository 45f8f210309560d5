// The product of float64 by tensor cores of Hopper, from stages of shared memory that four warps fill and the others multiply.
// A kernel includes it after LINE, and fills stages as the copy engine does, in swizzles of 128 bytes.
#pragma once

#include "../../kernels/cuda/prelude.cuh"
#include "dmma_places.cuh"
#include "hopper.cuh"
#include "ring.cuh"

constexpr int FILLING = 128, THREADS = FILLING + WARPS * 32;  // the first four warps fill stages

// Registers of a thread at launch. Those that fill stages keep LEFT, and give the others to those that multiply.
constexpr int LAUNCHED = 65536 / PER_SM / THREADS / 8 * 8, LEFT = 24, TAKEN = LAUNCHED + (LAUNCHED - LEFT) * (FILLING / 32) / WARPS / 8 * 8;
constexpr bool GIVES = LAUNCHED < 232;

struct Shared {
    double a[STAGES][BM * LINE], b[STAGES][BN * LINE];
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

// Of 16 steps of k in a stage, a lane takes 4·t and the next one, then 4·t + 2 and the next one; where t > 1, the latter are the
// first two. So the 8 lanes that a load of 16 bytes serves at a time find 8 different places of the swizzle, however an operand lies:
// as rows of 16 steps, or ACROSS them, as boxes of 16 places, whose rows are steps. This is the place of the first load, in bytes;
// those of the others differ in a few bits.
template <bool ACROSS> __device__ __forceinline__ unsigned place_of_lane(int g, int t)
{
    const int step = 4 * t + t / 2 * 2;
    return ACROSS ? step * 128 + (g ^ step % 8) * 16 : g * 128 + (2 * t + t / 2 ^ g) * 16;
}
constexpr unsigned NEXT_HALF_ACROSS = 2 * 128 ^ 2 * 16, NEXT_STEP_ACROSS = 128 ^ 16, NEXT_HALF = 16;

__device__ __forceinline__ double2 load_pair(const char* from) { return *(const double2*)from; }

// One number. Two of these in a row the compiler would load at once, and move them to where the instruction wants them.
__device__ __forceinline__ double load_single(const char* from)
{
    double x;
    asm volatile("ld.volatile.shared.f64 %0, [%1];" : "=d"(x) : "r"(shared_address(from)) : "memory");
    return x;
}

struct Fragments {  // of 8 steps of k
    double first[MMAS_1][4], second[MMAS_2][2];

    __device__ __forceinline__ void load(const char* of_first, const char* of_second, unsigned at_first, unsigned at_second, int half)
    {
        #pragma unroll
        for (int r = 0; r < MMAS_1; r++)
            #pragma unroll
            for (int j = 0; j < 2; j++)
                if (FIRST_ACROSS) {  // two neighbours of step j, which are rows g and g + 8
                    const double2 v = load_pair(of_first + r * 2048 + (at_first ^ half * NEXT_HALF_ACROSS ^ j * NEXT_STEP_ACROSS));
                    first[r][2 * j] = v.x, first[r][2 * j + 1] = v.y;
                } else
                    #pragma unroll
                    for (int h = 0; h < 2; h++) first[r][2 * j + h] = load_single(of_first + r * 2048 + h * 1024 + (at_first ^ half * NEXT_HALF) + j * 8);
        #pragma unroll
        for (int s = 0; s < MMAS_2; s++)
            if (SECOND_ACROSS) {  // two neighbours of a step are columns of two MMAs
                const double2 v = load_pair(of_second + s / 2 * 2048 + (at_second ^ half * NEXT_HALF_ACROSS ^ s % 2 * NEXT_STEP_ACROSS));
                second[s / 2 * 2][s % 2] = v.x, second[s / 2 * 2 + 1][s % 2] = v.y;
            } else {
                const double2 v = load_pair(of_second + s * 1024 + (at_second ^ half * NEXT_HALF));
                second[s][0] = v.x, second[s][1] = v.y;
            }
    }
};

struct Sums {
    double of[MMAS_1][MMAS_2][4];

    // Of two columns that are loaded at once the steps are not in consecutive registers: then each step has an instruction of its own.
    __device__ __forceinline__ void add(const Fragments& f)
    {
        #pragma unroll
        for (int s = 0; s < MMAS_2; s++)
            #pragma unroll
            for (int r = 0; r < MMAS_1; r++)
                if (SECOND_ACROSS)
                    #pragma unroll
                    for (int j = 0; j < 2; j++) multiply_f64<1>(of[r][s], { f.first[r][2 * j], f.first[r][2 * j + 1] }, { f.second[s][j] });
                else multiply_f64<2>(of[r][s], f.first[r], f.second[s]);
    }
};

// A warp that multiplies stages as they fill up, and gives them back.
struct Multiplier {
    Shared& shared;
    const int warp = threadIdx.x / 32 - FILLING / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;  // of its part of the tile
    const unsigned at_first = place_of_lane<FIRST_ACROSS>(g, t), at_second = place_of_lane<SECOND_ACROSS>(g, t);
    Ring<STAGES> ring;
    int before_oldest = BUFFERS, oldest = 0;
    Fragments fragments[BUFFERS];

    static constexpr int COLUMNS = SWAPPED ? 16 : 8;  // of C in an MMA

    __device__ __forceinline__ Multiplier(Shared& shared) : shared(shared) {}

    // The sums of `steps` stages, at least one.
    __device__ __forceinline__ Sums multiply(int steps)
    {
        Sums sums = {};
        wait_and_release();
        if (BUFFERS > 1) load(0);
        for (int step = 1;; step++) {
            const bool more = step < steps;
            if (BUFFERS > 1) {  // each half of a stage is loaded while the one before is multiplied
                load(1);
                sums.add(fragments[0]);
                ring.advance();
                if (more) {
                    wait_and_release();
                    load(0);
                }
                sums.add(fragments[BUFFERS - 1]);
            } else {
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    load(half);
                    sums.add(fragments[0]);
                }
                ring.advance();
                if (more) wait_and_release();
            }
            if (!more) return sums;
        }
    }

    // Stores the sums in the tile that begins at row `top` and column `left` of C, whose rows end at `bottom`, and columns at `n`.
    // IN_PAIRS: rows begin at multiples of 16 bytes, and n is even.
    template <bool IN_PAIRS>
    __device__ __forceinline__ void store(const Sums& sums, double* c, long long row_c, int top, int left, int bottom, int n) const
    {
        constexpr int ROWS = SWAPPED ? MMAS_2 : MMAS_1, BLOCKS = WN / COLUMNS;
        #pragma unroll
        for (int q = 0; q < ROWS; q++)
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                double2 pairs[BLOCKS];  // of the lane's elements those that lie in one row of C: of both h, or of both e
                #pragma unroll
                for (int j = 0; j < BLOCKS; j++) {
                    const double(&of)[4] = sums.of[SWAPPED ? j : q][SWAPPED ? q : j];
                    pairs[j] = SWAPPED ? make_double2(of[i], of[2 + i]) : make_double2(of[2 * i], of[2 * i + 1]);
                }
                const int row = top + y + (SWAPPED ? in_second(q, i, t) : in_first(q, i, g));
                double* to = c + row * row_c + left + x;
                if (!IN_PAIRS) store_row<BLOCKS>(pairs, to, row < bottom ? n - left - x : 0);
                else
                    #pragma unroll
                    for (int j = 0; j < BLOCKS; j++) {
                        const int col = j * COLUMNS + 2 * (SWAPPED ? g : t);
                        if (row < bottom && left + x + col < n) *(double2*)(to + col) = pairs[j];
                    }
            }
    }

    // Stores the first `columns` numbers of the row of WN that the pairs of IN_ROW lanes are.
    template <int BLOCKS>
    __device__ __forceinline__ void store_row(const double2 (&pairs)[BLOCKS], double* to, int columns) const
    {
        constexpr int IN_ROW = COLUMNS / 2;
        const int in_row = SWAPPED ? g : t;
        // A sector of memory that is written in parts takes longer. So the lanes exchange numbers: of each block a lane gets number
        // `place` and the one IN_ROW further. Lanes before the first sector boundary store each of theirs with the next ones of the
        // others, so each store has whole sectors but at the ends of the row.
        const int shift = (int)((unsigned long long)to / sizeof(double) % 4), place = (in_row - shift) & (IN_ROW - 1);
        const bool upper = in_row >= IN_ROW / 2, odd = place % 2, before = in_row < shift;
        auto lane_of = [&](int other) { return SWAPPED ? other * 4 + t : g * 4 + other; };
        const int one = lane_of(place / 2 + (odd ? IN_ROW / 2 : 0)), two = lane_of(place / 2 + (odd ? 0 : IN_ROW / 2));
        double last = 0;
        #pragma unroll
        for (int j = 0; j <= BLOCKS; j++) {
            double numbers[2] = {};
            if (j < BLOCKS) {
                const double u = __shfl_sync(0xFFFFFFFF, upper ? pairs[j].y : pairs[j].x, one);
                const double v = __shfl_sync(0xFFFFFFFF, upper ? pairs[j].x : pairs[j].y, two);
                numbers[0] = odd ? v : u, numbers[1] = odd ? u : v;
            }
            #pragma unroll
            for (int half = 0; half < (j < BLOCKS ? 2 : 1); half++) {
                const int col = (2 * j + half) * IN_ROW + in_row - shift;
                if (col >= 0 && col < min(columns, WN)) to[col] = before ? last : numbers[half];
                last = numbers[half];
            }
        }
    }

    __device__ __forceinline__ void load(int half)
    {
        const char *of_a = (const char*)shared.a[ring.slot] + y * 128, *of_b = (const char*)shared.b[ring.slot] + x * 128;
        fragments[half % BUFFERS].load(SWAPPED ? of_b : of_a, SWAPPED ? of_a : of_b, at_first, at_second, half);
    }

    // Waits for the next stage, and gives back the oldest one of which all fragments have been multiplied. Right after its loads a
    // stage must not be given back: they may still be under way, and copies would write what they read.
    __device__ __forceinline__ void wait_and_release()
    {
        barrier_wait(shared.full[ring.slot], ring.parity);
        if (before_oldest-- > 0) return;
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.empty[oldest]);
        oldest = oldest + 1 == STAGES ? 0 : oldest + 1;
    }
};
