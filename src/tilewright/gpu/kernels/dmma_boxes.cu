/*
idea = "float64 by tensor cores, from tiles that the copy engine brings: the warps that multiply neither copy nor wait for each other."
row = "S0.9, S3"
entry = "dmma_boxes"
dtypes = ["float64"]
capability = "9.0a"
invariant = "1"
triangle = ["BM", "BN", "1"]
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

costs = [
    "alone_of_four", "alone_of_eight", "alone_of_narrow", "alone_always", "transposed", "long_small", "long_smaller",
    "long_smallest", "long_above", "multiply_rate", "one_buffer", "warp_small", "warp_smaller", "tile_small",
    "narrow_across", "narrow_short", "power_long", "power_above", "generation_s", "generation_alone_s", "stream_rate",
    "stream_alone", "stream_turns", "stream_wide", "spilt_size", "read_rate", "spilt_written", "large_written",
    "write_rate", "write_near", "launch_s", "unhidden",
]

[boxes]
a = ["BM", "LINE"]
a_down = ["LINE", "LINE"]
b = ["LINE", "LINE"]
b_down = ["BN", "LINE"]

# Four warps of a multiprocessor multiply at half its rate, eight almost at all of it. Small warp tiles wait for shared memory, those of 16
# columns less where B is read across, and for long small tiles take more power. Each generation of blocks stores its tiles last, unless
# others of the multiprocessor still multiply. A long operand comes from memory at the rate of one multiprocessor. Odd rows of C have more
# sectors than their numbers fill, which costs most where C is larger than the second-level cache.
[time]
odd = "min(1, n * size % 16)"
each = "cdiv(blocks, sms)"
warps = "(BM // WM) * (BN // WN)"
at_once = "warps * (each % PER_SM)"
alone = "alone_of_four * (at_once == 4) + alone_of_eight * (at_once == 8) + alone_of_narrow * (at_once == 8) * (WN == 16) + alone_always * each * (warps * PER_SM == 4)"
moved = "1 + transposed * (a_down == b_across)"
long = "(long_small * (BM * BN < 16384) + long_smaller * (BM * BN < 12288) + long_smallest * (BM * BN < 8192)) * (m * n * k * batch > long_above)"
rate = "multiply_rate * (1 - one_buffer * (BUFFERS == 1) - warp_small * (WM * WN < 1536) - warp_smaller * (WM * WN < 1024) - tile_small * (BM * BN < 8192) + (WN == 16) * (BM > 16) * (narrow_across * b_across - narrow_short * (BM == 32)) - long)"
power = "1 - power_long * ((m * k + k * n) * size * batch > power_above)"
generations = "each * (generation_s + generation_alone_s * (PER_SM == 1))"
multiplied = "(each + alone) * BM * BN * part * moved / (rate * power) + generations"
streamed = "each * max(min(m, BM), min(n, BN)) * part * size / (stream_rate + max(stream_alone * (PER_SM == 1), stream_turns * (each > 1), stream_wide * (BM + BN > 128))) * (min(BM, BN) < 32)"
tiles = "max(multiplied, streamed)"
spilt = "odd * min(1, m * n * parts * size * batch / spilt_size)"
memory = "((m * k + k * n) / read_rate + m * n * parts * (1 + spilt_written * spilt + large_written * (BM * BN >= 16384)) / (write_rate + write_near * (GROUP == 1))) * size * batch * memory_ratio"
seconds = "launch_s + max(tiles, memory) + unhidden * min(multiplied, memory)"

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
rate = 97
when = "m * n <= 1048576"
params = [
    { BM = 64, BN = 64, WM = 32, WN = 16, PER_SM = 2 },
    { BM = 32, BN = 64, WM = 16, PER_SM = 3 },
    { BM = 32, BN = 64, WM = 16, WN = 16, PER_SM = 2 },
]

[[presets]]
rate = 80
when = "max(m, n) <= 32"
params = { BM = 32, BN = 32, WM = 16, WN = 16, PER_SM = 4 }

[[presets]]
rate = 80
when = "m <= 32"
params = { BM = 32, BN = 64, WM = 16, STAGES = 6, PER_SM = 3 }

[[presets]]
rate = 80
when = "m <= 32"
params = { BM = 32, WM = 16, STAGES = 5, PER_SM = 2 }

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
when = "16 < n <= 32"
params = { BM = 64, BN = 32, WM = 32, WN = 16, PER_SM = 3 }

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
#include "launches.cuh"

#define CLUSTER 1
#define BESIDE 1
constexpr int LINE = 16;  // of k in a stage: 128 bytes, the width of the swizzle
#define SPLIT 1  // each block computes whole tiles
#include "hopper_tiles.cuh"
#include "dmma_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
dmma_boxes(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap,
           double* c, const __grid_constant__ Call call)
{
    Shared& s = *(Shared*)memory;
    const Tiles tiles(call);

    init_ring(s.full, s.empty, WARPS);
    __syncthreads();
    let_next_launch_begin();
    wait_for_launch_before();

    if (threadIdx.x < FILLING) {  // ---- GLOBAL → SHARED: one thread --------------------------------------------------------------
        if (GIVES) give_registers<LEFT>();
        Ring<STAGES> ring;
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
        Multiplier multiplier(s);
        for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
            const auto [top, left, z, first_step, steps, bottom] = tiles.place(tile, 0);
            const Sums sums = multiplier.multiply(steps);
            multiplier.store<STORE_PAIRS>(sums, c + z * call.next_c, call.row_c, top, left, bottom, call.n);
        }
    }
}
