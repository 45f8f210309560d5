/*
idea = "float64 by tensor cores, from tiles that the copy engine brings: the warps that multiply neither copy nor wait for each other."
row = "S0.9, S3"
entry = "dmma_boxes"
dtypes = ["float64"]
capability = "9.0a"
persistent = true
step = "LINE"
block = ["BM // WM * (BN // WN) * 32 + 128"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * ((BM + BN) * 128 + 16)"
tile = ["BN", "BM"]
constraints = [
    "STAGES > 2", "BM % WM == 0", "BN % WN == 0", "BM // WM * (BN // WN) % 4 == 0", "BM // WM * (BN // WN) <= 8",
    "PER_SM * (STAGES * ((BM + BN) * 128 + 16) + 1024) <= 233472",
]

[boxes]
a = ["BM", "LINE"]
a_down = ["LINE", "LINE"]
b = ["LINE", "LINE"]
b_down = ["BN", "LINE"]

# Eight warps of a multiprocessor multiply at its full rate, four alone do not. Small warp tiles wait for shared memory, and for long
# small tiles take more power. Each generation of blocks stores its tiles last. A long operand comes from memory at the rate of one
# multiprocessor. Odd rows of C are stored number by number. The rates are those of an H200, as its power allows for long.
[time]
odd = "min(1, n * size % 16)"
each = "cdiv(blocks, sms)"
warps = "(BM // WM) * (BN // WN)"
alone = "0.6 * (warps * (each % PER_SM) == 4) + 0.6 * each * (warps * PER_SM == 4)"
moved = "1 + 0.02 * (a_down == b_across)"
long = "(0.02 * (BM * BN < 16384) + 0.05 * (BM * BN < 12288) + 0.05 * (BM * BN < 8192)) * (m * n * k * batch > 2e10)"
rate = "2.5e11 * (1 - 0.05 * (BUFFERS == 1) - 0.03 * (WM * WN < 1536) - 0.17 * (WM * WN < 1024) - 0.03 * (BM * BN < 8192) - long)"
power = "1 - 0.08 * ((m * k + k * n) * size * batch > 2e9)"
generations = "cdiv(blocks, sms * PER_SM) * (2.5e-6 - 7e-7 * (PER_SM > 1))"
multiplied = "(each + alone) * BM * BN * part * moved / (rate * power) + generations"
streamed = "each * max(min(m, BM), min(n, BN)) * part * size / (3.3e10 + max(1e9 * (PER_SM == 1), 4e9 * (each > 1), 5e9 * (BM + BN > 128))) * (min(BM, BN) < 32)"
tiles = "max(multiplied, streamed)"
memory = "((m * k + k * n) / 4.3e12 + m * n * parts * (1 + 1.5 * odd) / (3.5e12 + 2e11 * (GROUP == 1))) * size * batch * memory_ratio"
seconds = "4e-6 + max(tiles, memory) + 0.03 * min(multiplied, memory)"

[[presets]]
rate = 100
params = { BN = 96, WM = 32, WN = 48 }

[[presets]]
rate = 100
params = { BN = 64, WM = 32, STAGES = 8 }

[[presets]]
rate = 95
params = { BM = 192, BN = 96, WM = 48, WN = 48, BUFFERS = 1 }

[[presets]]
rate = 95
params = { BM = 160, WM = 80, BUFFERS = 1 }

[[presets]]
rate = 97
params = { BM = 64, BN = 64, WM = 32, STAGES = 4, PER_SM = 3 }

[[presets]]
rate = 97
when = "k <= 256"
params = { BM = 64, BN = 64, WM = 32, PER_SM = 2, GROUP = 1 }

[[presets]]
rate = 80
when = "max(m, n) <= 32"
params = { BM = 32, BN = 32, WM = 16, WN = 16, PER_SM = 4 }

[[presets]]
rate = 80
when = "m <= 16"
params = { BM = 16, BN = 64, WM = 16, WN = 16, STAGES = 20 }

[[presets]]
rate = 80
when = "m <= 16"
params = { BM = 16, BN = 64, WM = 16, WN = 16, STAGES = 10, PER_SM = 2 }

[[presets]]
rate = 80
when = "m <= 16"
params = { BM = 16, BN = 64, WM = 16, WN = 16, STAGES = 5, PER_SM = 4 }

[[presets]]
rate = 80
when = "m <= 16"
params = { BM = 16, WM = 16, PER_SM = 2 }

[[presets]]
rate = 80
when = "n <= 16"
params = { BM = 64, BN = 16, WM = 16, WN = 16, STAGES = 10, PER_SM = 2 }

[params]
BM = { default = 128, values = [16, 32, 64, 96, 128, 160, 192] }
BN = { default = 128, values = [16, 32, 64, 96, 128, 192] }
WM = { default = 64, values = [16, 32, 48, 64, 80] }
WN = { default = 32, values = [16, 32, 48, 64] }
STAGES = { default = 6, min = 3, max = 24 }
BUFFERS = { default = 2, values = [1, 2] }
PER_SM = { default = 1, values = [1, 2, 3, 4] }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#include "hopper.cuh"
#include "launches.cuh"
#include "ring.cuh"

#define CLUSTER 1
constexpr int LINE = 16;  // of k in a stage: 128 bytes, the width of the swizzle
#define SPLIT 1  // each block computes whole tiles
#include "hopper_tiles.cuh"

constexpr int WARPS_M = BM / WM, WARPS = WARPS_M * (BN / WN), THREADS = WARPS * 32 + 128;

// Registers of a thread at launch. A group of four warps, of which one thread copies, gives most of its own to those that multiply.
constexpr int LAUNCHED = 65536 / PER_SM / THREADS / 8 * 8, LEFT = 24, TAKEN = LAUNCHED + (LAUNCHED - LEFT) * 4 / WARPS / 8 * 8;
constexpr bool GIVES = LAUNCHED < 232;

struct Shared {
    double a[STAGES][BM * LINE], b[STAGES][BN * LINE];
    Barrier full[STAGES], empty[STAGES];
};
extern __shared__ __align__(1024) unsigned char memory[];

// The instruction multiplies 16×8 by 8×8 numbers. Its first operand is A, its second B; but where rows of B follow each other, the
// first is Bᵀ and the second Aᵀ, because then a load of 16 bytes gives what the instruction wants in consecutive registers.
constexpr bool SWAPPED = B_ACROSS, FIRST_ACROSS = SWAPPED || A_DOWN, SECOND_ACROSS = SWAPPED && A_DOWN;
constexpr int MMAS_1 = (SWAPPED ? WN : WM) / 16, MMAS_2 = (SWAPPED ? WM : WN) / 8;  // of a warp's tile

// With g = lane / 4 and t = lane % 4, a lane holds rows g and g + 8 of the first operand, and column g of the second, at two steps of
// every eight. Of the 16 in a stage these are 4·t and the next one, then 4·t + 2 and the next one; where t > 1, the latter are the
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

// Of two columns that are loaded at once the steps are not in consecutive registers: then each step has an instruction of its own.
__device__ __forceinline__ void multiply_f64(double (&c)[4], const double (&a)[4], const double (&b)[2])
{
    if (SECOND_ACROSS)
        #pragma unroll
        for (int j = 0; j < 2; j++)
            asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                         : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3]) : "d"(a[2 * j]), "d"(a[2 * j + 1]), "d"(b[j]));
    else
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}

struct Sums {
    double of[MMAS_1][MMAS_2][4];

    __device__ __forceinline__ void add(const Fragments& f)
    {
        #pragma unroll
        for (int s = 0; s < MMAS_2; s++)
            #pragma unroll
            for (int r = 0; r < MMAS_1; r++) multiply_f64(of[r][s], f.first[r], f.second[s]);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
dmma_boxes(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap,
           double* c, const __grid_constant__ Call call)
{
    Shared& s = *(Shared*)memory;
    const Tiles tiles(call);
    Ring<STAGES> ring;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], 1);
            barrier_init(s.empty[i], WARPS);
        }
        barrier_publish();
    }
    __syncthreads();
    let_next_launch_begin();
    wait_for_launch_before();

    if (threadIdx.x < 128) {  // ---- GLOBAL → SHARED: one thread -----------------------------------------------------------------
        if (GIVES) give_registers<LEFT>();
        if (threadIdx.x == 0)
            for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
                const auto [top, left, z, first_step, steps, bottom] = tiles.place(tile, 0);
                const Source from = source_of(call, z);
                for (int step = first_step; step < first_step + steps; step++, ring.advance()) {
                    Barrier& full = s.full[ring.slot];
                    double *to_a = s.a[ring.slot], *to_b = s.b[ring.slot];
                    barrier_wait(s.empty[ring.slot], ring.parity ^ 1);
                    barrier_expect(full, (BM + BN) * 128);
                    if (A_DOWN)
                        #pragma unroll
                        for (int i = 0; i < BM; i += 16) load_tile(to_a + i * LINE, a, from.row + top + i, step * LINE, from.a, full);
                    else load_tile(to_a, a, step * LINE, from.row + top, from.a, full);
                    if (B_ACROSS)
                        #pragma unroll
                        for (int i = 0; i < BN; i += 16) load_tile(to_b + i * LINE, b, left + i, step * LINE, from.b, full);
                    else load_tile(to_b, b, step * LINE, left, from.b, full);
                }
            }
    } else {  // ---- MULTIPLY ----------------------------------------------------------------------------------------------------
        if (GIVES) take_registers<TAKEN>();
        const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;
        const unsigned at_first = place_of_lane<FIRST_ACROSS>(g, t), at_second = place_of_lane<SECOND_ACROSS>(g, t);
        Fragments fragments[BUFFERS];
        auto load = [&](int half) {
            const char *of_a = (const char*)s.a[ring.slot] + y * 128, *of_b = (const char*)s.b[ring.slot] + x * 128;
            fragments[half % BUFFERS].load(SWAPPED ? of_b : of_a, SWAPPED ? of_a : of_b, at_first, at_second, half);
        };
        // Waits for the next stage, and gives back the oldest one of which all fragments have been multiplied. Right after its loads a
        // stage must not be given back: they may still be under way, and the copy engine would write what they read.
        int before_oldest = BUFFERS, oldest = 0;
        auto wait_and_release = [&] {
            barrier_wait(s.full[ring.slot], ring.parity);
            if (before_oldest-- > 0) return;
            __syncwarp();
            if (lane == 0) barrier_arrive(s.empty[oldest]);
            oldest = oldest + 1 == STAGES ? 0 : oldest + 1;
        };
        for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
            const auto [top, left, z, first_step, steps, bottom] = tiles.place(tile, 0);
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
                if (!more) break;
            }

            // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------
            double* to_z = c + z * call.next_c;
            #pragma unroll
            for (int r = 0; r < MMAS_1; r++)
                #pragma unroll
                for (int q = 0; q < MMAS_2; q++)
                    #pragma unroll
                    for (int i = 0; i < 2; i++) {
                        // The lane's elements are 2·h + e, of row h of the first operand and column e of the second. Two of them
                        // lie in a row of C: this one and that of the other h, or of the other e.
                        const int h = SWAPPED ? 0 : i, e = SWAPPED ? i : 0, at = 2 * h + e, other = SWAPPED ? 2 : 1;
                        const int one = r * 16 + (FIRST_ACROSS ? 2 * g + h : 8 * h + g);
                        const int two = SECOND_ACROSS ? q / 2 * 16 + 2 * (2 * t + e) + q % 2 : q * 8 + 2 * t + e;
                        const int row = top + y + (SWAPPED ? two : one), col = left + x + (SWAPPED ? one : two);
                        if (row >= bottom || col >= call.n) continue;
                        double* to = to_z + row * call.row_c + col;
                        const double u = sums.of[r][q][at], v = sums.of[r][q][at + other];
                        if (STORE_PAIRS) *(double2*)to = make_double2(u, v);
                        else {
                            to[0] = u;
                            if (col + 1 < call.n) to[1] = v;
                        }
                    }
        }
    }
}
