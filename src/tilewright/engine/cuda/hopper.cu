/*
idea = "The copy engine fills a ring of tiles in shared memory, tensor cores multiply from there, and no thread does both."
row = "S0.9, S2"
entry = "hopper"
dtypes = ["bfloat16", "float16", "tf32", "int8", "float8_fast"]
stores = ["bfloat16", "float16", "float32", "int8", "int32"]
capability = "9.0a"
invariant = "SPLIT == 1"
persistent = true
step = "LINE"
block = ["128 * (BM // 64 + 1)"]
grid = ["SPLIT * CLUSTER * BESIDE * cdiv(m, BM * CLUSTER) * cdiv(n, BN * BESIDE)"]
shared = "STAGES * ((BM + cdiv(BN, 8 * CLUSTER) * 8 * CLUSTER) * 128 + 16) + min(1, (SPLIT > 1) + PINGPONG + (BN < BM)) * BM // 64 * 16384"
finishes = "BM // 64 * BN * 4"
tile = ["BN", "BM"]
constraints = [
    "STAGES * ((BM + cdiv(BN, 8 * CLUSTER) * 8 * CLUSTER) * 128 + 16) + min(1, (SPLIT > 1) + PINGPONG + (BN < BM)) * BM // 64 * 16384 <= 232448",
    "(SPLIT - 1) * BM * BN * 4 <= SPLIT * STAGES * (BM + BN) * 128",  # sums that a block receives lie where its operands were
    "(SPLIT > 1) * (BN % 64 + BN % (16 * SPLIT)) == 0",
    "(SPLIT > 1) * (CLUSTER * BESIDE > 1) == 0", "(NEAR > 1) * (SPLIT * CLUSTER * BESIDE > 1) == 0", "CLUSTER * BESIDE <= 8",
    "BM * BN <= 36864",  # sums of a thread, in registers
    "PINGPONG * (BM != 128) == 0", "PINGPONG * (BN > 176) == 0", "PINGPONG * (SPLIT > 1) == 0",
]
presets = [
    { rate = 100, params = [
        { CLUSTER = 2, GROUP = 8 },
        { BN = 128, STAGES = 6, PINGPONG = 1, GROUP = 32 },
        { BN = 128, STAGES = 6, PINGPONG = 1, CLUSTER = 2, GROUP = 16 },
        { BN = 128, STAGES = 6 },
        { BN = 128, STAGES = 6, CLUSTER = 2, GROUP = 8 },
        { BN = 64, STAGES = 8 },
        { BN = 64, STAGES = 8, CLUSTER = 2, GROUP = 8 },
        { BM = 192, BN = 192, STAGES = 4, CLUSTER = 2, BESIDE = 2, GROUP = 8 },
        { BM = 192, BN = 192, STAGES = 4 },
        { BM = 192, BN = 192, STAGES = 4, CLUSTER = 2, GROUP = 8 },
        { BM = 192, BN = 192, STAGES = 3, SPLIT = 2 },
        { BM = 64, BN = 64, STAGES = 8 },
        { BM = 64, BN = 128, STAGES = 8 },
        { BM = 64, BN = 128, STAGES = 8, CLUSTER = 2, GROUP = 8 },
        { BM = 64, STAGES = 5, CLUSTER = 2, GROUP = 8 },
        { BM = 64, BN = 128, STAGES = 8, SPLIT = 2 },
    ] },
    # Where the next narrower width needs more columns of tiles. Tensor cores multiply integers in widths of whole sixteens.
    { rate = 100, when = "(cdiv(n, BN) < cdiv(n, BN - 8 - 8 * (size == 1))) * (BN * (size == 1) % 16 == 0)", params = [
        { BN = [72, 80, 88], STAGES = 7 },
        { BN = [96, 104, 112, 120], STAGES = 6 },
        { BN = [136, 144, 152, 160, 168, 176, 184, 192, 200, 208, 216, 224, 232], STAGES = 5 },
        { BN = [240, 248] },
        { BN = [80, 96, 112], STAGES = 6, CLUSTER = 2, GROUP = 8 },
        { BN = [136, 144, 152, 160], STAGES = 6, CLUSTER = 2, GROUP = 16 },
        { BN = [168, 176, 184], STAGES = 5, CLUSTER = 2, GROUP = 16 },
        { BN = [192, 200, 208, 216, 224], STAGES = 5, CLUSTER = 2, GROUP = 8 },
        { BN = [232, 240, 248], CLUSTER = 2, GROUP = 8 },
        { BN = [96, 104, 112, 120], STAGES = 6, PINGPONG = 1, CLUSTER = 2, GROUP = 16 },
        { BN = [136, 144, 152, 160, 168, 176], STAGES = 5, PINGPONG = 1, GROUP = 32 },
        { BN = [136, 144, 152, 160, 168, 176], STAGES = 5, PINGPONG = 1, CLUSTER = 2, GROUP = 16 },
        { BN = [96, 112], STAGES = 6, CLUSTER = 2, BESIDE = 2, GROUP = 8 },
        { BN = [128, 144, 160], STAGES = 6, CLUSTER = 2, BESIDE = 2, GROUP = 8 },
        { BN = [176, 192, 208, 224], STAGES = 5, CLUSTER = 2, BESIDE = 2, GROUP = 8 },
        { CLUSTER = 2, BESIDE = 2, GROUP = 8 },
        { BN = [64, 80], STAGES = 7, CLUSTER = 2, BESIDE = 4, GROUP = 8 },
        { BN = [96, 112, 128, 160], STAGES = 6, CLUSTER = 2, BESIDE = 4, GROUP = 8 },
        { BN = [192, 224], STAGES = 5, CLUSTER = 2, BESIDE = 4, GROUP = 8 },
        { BN = [64, 96, 128, 160], STAGES = 6, CLUSTER = 4, BESIDE = 2, GROUP = 8 },
        { BN = [192, 224], STAGES = 5, CLUSTER = 4, BESIDE = 2, GROUP = 8 },
        { BM = 64, BN = [64, 80, 96, 104, 112, 128, 144], STAGES = 8, CLUSTER = 2, BESIDE = 2, GROUP = 8 },
        { BM = 64, BN = [160, 176, 192, 208], STAGES = 6, CLUSTER = 2, BESIDE = 2, GROUP = 8 },
        { BM = 64, BN = [64, 80, 96, 112, 128], STAGES = 8, CLUSTER = 2, BESIDE = 4, GROUP = 8 },
        { BM = 64, BN = [64, 96, 128], STAGES = 8, CLUSTER = 4, BESIDE = 2, GROUP = 8 },
        { BM = 64, BN = [160, 192], STAGES = 6, CLUSTER = 4, BESIDE = 2, GROUP = 8 },
        { BM = 192, BN = [96, 112, 128, 144, 160] },
        { BM = 192, BN = [128, 144, 160], CLUSTER = 2, GROUP = 8 },
        { BM = 64, BN = [72, 80, 88, 96, 104, 112, 120, 136, 144, 152, 160], STAGES = 8 },
        { BM = 64, BN = [168, 176, 184, 192], STAGES = 7 },
        { BM = 64, BN = [200, 208, 216, 224, 232], STAGES = 6 },
        { BM = 64, BN = [240, 248, 256], STAGES = 5 },
        { BM = 64, BN = [96, 112, 144, 160], STAGES = 8, CLUSTER = 2, GROUP = 8 },
        { BM = 64, BN = [176, 192], STAGES = 7, CLUSTER = 2, GROUP = 8 },
        { BM = 64, BN = [208, 224], STAGES = 6, CLUSTER = 2, GROUP = 8 },
    ] },
    # Few rows, whose columns are few enough for every multiprocessor to have a tile though k is not cut.
    { rate = 100, when = "(m <= 256) * (k >= 1024) * (cdiv(n, 64) * cdiv(m, BM) <= 132)", params = [
        { BM = 64, BN = [32, 48], STAGES = 13 },
        { BN = [32, 48], STAGES = 8 },
    ] },
    { rate = 100, when = "m * n <= 2097152", params = [
        { BN = [64, 128], STAGES = 6, SPLIT = [2, 4] },
        { BM = 64, STAGES = 4, SPLIT = 2 },
        { BM = 64, BN = 64, STAGES = 8, SPLIT = 4 },
        { BM = 64, BN = 128, STAGES = 8, SPLIT = [4, 8] },
    ] },
    { rate = 100, when = "m * n <= 6291456", params = { BN = 192, SPLIT = 2 } },
    { rate = 100, when = "(m * n <= 2097152) * (k >= 2048)", params = [
        { BN = 64, STAGES = 8, NEAR = 16, GROUP = 4 },
        { BN = 128, STAGES = 6, NEAR = 16, GROUP = 4 },
        { BN = [160, 192], STAGES = 5, NEAR = 8, GROUP = 4 },
        { NEAR = 8, GROUP = 4 },
        { BM = 64, BN = 64, STAGES = 12, NEAR = 8, GROUP = 4 },
        { BM = 64, BN = 128, STAGES = 8, NEAR = 16, GROUP = 4 },
        { BM = 64, BN = 192, STAGES = 7, NEAR = 8, GROUP = 4 },
        { BM = 64, STAGES = 5, NEAR = 16, GROUP = 4 },
        { BM = 192, BN = 128, NEAR = 8, GROUP = 4 },
    ] },
]

[boxes]
a = ["min(BM // BESIDE, cdiv(m, 8) * 8 + (BESIDE > 1) * BM)", "LINE"]
a_down = ["LINE // BESIDE", "LINE"]
b = ["LINE // CLUSTER", "64"]
b_down = ["cdiv(BN, 8 * CLUSTER) * 8", "LINE"]
c = ["64", "LINE"]
c_down = ["16 - BN % 16", "LINE"]

# A step of a tile takes as long as the slower of tensor cores, and of the second-level cache, from which every block of a cluster gets
# its share of the rows of A and of the columns of B, or as a stage that is used again waits for memory. Rows that do not begin at whole
# lines are parts of two, and of a sector more (`a_apart`, `b_apart`), and so is a share `cut` of the boxes of a row-major B, if tiles are
# not multiples of 64 wide. Blocks of a cluster wait for each other, where none has other tiles to hide it, those of `many` longer. Blocks
# that read the same columns of B at once read a part of them twice from memory. Of tiles that are split (SPLIT) there are generations of
# `pieces`; larger clusters than pairs do not find `room` on all multiprocessors. Of more blocks than multiprocessors a stage comes no
# faster than a turn of the ring (`crowded`), and of long ones those without a cluster lose each other in the cache (`missed`). Blocks that
# read the same rows of A are `far` from each other, and also read a part of them twice. An A that comes from registers takes time to load
# (`from_registers`). Odd rows of C are stored by the warps that multiply (`rows_alone`), after the `last` tiles by all blocks at once;
# blocks without a cluster then lose each other (`lost`). Blocks that are neither few nor enough for all multiprocessors begin `late`, when
# the launch before has ended, and some share a way to memory with another one, which others have alone (`uneven`). What the blocks of one
# group of multiprocessors read, each line once, comes over a way of its own (`of_group`): every eighth block is in the same one. Blocks
# without a cluster are slower if they are small (`lone`), and lose each other where k is long (`adrift`), and so do small tiles where
# neither operand stays in the cache (`apart`). With PINGPONG only the last tile's sums are stored while nothing is multiplied, by half as
# many threads. Where memory is slower (memory_ratio), fewer of the bytes that blocks share are read twice. Of few tiles with a long k,
# blocks wait for the same lines of both operands (`waiting`), and what memory takes is hardly hidden; less so if those that share lines
# are NEAR each other, in one group of multiprocessors, whose requests for a line become one. Only where there are more than 128
# multiprocessors, at least one of at most eight groups has sixteen for certain. Odd rows of a C that the second-level cache does not hold
# are `spilt` to memory in parts of sectors, most of them from tiles of 192 rows, and so each byte that is `written` takes longer. The rates
# are those of an H200, as its power allows for long, by the times of 19,000 launches there and on an H100, each with other operands.
[time]
cut = "b_across * (0.23 * (BN % 64 > 0) + 0.38 * (BN % 32 > 0))"
together = "CLUSTER * BESIDE > 1"
many = "CLUSTER * BESIDE > 2"
alone = "blocks <= sms"
slower = "(0.012 + 0.03 * a_down * (size == 4)) * together * (blocks > sms) + 0.093 * (BM == 192) * (SPLIT > 1) + 0.117 * (8192 < BM * BN <= 16384) * (blocks > 4 * sms) + 0.061 * (blocks > 6 * sms) + 0.124 * cut + 0.065 * (BN % 16 > 0) + 0.0076 * many"
lone = "(CLUSTER * BESIDE * NEAR * SPLIT == 1) * (0.016 * (BM * BN <= 16384) * (blocks > sms) + 0.015 * PINGPONG * (BN > 128) * (blocks > 2 * sms))"
missed = "(together == 0) * (0.5 * max(0, memory_ratio - 1) * (size == 4) * ((m * k + k * n) * size > 4e8) + (0.0116 + 0.024 * max(0, memory_ratio - 1)) * (BM * BN <= 24576) * (blocks > 6 * sms))"
adrift = "(CLUSTER * BESIDE * NEAR * SPLIT == 1) * 9.4e-4 * max(0, cdiv(part, LINE) - 64)"
apart = "(blocks > sms) * (min(m, n) * k * size > 3e7) * max(0, 3 - BM * BN / 8192) * (0.27 + 0.071 * (together == 0))"
multiply = "BM * BN * LINE / (7.3e12 / size) * (1 + slower + lone + missed + apart + adrift) / (1 + alone * (0.17 + 0.107 * together * (size < 4)))"
cache = "min(1.4e11 - 3.3e10 * together - 2.1e9 * many, 1.6e13 / min(blocks, sms), 1.06e11 + 4.4e10 * alone + (cut == 0) * 1e12)"
a_apart = "1 + (1 - a_start / 128) * (0.47 + 0.27 * (together == 0)) + 0.47 * (a_start < 32)"
b_apart = "1 + (1 - b_start / 128) * (0.099 + 0.57 * (together == 0)) + 0.38 * (b_start < 32)"
spare = "(cdiv(n, BN) * BN - n) / BN / cdiv(blocks, sms)"
columns = "(BN + (cdiv(BN, 64) * 64 - BN) * b_across) * (1 + 1.04 * cut) * (1 + 0.72 * spare * (1 - b_across))"
rows = "BM - (1 - a_down) * (BM - min(BM, cdiv(m, 8) * 8))"
brought = "(rows * a_apart / BESIDE + columns * b_apart / CLUSTER) * 128"
crowded = "((6.2e-7 + 2.3e-7 * max(0, memory_ratio - 1) + 3.5e-7 * together) / (STAGES - 1) + brought * 4.8e-12) * (1 + 0.085 * cut + 0.12 * (BM == 192) * (BN < 128)) * (blocks > sms)"
each = "min(sms, cdiv(blocks, batch * parts))"
band = "min(GROUP, cdiv(m, BM * CLUSTER))"
of_group = "min(blocks, sms) / each * min(1, each / (CLUSTER * BESIDE) / 8) * (max(1, band / 8) * rows * a_apart * CLUSTER + max(1, each / (CLUSTER * BESIDE) / max(band, 8)) * columns * b_apart * BESIDE) * 128"
load = "max(brought / cache, of_group / 1.1e12 * (NEAR * SPLIT == 1), 1.07e-6 / STAGES)"
from_registers = "a_down * (size == 4) * (0.92 * multiply + 8.9e-8)"
step = "max(multiply, load, crowded, from_registers) + 0.19 * min(multiply, load) + (3.5e-8 + 1.55e-9 * many) * together * alone"
steps = "cdiv(part, LINE) * step * (1 + 0.049 * (BM > BN) + 0.052 * (BM * BN <= 8192) * (blocks > sms))"
room = "max(NEAR, (sms - sms // 11 * (SPLIT * NEAR * CLUSTER * BESIDE > 2)) // NEAR * NEAR)"
whole = "cdiv(blocks, room) * (SPLIT == 1) + blocks // (room * SPLIT) * (SPLIT > 1)"
pieces = "cdiv(blocks - whole * room * SPLIT, room) * (SPLIT > 1)"
odd = "min(1, (n + c_down * (m - n)) * out_size % 16)"
store = "2.3e-7 + BM * BN * (1.8e-11 + 1.23e-12 * (BM == 192))"
rows_alone = "odd * (9.7e-7 + BM * BN * 5.1e-12)"
lost = "odd * (together == 0) * (blocks > sms) * (1.1e-7 + 3.3e-6 * (BM * BN <= 26624))"
last = "odd * min(blocks, sms) * BM * BN * out_size * 1.4e-13 * memory_ratio"
stored = "store + rows_alone"
turns = "whole * (lost + PINGPONG * odd * 9.5e-7) + (PINGPONG == 0) * whole * (stored + steps) + PINGPONG * (2 * stored + whole * max(steps, stored + 0.64 * steps))"
tiles = "turns + pieces * (store + 9.9e-7 + BM * BN * (3.7e-10 * (SPLIT - 1) / SPLIT + 4.8e-10 * (parts > 1)) + steps / SPLIT + 0.9e-6 * (SPLIT == 2) * (parts > 1) + 2.9e-7 * (SPLIT > 2) + 2.6e-6 * (SPLIT > 4)) + (1.05e-6 + 1.65e-7 * alone + 1.7e-8 * many) * together + last"
narrow = "1 - b_across * (1 - min(1, min(BN, n) * size / 256))"
twice = "1 + 0.35 * min(1, m // (BM * CLUSTER + 1)) / (memory_ratio * memory_ratio * memory_ratio)"
far = "1 + 0.24 * min(1, n // (BN + 1)) * (m > n)"
spilt = "odd * min(1, m * n * out_size * batch / 5.5e7)"
written = "1 + 0.29 * (BN % 64 > 0) + 0.18 * (out_size == 4) * (1 - odd) + (0.21 + 0.4 * (BM == 192) + 0.28 * (BM == 192) * (out_size == 4)) * spilt"
memory = "((m * k * far + k * n * twice / narrow) * size / (4.9e12 * (1 + 0.047 * ((m * k + k * n) * size > 3e8))) + m * n * out_size * written / 4.6e12) * batch * memory_ratio * (1 - 0.02 * together * (batch > 1))"
sums = "(parts > 1) * m * n * parts * out_size * batch / 1.04e12"
uneven = "(2 * blocks > sms) * (blocks < sms) * (1 - blocks / sms) * (NEAR == 1)"
late = "4e-7 * (together == 0) * (2 * blocks > sms) * (blocks < 1 * sms) + 2.25e-7 * together * alone + (1.6e-7 + 0.077 * memory) * (NEAR > 1) + 1.2e-6 * a_down * (size == 4) + 0.32 * memory * uneven"
waiting = "min(m, n) / max(m, n) * min(1, k / (8 * max(m, n))) * min(1, (parts * SPLIT > 1) + alone) * (m * n > BM * BN)"
seconds = "1.6e-6 + late + max(tiles, memory) + (0.34 - 0.11 * (crowded > 1.05 * multiply) * (SPLIT == 1) * (tiles > 2 * memory) + waiting * (0.081 - 0.54 * (NEAR > 1) - 0.157 * together - 0.02 * (SPLIT > 1))) * min(tiles, memory) - 5.5e-7 * waiting * together + sums + (NEAR > 8) * (sms <= 128)"

[params]
BM = { default = 128, values = [64, 128, 192] }
BN = { default = 256, values = [32, 48, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168, 176, 184, 192, 200, 208, 216, 224, 232, 240, 248, 256] }
STAGES = { default = 4, min = 2, max = 13 }
CLUSTER = { default = 1, values = [1, 2, 4] }
BESIDE = { default = 1, values = [1, 2, 4] }
NEAR = { default = 1, values = [1, 4, 8, 16] }
SPLIT = { default = 1, values = [1, 2, 4, 8] }
PINGPONG = { default = 0, values = [0, 1] }
GROUP = { default = 16, values = [1, 2, 4, 8, 16, 32] }
*/
#include "hopper.cuh"
#include "launches.cuh"
#include "ring.cuh"
#include "wgmma_types.cuh"

