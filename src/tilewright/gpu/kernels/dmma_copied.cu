/*
idea = "The same as dmma_boxes for rows that begin anywhere: four warps copy 8 bytes a thread to where the copy engine would put them."
row = "S0.9, S3"
dtypes = ["float64"]
capability = "9.0a"
invariant = "1"
persistent = true
step = "BK"
block = ["BM // WM * (BN // WN) * 32 + 128"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * ((BM + BN) * 128 + 16)"
tile = ["BN", "BM"]
constraints = [
    "STAGES > 2", "BM % WM == 0", "BN % WN == 0", "BM // WM * (BN // WN) % 4 == 0", "BM // WM * (BN // WN) <= 8",
    "PER_SM * (STAGES * ((BM + BN) * 128 + 16) + 2048) <= 233472",
]

costs = [
    "alone_of_four", "alone_always", "transposed", "long_small", "long_smaller", "long_smallest", "long_above",
    "multiply_rate", "one_buffer", "warp_small", "tile_small", "power_long", "power_above", "generation_s",
    "generation_shared_s", "single_copies", "single_of_large", "single_of_three", "thin_read", "spilt_size", "read_rate",
    "spilt_written", "large_written", "write_rate", "launch_s", "unhidden",
]

[strides]
a = "either"
b = "either"
c = "rows"
lists = "either"

# As dmma_boxes', but slower, as the warps that copy take a share of the instructions, and of shared memory's accesses if they copy single
# numbers. Of thin products most of what they copy are zeros.
[time]
each = "cdiv(blocks, sms)"
warps = "(BM // WM) * (BN // WN)"
alone = "alone_of_four * (warps * (each % PER_SM) == 4) + alone_always * each * (warps * PER_SM == 4)"
moved = "1 + transposed * (a_down == b_across)"
long = "(long_small * (BM * BN < 16384) + long_smaller * (BM * BN < 12288) + long_smallest * (BM * BN < 8192)) * (m * n * k * batch > long_above)"
rate = "multiply_rate * (1 - one_buffer * (BUFFERS == 1) * (PER_SM == 1) - warp_small * (WM * WN < 1536) - tile_small * (BM * BN < 8192) - long)"
power = "1 - power_long * ((m * k + k * n) * size * batch > power_above)"
generations = "cdiv(blocks, sms * PER_SM) * (generation_s - generation_shared_s * (PER_SM > 1))"
single = "1 - (a_vector >= 16) * (b_vector >= 16)"
slower = "single * (single_copies + single_of_large * (BM * BN >= 16384) + single_of_three * (PER_SM > 2))"
multiplied = "(each + alone) * BM * BN * part * moved * (1 + slower) / (rate * power) + generations"
thin = "thin_read * (min(m, n) < 32)"
spilt = "min(1, n * size % 16) * min(1, m * n * parts * size * batch / spilt_size)"
memory = "((m * k + k * n) * (1 + thin) / read_rate + m * n * parts * (1 + spilt_written * spilt + large_written * (BM * BN >= 16384)) / write_rate) * size * batch * memory_ratio"
seconds = "launch_s + max(multiplied, memory) + unhidden * min(multiplied, memory)"

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
params = { BM = 64, BN = 64, WM = 32, STAGES = 4, BUFFERS = 1, PER_SM = 3 }

[params]
BM = { default = 128, values = [32, 64, 96, 128, 160, 192] }
BN = { default = 128, values = [32, 64, 96, 128, 192] }
BK = { default = 16, values = [16] }
WM = { default = 64, values = [16, 32, 48, 64, 80] }
WN = { default = 32, values = [16, 32, 48, 64] }
STAGES = { default = 6, min = 3, max = 24 }
BUFFERS = { default = 2, values = [1, 2] }
PER_SM = { default = 1, values = [1, 2, 3, 4] }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#include "launches.cuh"
#include "slabs.cuh"

constexpr int LINE = BK;  // of k in a stage: 128 bytes, the width of the swizzle
#include "dmma_tiles.cuh"

// What one of FILLING threads copies of LINE steps of SIDE rows of A, or columns of B, a stage: WIDTH numbers at a time. In memory the
// numbers of a step follow each other if ACROSS, else those of a row. Threads that follow each other copy 16 of them: of a row all of
// the stage, ACROSS a line of the boxes that the copy engine would bring.
template <int SIDE, bool ACROSS, int WIDTH>
struct SwizzledSlab {
    static constexpr int LINES = ACROSS ? LINE : SIDE, LENGTH = ACROSS ? SIDE : LINE;
    static constexpr int PASS = FILLING * WIDTH / 16;  // lines that all threads copy at once, a multiple of the swizzle's eight
    static_assert(LENGTH % 16 == 0 && LINES % PASS == 0, "copies cover the slab");

    const double *operand, *from;
    const long long pitch;  // of lines
    const int line = threadIdx.x * WIDTH / 16, at = threadIdx.x * WIDTH % 16;  // of this thread's first copy,
    const int to = line * 128 + (at / 2 ^ line % 8) * 16 + at % 2 * 8;         // and where it goes, in bytes

    // The tile begins `offset` numbers after `operand`, an address that may always be named.
    __device__ __forceinline__ SwizzledSlab(const double* operand, long long offset, long long pitch)
        : operand(operand), from(operand + offset + line * pitch + at), pitch(pitch) {}

    // The next stage, of which `places` and `steps` are inside the operand. Beyond these it writes zeros and reads nothing.
    __device__ __forceinline__ void copy(double* stage, int places, int steps)
    {
        const int lines = ACROSS ? steps : places, length = ACROSS ? places : steps;
        if (lines >= LINES && length >= LENGTH) copy_lines<true>((char*)stage, 0, 0);
        else copy_lines<false>((char*)stage, lines - line, length - at);
        from += LINE * (ACROSS ? pitch : 1);
    }

    // WHOLE: all of it is inside. Else loops are not unrolled, since most stages are whole and few registers are left.
    template <bool WHOLE>
    __device__ __forceinline__ void copy_lines(char* stage, int lines, int length) const
    {
        #pragma unroll(WHOLE ? LENGTH / 16 : 1)
        for (int i = 0; i < LENGTH; i += 16) {
            const double* of_line = from + i;
            #pragma unroll(WHOLE ? LINES / PASS : 1)
            for (int l = 0; l < LINES; l += PASS, of_line += PASS * pitch) {
                char* there = stage + to + i * 128 + l * 128;
                const bool inside = WHOLE || (l < lines && i < length);
                const double* here = inside ? of_line : operand;
                if (WHOLE || WIDTH == 1) copy_async<WIDTH * 8>(there, here, inside);
                else copy_async_some_of_16(there, here, inside ? min(length - i, 2) * 8 : 0);
            }
        }
    }
};

// Fills stages with the operands of this block's tiles. The threads wait for room, but not for their own copies.
__device__ __forceinline__ void fill(const double* a, const double* b, const Call& call, Shared& s)
{
    Ring<STAGES> ring;
    const unsigned tiles = tiles_of_call(call);
    for (unsigned tile = block_of_call(call); tile < tiles; tile += gridDim.x) {
        const auto [top, left, z, product, first, length] = place_of_tile(call, tile);
        SwizzledSlab<BM, A_DOWN, A_VECTOR / 8> from_a(
            a, product * call.next_a + top * call.row_a + first * call.column_a, A_DOWN ? call.column_a : call.row_a);
        SwizzledSlab<BN, B_ACROSS, B_VECTOR / 8> from_b(
            b, product * call.next_b + first * call.row_b + left * call.column_b, B_ACROSS ? call.row_b : call.column_b);
        for (int step = 0; step < length; step += LINE, ring.advance()) {
            barrier_wait(s.empty[ring.slot], ring.parity ^ 1);
            from_a.copy(s.a[ring.slot], call.m - top, length - step);
            from_b.copy(s.b[ring.slot], call.n - left, length - step);
            barrier_arrive_after_copies(s.full[ring.slot]);
        }
    }
    copy_async_wait<0>();  // a thread does not end before its copies
}

extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
dmma_copied(const double* a, const double* b, double* c, const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given);
    Shared& s = *(Shared*)memory;

    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full[i], FILLING);
            barrier_init(s.empty[i], WARPS);
        }
    __syncthreads();
    let_next_launch_begin();
    wait_for_launch_before();

    if (threadIdx.x < FILLING) {  // ---- GLOBAL → SHARED ---------------------------------------------------------------------------
        if (GIVES) give_registers<LEFT>();
        fill(a, b, call, s);
    } else {  // ---- MULTIPLY ------------------------------------------------------------------------------------------------------
        if (GIVES) take_registers<TAKEN>();
        Multiplier multiplier(s);
        const unsigned tiles = tiles_of_call(call);
        for (unsigned tile = block_of_call(call); tile < tiles; tile += gridDim.x) {
            const auto [top, left, z, product, first, length] = place_of_tile(call, tile);
            const Sums sums = length > 0 ? multiplier.multiply((length - 1) / LINE + 1) : Sums{};
            double* of_z = c + z * call.next_c;
            if (C_VECTOR == 16 && call.n % 2 == 0) multiplier.store<true>(sums, of_z, call.row_c, top, left, call.m, call.n);
            else multiplier.store<false>(sums, of_z, call.row_c, top, left, call.m, call.n);
        }
    }
}
