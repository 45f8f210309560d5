// Where the numbers of float64 MMAs lie in the tile of a warp: which operand comes first, and in which order its rows or columns.
#pragma once

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, WARPS = WARPS_M * WARPS_N;

// The instruction multiplies 16×8 by 8×K numbers. Its first operand is A, its second B; but where rows of B follow each other, the
// first is Bᵀ and the second Aᵀ, because then a load of 16 bytes gives what the instruction wants in consecutive registers.
// ACROSS: the numbers of a step of k follow each other, not those of a row of the first operand or a column of the second.
constexpr bool SWAPPED = B_ACROSS, FIRST_ACROSS = SWAPPED || A_DOWN, SECOND_ACROSS = SWAPPED && A_DOWN;
constexpr int MMAS_1 = (SWAPPED ? WN : WM) / 16, MMAS_2 = (SWAPPED ? WM : WN) / 8;  // of a warp's tile

// With g = lane / 4 and t = lane % 4, a lane has rows g and g + 8 of an MMA's first operand, and of its result also columns 2·t and
// 2·t + 1 of the second: elements 2·h + e, of row half h and column e. Which rows and columns of the tile these are may be chosen.
// Of operands that lie across they are neighbours, which one load gives. This is where those of MMA `r` or `s` lie along the operand.
__device__ __forceinline__ int in_first(int r, int h, int g) { return r * 16 + (FIRST_ACROSS ? 2 * g + h : 8 * h + g); }
__device__ __forceinline__ int in_second(int s, int e, int t)
{
    return SECOND_ACROSS ? s / 2 * 16 + 2 * (2 * t + e) + s % 2 : s * 8 + 2 * t + e;
}