#ifndef FINISHED  // 1 where the kernel applies an epilogue, with VECTORS that have a number for each column
#define FINISHED 0
#define VECTORS 0
#define ADDS 0
#endif
#ifndef BLOCKS  // 1 where each step of k has scales of its own
#define BLOCKS 0
#endif
#ifndef PROMOTED  // by ``hopper_promoted.cu``, in which a wgmma forms WIDTH of the columns
#define PROMOTED 0
#define WIDTH BN
#endif
#include "wgmma.cuh"
#ifndef SPLIT  // blocks of a cluster that each sum a piece of k
#define SPLIT 1
#endif
#ifndef PINGPONG  // 1 where both groups compute tiles of their own, in turns: one stores while tensor cores work for the other
#define PINGPONG 0
#endif
#ifndef BESIDE  // blocks of a cluster that are beside each other, and share rows of A, as CLUSTER share columns of B
#define BESIDE 1
#endif
#ifndef NEAR  // blocks of a cluster that has no other purpose than their place: next to each other, as their tiles are
#define NEAR 1
#endif

#ifndef C_DOWN  // 1 where columns of C follow each other in memory
#define C_DOWN 0
#endif
#define IN_REGISTERS (A_DOWN && SIZE == 4)  // A
#if PINGPONG && IN_REGISTERS  // of which they hold 64 rows
#undef PINGPONG
#define PINGPONG 0
#endif
#include "hopper_shared.cuh"
#include "hopper_registers.cuh"
#include "hopper_tiles.cuh"
#include "hopper_finish.cuh"
#include "hopper_store.cuh"
#if SPLIT > 1
#include "hopper_split.cuh"
#endif
#if PROMOTED
#include "hopper_promoted.cuh"
#endif

