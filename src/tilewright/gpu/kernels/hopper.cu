/*
idea = "The copy engine fills a ring of tiles in shared memory, tensor cores multiply from there, and each warp does only one of the two."
row = "S0.9, S2"
entry = "hopper"
dtypes = ["bfloat16", "float16", "tf32", "int8", "float8_fast"]
stores = ["bfloat16", "float16", "float32", "int8", "int32"]
capability = "9.0a"
invariant = "SPLIT == 1"
triangle = ["BM * CLUSTER", "BN * BESIDE", "(NEAR == 1) * SPLIT * CLUSTER * BESIDE"]
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
    { rate = 100, when = "(m <= 256) * (k >= 1024) * (cdiv(n, 48) * cdiv(m, BM) <= 132)", params = { BM = 64, BN = 48, STAGES = 13 } },
    { rate = 100, when = "m * n <= 2097152 * (1 + triangle)", params = [
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

costs = [
    "cut_half", "cut_quarter", "tall_split", "small_turns", "cut_multiplied", "odd_width", "lone_pingpong",
    "missed_memory", "missed_turns_memory", "apart_above", "few_faster", "cache_of_all", "cache_cut", "a_apart_odd",
    "b_apart_odd", "cut_read", "spare_read", "crowded_memory_s", "crowded_cut", "crowded_tall", "stage_s",
    "registers_share", "registers_s", "tall_steps", "small_steps", "store_s", "store_element_s", "store_tall_s",
    "odd_store_s", "odd_element_s", "odd_lost_s", "odd_lost_small_s", "odd_last_s", "odd_pingpong_s", "pingpong_steps",
    "split_s", "split_element_s", "split_parts_s", "split_two_s", "split_four_s", "split_eight_s", "spilt_size",
    "odd_width_written", "wide_written", "spilt_written", "spilt_tall", "spilt_tall_wide", "read_rate", "large_read",
    "large_above", "write_rate", "sums_rate", "late_s", "late_near_s", "late_near_memory", "late_registers_s",
    "late_uneven", "launch_s", "crowded_above", "waiting_unhidden", "waiting_near", "waiting_split", "narrow_step_s",
    "late_split",
]
unfitted = [
    "paired", "paired_registers", "many_turns", "paired_many", "lone_small", "missed_above", "missed_turns",
    "adrift_step", "apart_small", "apart_lone", "multiply_rate", "few_paired_faster", "cache_rate", "cache_paired",
    "cache_many", "cache_cut_alone", "a_apart_paired", "a_apart_lone", "b_apart_paired", "b_apart_lone", "crowded_s",
    "crowded_paired_s", "crowded_byte_s", "group_rate", "step_unhidden", "paired_step_s", "many_step_s", "cluster_s",
    "cluster_alone_s", "cluster_many_s", "b_twice", "a_twice", "batch_paired", "late_paired_s", "unhidden",
    "unhidden_crowded", "waiting_paired", "waiting_paired_s",
]

[boxes]
a = ["min(BM // BESIDE, cdiv(m, 8) * 8 + (BESIDE > 1) * BM)", "LINE"]
a_down = ["LINE // BESIDE", "LINE"]
b = ["LINE // CLUSTER", "64"]
b_down = ["cdiv(BN, 8 * CLUSTER) * 8", "LINE"]
c = ["64", "LINE"]
c_down = ["16 - BN % 16", "LINE"]

# A step of a tile takes as long as the slower of tensor cores, and of the second-level cache, from which every block of a cluster gets its
# share of the rows of A and of the columns of B, or as a stage that is used again waits for memory; tiles of fewer than 64 columns take
# longer (`narrow_step_s`). Rows that do not begin at whole lines are parts of two, and of a sector more (`a_apart`, `b_apart`), and so is a
# share `cut` of the boxes of a row-major B, if tiles are not multiples of 64 wide. Blocks of a cluster wait for each other, where none has
# other tiles to hide it, those of `many` longer. Blocks that read the same columns of B at once read a part of them twice from memory. Of
# tiles that are split (SPLIT) there are generations of `pieces`; larger clusters than pairs do not find `room` on all multiprocessors. Of
# more blocks than multiprocessors a stage comes no faster than a turn of the ring (`crowded`), and of long ones those without a cluster
# lose each other in the cache (`missed`). Blocks that read the same rows of A are `far` from each other, and also read a part of them
# twice. An A that comes from registers takes time to load (`from_registers`). Odd rows of C are stored by the warps that multiply
# (`rows_alone`), after the `last` tiles by all blocks at once; blocks without a cluster then lose each other (`lost`). Blocks that are
# neither few nor enough for all multiprocessors begin `late`, when the launch before has ended, and some share a way to memory with another
# one, which others have alone (`uneven`); those that share a tile (SPLIT) and are more than half as many as multiprocessors wait for memory
# longer (`late_split`). What the blocks of one group of multiprocessors read, each line once, comes over a way of its own (`of_group`):
# every eighth block is in the same one. Blocks without a cluster are slower if they are small (`lone`), and lose each other where k is long
# (`adrift`), and so do small tiles where neither operand stays in the cache (`apart`). With PINGPONG only the last tile's sums are stored
# while nothing is multiplied, by half as many threads. Where memory is slower (memory_ratio), fewer of the bytes that blocks share are read
# twice. Of few tiles with a long k, blocks wait for the same lines of both operands (`waiting`), and what memory takes is hardly hidden;
# less so if those that share lines are NEAR each other, in one group of multiprocessors, whose requests for a line become one. Only where
# there are more than 128 multiprocessors, at least one of at most eight groups has sixteen for certain. Odd rows of a C that the
# second-level cache does not hold are `spilt` to memory in parts of sectors, most of them from tiles of 192 rows, and so each byte that is
# `written` takes longer. Tiles of a `triangle` are stored twice, and its operands are one matrix, of which the cache holds more.
[time]
cut = "b_across * (cut_half * (BN % 64 > 0) + cut_quarter * (BN % 32 > 0))"
together = "CLUSTER * BESIDE > 1"
many = "CLUSTER * BESIDE > 2"
alone = "blocks <= sms"
slower = "(paired + paired_registers * a_down * (size == 4)) * together * (blocks > sms) + tall_split * (BM == 192) * (SPLIT > 1) + small_turns * (8192 < BM * BN <= 16384) * (blocks > 4 * sms) + many_turns * (blocks > 6 * sms) + cut_multiplied * cut + odd_width * (BN % 16 > 0) + paired_many * many"
lone = "(CLUSTER * BESIDE * NEAR * SPLIT == 1) * (lone_small * (BM * BN <= 16384) * (blocks > sms) + lone_pingpong * PINGPONG * (BN > 128) * (blocks > 2 * sms))"
missed = "(together == 0) * (missed_memory * max(0, memory_ratio - 1) * (size == 4) * ((m * k + k * n) * size > missed_above) + (missed_turns + missed_turns_memory * max(0, memory_ratio - 1)) * (BM * BN <= 24576) * (blocks > 6 * sms))"
adrift = "(CLUSTER * BESIDE * NEAR * SPLIT == 1) * adrift_step * max(0, cdiv(part, LINE) - 64)"
apart = "(1 - triangle) * (blocks > sms) * (min(m, n) * k * size > apart_above) * max(0, 3 - BM * BN / 8192) * (apart_small + apart_lone * (together == 0))"
multiply = "BM * BN * LINE / (multiply_rate / size) * (1 + slower + lone + missed + apart + adrift) / (1 + alone * (few_faster + few_paired_faster * together * (size < 4)))"
cache = "min(cache_rate - cache_paired * together - cache_many * many, cache_of_all / min(blocks, sms), cache_cut + cache_cut_alone * alone + (cut == 0) * 1e12)"
a_apart = "1 + (1 - a_start / 128) * (a_apart_paired + a_apart_lone * (together == 0)) + a_apart_odd * (a_start < 32)"
b_apart = "1 + (1 - b_start / 128) * (b_apart_paired + b_apart_lone * (together == 0)) + b_apart_odd * (b_start < 32)"
spare = "(cdiv(n, BN) * BN - n) / BN / cdiv(blocks, sms)"
columns = "(BN + (cdiv(BN, 64) * 64 - BN) * b_across) * (1 + cut_read * cut) * (1 + spare_read * spare * (1 - b_across))"
rows = "BM - (1 - a_down) * (BM - min(BM, cdiv(m, 8) * 8))"
brought = "(rows * a_apart / BESIDE + columns * b_apart / CLUSTER) * 128"
crowded = "((crowded_s + crowded_memory_s * max(0, memory_ratio - 1) + crowded_paired_s * together) / (STAGES - 1) + brought * crowded_byte_s) * (1 + crowded_cut * cut + crowded_tall * (BM == 192) * (BN < 128)) * (blocks > sms)"
each = "min(sms, cdiv(blocks, batch * parts))"
band = "min(GROUP, cdiv(m, BM * CLUSTER))"
of_group = "min(blocks, sms) / each * min(1, each / (CLUSTER * BESIDE) / 8) * (max(1, band / 8) * rows * a_apart * CLUSTER + max(1, each / (CLUSTER * BESIDE) / max(band, 8)) * columns * b_apart * BESIDE) * 128"
load = "max(brought / cache, of_group / group_rate * (NEAR * SPLIT == 1), stage_s / STAGES)"
from_registers = "a_down * (size == 4) * (registers_share * multiply + registers_s)"
step = "max(multiply, load, crowded, from_registers) + step_unhidden * min(multiply, load) + (paired_step_s + many_step_s * many) * together * alone + narrow_step_s * max(0, 64 - BN) / 32"
steps = "cdiv(part, LINE) * step * (1 + tall_steps * (BM > BN) + small_steps * (BM * BN <= 8192) * (blocks > sms))"
room = "max(NEAR, (sms - sms // 11 * (SPLIT * NEAR * CLUSTER * BESIDE > 2)) // NEAR * NEAR)"
whole = "cdiv(blocks, room) * (SPLIT == 1) + blocks // (room * SPLIT) * (SPLIT > 1)"
pieces = "cdiv(blocks - whole * room * SPLIT, room) * (SPLIT > 1)"
odd = "min(1, (n + c_down * (m - n)) * out_size % 16)"
store = "store_s + BM * BN * (store_element_s + store_tall_s * (BM == 192))"
rows_alone = "odd * (odd_store_s + BM * BN * odd_element_s)"
lost = "odd * (together == 0) * (blocks > sms) * (odd_lost_s + odd_lost_small_s * (BM * BN <= 26624))"
last = "odd * min(blocks, sms) * BM * BN * out_size * odd_last_s * memory_ratio"
stored = "store * (1 + triangle) + rows_alone"
turns = "whole * (lost + PINGPONG * odd * odd_pingpong_s) + (PINGPONG == 0) * whole * (stored + steps) + PINGPONG * (2 * stored + whole * max(steps, stored + pingpong_steps * steps))"
tiles = "turns + pieces * (store + split_s + BM * BN * (split_element_s * (SPLIT - 1) / SPLIT + split_parts_s * (parts > 1)) + steps / SPLIT + split_two_s * (SPLIT == 2) * (parts > 1) + split_four_s * (SPLIT > 2) + split_eight_s * (SPLIT > 4)) + (cluster_s + cluster_alone_s * alone + cluster_many_s * many) * together + last"
narrow = "1 - b_across * (1 - min(1, min(BN, n) * size / 256))"
twice = "1 + b_twice * min(1, m // (BM * CLUSTER + 1)) / (memory_ratio * memory_ratio * memory_ratio)"
far = "1 + a_twice * min(1, n // (BN + 1)) * (m > n)"
spilt = "odd * min(1, m * n * out_size * batch / spilt_size)"
written = "1 + odd_width_written * (BN % 64 > 0) + wide_written * (out_size == 4) * (1 - odd) + (spilt_written + spilt_tall * (BM == 192) + spilt_tall_wide * (BM == 192) * (out_size == 4)) * spilt"
memory = "((m * k * far + k * n * twice / narrow) * size / (read_rate * (1 + large_read * ((m * k + k * n) * size > large_above))) + m * n * out_size * written / write_rate) * batch * memory_ratio * (1 - batch_paired * together * (batch > 1))"
sums = "(parts > 1) * m * n * parts * out_size * batch / sums_rate"
uneven = "(2 * blocks > sms) * (blocks < sms) * (1 - blocks / sms) * (NEAR == 1)"
late = "late_s * (together == 0) * (2 * blocks > sms) * (blocks < 1 * sms) + late_paired_s * together * alone + (late_near_s + late_near_memory * memory) * (NEAR > 1) + late_registers_s * a_down * (size == 4) + (late_uneven * uneven + late_split * (SPLIT > 1) * (2 * blocks > sms)) * memory"
waiting = "min(m, n) / max(m, n) * min(1, k / (8 * max(m, n))) * min(1, (parts * SPLIT > 1) + alone) * (m * n > BM * BN)"
seconds = "launch_s + late + max(tiles, memory) + (unhidden - unhidden_crowded * (crowded > crowded_above * multiply) * (SPLIT == 1) * (tiles > 2 * memory) + waiting * (waiting_unhidden - waiting_near * (NEAR > 1) - waiting_paired * together - waiting_split * (SPLIT > 1))) * min(tiles, memory) - waiting_paired_s * waiting * together + sums + (NEAR > 8) * (sms <= 128)"

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
#if TRIANGLE
       const __grid_constant__ TensorMap mirrored,
#else
#define mirrored c  // not used
#endif
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
                store_sums(s, share, c, mirrored, elements_of_c, call, finish, half, tile_top + half * 64, left, z, bottom, before, buffer);
            } else
#endif
            store_sums(s, d, c, mirrored, elements_of_c, call, finish, half, tile_top + first_rows, left, z, bottom, before, buffer);
            #pragma unroll
            for (int h = 1; h < HEIGHT; h++) {
#if FINISHED
                const Finish finish(call, { bias, row_scales, column_scales }, tile_top + h * 64, left, bottom);
#endif
                finish.share(s.columns[half], half);
                store_sums(s, sums_of[h], c, mirrored, elements_of_c, call, finish, half, tile_top + h * 64, left, z, bottom, before, buffer);
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
