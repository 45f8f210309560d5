// How a group stores its 64 rows of a tile from registers: in boxes by the copy engine, row by row, or of int8 each thread its pairs.
// Where columns of a C of 16 bits follow each other in memory (C_DOWN), a slab has 64 of them, and what is said of rows is of columns.
#pragma once

__device__ __forceinline__ unsigned packed(Values values)
{
    const float low = values.x, high = values.y;
    unsigned both;
    if (OUT == BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

#if HALF
// A warp stores 16 rows of up to 64 elements, of which each lane has a word of two; in `from` chunks of 16 bytes are swizzled. A row
// that begins within a word of C takes one half of each from the lane before. What is no whole word is stored afterwards: with it
// the loop would have branches, and each store would wait for the load before it.
__device__ __forceinline__ void store_rows(Out* to, long long step, const Out (*from)[64], int rows, int columns)
{
    const int lane = threadIdx.x % 32;
    auto within = [&](int r) { return (int)((unsigned long long)(to + r * step) / 2 % 2); };
    const bool inside = 2 * lane < columns;  // beyond, nothing may have been written
    #pragma unroll
    for (int r = 0; r < 16; r++) {
        const unsigned word = inside ? ((const unsigned*)from[r])[(lane / 4 ^ r % 8) * 4 + lane % 4] : 0;
        const unsigned before = __shfl_up_sync(0xFFFFFFFF, word, 1);
        const int at = 2 * lane - within(r);
        if (r < rows && at >= 0 && at + 1 < columns)
            *(unsigned*)&to[r * step + at] = within(r) ? __funnelshift_l(before, word, 16) : word;
    }
    if (lane >= 16 || lane >= rows || columns <= 0) return;
    auto element = [&](int i) { return from[lane][(i / 8 ^ lane % 8) * 8 + i % 8]; };
    if (within(lane)) to[lane * step] = element(0);
    if ((columns - within(lane)) % 2) to[lane * step + columns - 1] = element(columns - 1);
}
#elif OUT != INT8
// The same of numbers of four bytes, of which each lane has one: neighbours in a row go to memory together, wherever the row begins.
__device__ __forceinline__ void store_rows(Out* to, long long step, const Out (*from)[SLAB], int rows, int columns)
{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int r = 0; r < 16; r++)
        if (r < rows && lane < columns) to[r * step + lane] = from[r][(lane / 4 ^ r % 8) * 4 + lane % 4];
}
#endif

#if ADDS
// Two neighbours of a row of C, of which the first is at `column`, and columns `step` elements apart; beyond the edges 0.
__device__ __forceinline__ float2 old_pair(const Out* row, long long step, int column, bool inside, int n)
{
    float2 old = { 0, 0 };
    if (!C_DOWN && (STORE_BOXES || STORE_PAIRS)) {  // then n is even
        if (!inside || column >= n) return old;
        const Pair pair = *(const Pair*)&row[column];
        return { Number<OUT>::wide(pair.x), Number<OUT>::wide(pair.y) };
    }
    if (inside && column < n) old.x = Number<OUT>::wide(row[column * step]);
    if (inside && column + 1 < n) old.y = Number<OUT>::wide(row[(column + 1) * step]);
    return old;
}
#endif

// Stores the first `width` columns of a slab, whose chunks of 16 bytes are swizzled, where rows of C begin at whole chunks.
__device__ __forceinline__ void store_chunks(Out* c, const Out (*from)[SLAB], const Call& call, int top, int left, int z, int width)
{
    constexpr int ELEMENTS = 16 / sizeof(Out);
    const int thread = threadIdx.x % 128, chunks = width / ELEMENTS;
    #pragma unroll
    for (int i = 0; i < 3; i++) {
        if (i >= chunks / 2) break;
        const int at = i * 128 + thread, row = at / chunks, chunk = at % chunks;
        if (top + row < call.m && left + chunk * ELEMENTS < call.n)
            *(uint4*)&c[z * call.next_c + (top + row) * call.row_c + left + chunk * ELEMENTS] = *(uint4*)&from[row][(chunk ^ row % 8) * ELEMENTS];
    }
}

// Stores the sums of group `half`, whose first row is `top`, of product `z`. Rows from `bottom` on are not stored. `buffer` is the
// slab of shared memory that is written next.
template <int SUMS>
__device__ __forceinline__ void store_sums(Shared& s, const SUM (&d)[SUMS], const TensorMap& c, Out* elements_of_c, const Call& call,
                                           const Finish& finish, int half, int top, int left, int z, int bottom, int& buffer)
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    auto values = [&](int i, const Slab& columns) {  // of sums i and i + 1 of this thread, which are neighbours in a row
        float2 old = { 0, 0 };
#if ADDS
        const int row = top + warp * 16 + lane / 4 + i / 2 % 2 * 8, column = left + i / 4 * 8 + lane % 4 * 2;
        const long long down = C_DOWN ? 1 : call.row_c, across = C_DOWN ? call.row_c : 1;
        old = old_pair(elements_of_c + z * call.next_c + row * down, across, column, row < bottom, call.n);
#endif
        return finish.pair(d[i], d[i + 1], i % (SLAB / 2), columns, old);
    };
#if OUT != INT8 || STORE_BOXES
    // Through shared memory: by the copy engine, which goes on while the next tile is multiplied, or row by row.
    #pragma unroll
    for (int slab = 0; slab < (2 * SUMS + SLAB - 1) / SLAB; slab++, buffer ^= 1) {
        const int width = min(SLAB, 2 * SUMS - slab * SLAB);
        Out(*to)[SLAB] = (Out(*)[SLAB])s.c[half][buffer];
        const Slab columns = finish.slab(s.columns[half], slab * SLAB);
        if (STORE_BOXES && thread == 0) store_wait_read<1>();  // the slab before the last has left
        if (STORE_BOXES) group_sync(1 + half, 128);
#if HALF
        #pragma unroll
        for (int i = 0; i < 4; i++) {  // 16 columns: 8×8 matrices of rows 0-7 and 8-15, then of the next 8 columns
            if (i >= width / 16) break;
            const int at = slab * 32 + i * 8;
            const int row = C_DOWN ? i * 16 + lane / 16 * 8 + lane % 8 : warp * 16 + lane % 16;
            const int chunk = C_DOWN ? warp * 2 + lane / 8 % 2 : i * 2 + lane / 16;
            store_matrices<C_DOWN>(&to[row][(chunk ^ row % 8) * 8], packed(values(at, columns)), packed(values(at + 2, columns)),
                           packed(values(at + 4, columns)), packed(values(at + 6, columns)));
        }
#else
        #pragma unroll
        for (int i = 0; i < SLAB / 2; i += 2) {
            if (i >= width / 2) break;
            const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2, chunk = col / 4 ^ row % 8;
            const int at = slab * (SLAB / 2) + i;
            const auto [x, y] = values(at, columns);
            *(Pair*)&to[row][chunk * 4 + col % 4] = Pair{ (Out)x, (Out)y };
        }
#endif
        if (STORE_BOXES) {
            publish_shared();
            group_sync(1 + half, 128);
            if (thread == 0 && C_DOWN)
                for (int i = 0; i < width; i += 16) store_tile(c, to[i], top, left + slab * SLAB + i, z);
            else if (thread == 0 && width == SLAB) store_tile(c, to, left + slab * SLAB, top, z);
            if (thread == 0) store_commit();
            if (!C_DOWN && width < SLAB) store_chunks(elements_of_c, to, call, top, left + slab * SLAB, z, width);
        }
#if OUT != INT8
        else if (C_DOWN) {
            group_sync(1 + half, 128);
            const int first = left + slab * SLAB + warp * 16;
            Out* to_first = elements_of_c + z * call.next_c + first * call.row_c + top;
            if (warp * 16 < width) store_rows(to_first, call.row_c, &to[warp * 16], call.n - first, min(SLAB, bottom - top));
        } else {
            __syncwarp();  // a warp stores the rows that it has written
            const int columns = min(width, call.n - left - slab * SLAB);
            Out* rows = elements_of_c + z * call.next_c + (top + warp * 16) * call.row_c + left + slab * SLAB;
            store_rows(rows, call.row_c, &to[warp * 16], bottom - top - warp * 16, columns);
        }
#endif
    }
#else
    const int row = top + warp * 16 + lane / 4, col = left + lane % 4 * 2;
    Out* to = elements_of_c + z * call.next_c + row * call.row_c + col;
    #pragma unroll
    for (int i = 0; i < SUMS; i += 2) {
        const int r = i / 2 % 2 * 8, j = i / 4 * 8;
        if (row + r >= bottom || col + j >= call.n) continue;
        const auto [x, y] = values(i, finish.slab(s.columns[half], j / SLAB * SLAB));
        const Pair pair = { (Out)x, (Out)y };
        Out* at = to + r * call.row_c + j;
        if (STORE_PAIRS) *(Pair*)at = pair;  // then n is even
        else {
            at[0] = pair.x;
            if (col + j + 1 < call.n) at[1] = pair.y;
        }
    }
#endif
}