extern "C" __global__ void __cluster_dims__(TOGETHER * NEAR) __launch_bounds__(THREADS, 1)
hopper(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
       Out* elements_of_c,
#if FINISHED || BLOCKS
       const void* bias, const float* row_scales, const float* column_scales,
#endif
       OFFSETS_PARAMETER const __grid_constant__ Call call)
{
    Shared& s = *(Shared*)memory;
    if (GROUPED) wait_for_launch_before();  // it may write the ends of groups
    const int group = threadIdx.x / 128, number = TOGETHER > 1 ? cluster_rank() : 0;
    const int piece = SPLIT > 1 ? number : 0, rank = SHARING > 1 ? number : 0;
    const Tiles tiles(call, OFFSETS);
    Ring<DEPTH> ring;
    // Rows beyond a C of few rows are zeros once and for all: to fill them again and again takes the copy engine time.
    const int rows_a = A_DOWN || RAGGED || GROUPED || BESIDE > 1 ? BM : min(BM, (call.m + 7) / 8 * 8);

    if (rows_a < BM) {
        const int chunks = (BM - rows_a) * 8;
        for (int i = threadIdx.x; i < DEPTH * chunks; i += THREADS)
            ((uint4*)&s.a[i / chunks][rows_a * 128])[i % chunks] = uint4 { 0, 0, 0, 0 };
        publish_shared();
    }
    if (threadIdx.x == 32) {
        prefetch_map(a);
        prefetch_map(b);
    }
    init_ring(s.full, s.empty, (PINGPONG ? 1 : GROUPS) * (IN_REGISTERS ? 4 : 1) * MATES);
    if (TOGETHER > 1) cluster_arrive();
    int tile = tiles.first();
    Place place = found(tiles.place(tile, rank, piece));  // before anything is waited for
    __syncthreads();
    wait_for_launch_before();
    let_next_launch_begin();
    if (TOGETHER > 1) cluster_wait();  // the barriers of all blocks are there

    if (group == 0) {  // ---- GLOBAL → SHARED: one thread ------------------------------------------------------------------------
        if (GROUPS > 1) give_registers<GROUPS == 3 ? 32 : 40>();
        // The blocks of a cluster that share the first one's B and its A, as bits.
        constexpr unsigned short of_column = (1 << CLUSTER) - 1, of_row = ((1 << CLUSTER * BESIDE) - 1) / ((1 << CLUSTER) - 1);
        for (; tile < tiles.count; tile = tiles.next(tile), place = tiles.place(tile, rank, piece)) {
            if (threadIdx.x == 0) {
                const auto [top, left, z, first_step, steps, bottom] = place;
                const Source from = source_of(call, z, OFFSETS);
                for (int step = first_step; step < first_step + steps; step++, ring.advance()) {
                    Barrier& full = s.full[ring.slot];
                    unsigned char *to_a = s.a[ring.slot], *to_b = s.b[ring.slot];
                    barrier_wait(s.empty[ring.slot], ring.parity ^ 1);
                    barrier_expect(full, (rows_a + ROWS_B) * 128);
                    auto load_a = [&](int at, int x, int y) {
                        if (BESIDE > 1) load_tile_multicast(to_a + at, a, x, y, from.a, full, of_row << rank % CLUSTER);
                        else load_tile(to_a + at, a, x, y, from.a, full);
                    };
                    auto load_b = [&](int at, int x, int y) {
                        if (CLUSTER > 1) load_tile_multicast(to_b + at, b, x, y, from.b, full, of_column << rank / CLUSTER * CLUSTER);
                        else load_tile(to_b + at, b, x, y, from.b, full);
                    };
                    const int first_a = rank / CLUSTER * SHARE_A, first_b = rank % CLUSTER * SHARE_B;  // of the rows that this block loads
                    if (A_DOWN)
                        #pragma unroll
                        for (int i = 0; i < BM; i += LINE) load_a(i * 128 + first_a * 128, from.row + top + i, from.k + step * LINE + first_a);
                    else load_a(first_a * 128, step * LINE, from.row + top + first_a);
                    if (B_ACROSS)
                        #pragma unroll
                        for (int i = 0; i < ROWS_B / 64; i++) load_b(i * 8192 + first_b * 128, left + i * 64, from.k + step * LINE + first_b);
                    else load_b(first_b * 128, step * LINE, left + first_b);
                }
            }
#if SPLIT > 1
            if (tiles.is_split(tile)) wait_for_sums();
#endif
        }
    } else {  // ---- MULTIPLY: 64 rows for each group, or every second tile -------------------------------------------------------
        if (GROUPS > 1) take_registers<GROUPS == 3 ? 160 : 232>();
        const int half = group - 1, thread = threadIdx.x % 128, first_rows = PINGPONG ? 0 : half * 64;
#if PROMOTED
        Sums sums;
#endif
        int buffer = 0, before = 0;
        bool owed = false;  // whether the stage of the step before is still to be given back, that of slabs when the next tile has begun
        if (PINGPONG && half == 1) {
            ring.skip(place.steps);
            tile = tiles.next(tile);
            place = tiles.place(tile, rank, piece);
        }
        while (tile < tiles.count) {
            const auto [tile_top, tile_left, z, first_step, steps, bottom] = place;
            const int following = tiles.next(tile), next = PINGPONG ? tiles.next(following) : following;
            // The place of the next tile, found while tensor cores still work for this one.
            auto look_ahead = [&] {
                if (next < tiles.count) place = found(tiles.place(next, rank, piece));
            };
            // The other group has waited for all stages before. Before the very first tile there is none.
            if (PINGPONG && tile != tiles.first()) group_sync(TURN + half, 256);
            const int left = tile_left + (tiles.is_split(tile) ? piece * (BN / SPLIT) : 0);  // of what this block stores
#if GROUPED == OF_K
            const Range of_k = range_of_group(offsets, z, call.batch, call.k);
            const int in_last_step = of_k.end - of_k.begin - (steps - 1) * LINE;  // of k
#endif
            SUM sums_of[HEIGHT][BN / 2];
            SUM(&d)[BN / 2] = sums_of[0];
#if FINISHED
            const Finish finish(call, { bias, row_scales, column_scales }, tile_top + first_rows, left, bottom);
#else
            const Finish finish;
#endif
            if (PROMOTED || SPLIT > 1)  // a piece may have no steps
                #pragma unroll
                for (int i = 0; i < BN / 2; i++) d[i] = 0;
#if PROMOTED
#if BLOCKS
            Scales scales(call, { bias, row_scales, column_scales }, tile_top + half * 64, left, bottom, z, first_step, steps);
#else
            Scales scales;
#endif
            int step = 0;
            for (; step + CHUNK <= steps; step += CHUNK) add_steps<CHUNK>(s, ring, half, d, sums, scales);
            for (; CHUNK > 1 && step < steps; step++) add_steps<1>(s, ring, half, d, sums, scales);
            look_ahead();
#elif IN_REGISTERS
            before = add_steps_from_registers(s, ring, half, d, steps);
            look_ahead();
#else
            for (int step = 0; step < steps; step++) {
                barrier_wait(s.full[ring.slot], ring.parity);
#if GROUPED == OF_K
                if (step + 1 == steps && in_last_step < LINE) clear_stage(s, ring.slot, half, in_last_step);
#endif
                const unsigned long long x = descriptor(s.a[ring.slot] + first_rows * 128, 16, 1024);
                const unsigned long long y = descriptor(s.b[ring.slot], B_ACROSS ? 8192 : 16, 1024);
                wgmma_fence();
                #pragma unroll
                for (int q = 0; q < 4; q++)
                    #pragma unroll
                    for (int h = 0; h < HEIGHT; h++)
                        wgmma(sums_of[h], x + (A_DOWN ? 128 : 2) * q + h * (8192 / 16), y + (B_ACROSS ? 128 : 2) * q, step > 0 || q > 0);
                wgmma_commit();
                if (PINGPONG && step + 1 == steps && following < tiles.count) group_arrive(TURN + (half ^ 1), 256);
                wgmma_wait<1>();  // the wgmmas of the step before have read their stage
                if (owed) {
                    if (!OWN_SLABS && step == 0) slabs_leave(half);
                    release(s, before);
                }
                before = ring.slot;
                ring.advance();
                // Of few stages none is kept while tensor cores wait for the next one. Of many it does not matter, and takes time.
                owed = DEPTH > 3 || step + 1 == steps || barrier_passed(s.full[ring.slot], ring.parity);
                if (!owed) {
                    wgmma_wait<0>();
                    release(s, before);
                }
            }
            look_ahead();
            wgmma_wait<0>();
            #pragma unroll
            for (int h = 0; h < HEIGHT; h++)
                #pragma unroll
                for (int i = 0; i < BN / 2; i++) asm volatile("" : LETTER(sums_of[h][i])::"memory");  // read only from here on
            if (OWN_SLABS) {
                if (SPLIT == 1 || steps > 0) release(s, before);
                owed = false;
            }
#endif

            // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------
            finish.share(s.columns[half], half);
#if SPLIT > 1
            if (tiles.is_split(tile)) {
                SUM share[BN / 2 / SPLIT];
                add_pieces(d, share, piece);
                store_sums(s, share, c, elements_of_c, call, finish, half, tile_top + half * 64, left, z, bottom, before, buffer);
            } else
#endif
            store_sums(s, d, c, elements_of_c, call, finish, half, tile_top + first_rows, left, z, bottom, before, buffer);
            #pragma unroll
            for (int h = 1; h < HEIGHT; h++) {
#if FINISHED
                const Finish finish(call, { bias, row_scales, column_scales }, tile_top + h * 64, left, bottom);
#endif
                finish.share(s.columns[half], half);
                store_sums(s, sums_of[h], c, elements_of_c, call, finish, half, tile_top + h * 64, left, z, bottom, before, buffer);
            }
            if (!OWN_SLABS) {
                if (IN_REGISTERS) {
                    slabs_leave(half);
                    release(s, before);
                }
                buffer = 0;
            }
            if (PINGPONG && following < tiles.count) ring.skip(tiles.length(following));
            tile = next;
        }
        if (STORE_BOXES && thread == 0) store_wait_read<0>();
    }
    if (SHARING > 1) cluster_sync();  // no block leaves while the other writes to its memory
}
