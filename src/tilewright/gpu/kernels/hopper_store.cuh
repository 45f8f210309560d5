// How a group stores its 64 rows of a tile from registers: in boxes by the copy engine, row by row, or of int8 each thread its pairs.
// Where columns of C follow each other in memory (C_DOWN), they are stored in boxes, as are the elements of a symmetric C that are computed
// once and stored twice (TRIANGLE).
#pragma once
#include "shifts.cuh"

#define MIXED (STORE_BOXES && GROUPED == OF_ROWS)  // boxes, where all of their rows belong to one group
static_assert(STORE_BOXES || !(C_DOWN || TRIANGLE), "columns are stored in boxes");

__device__ __forceinline__ unsigned packed(Values values)
{
    const float low = values.x, high = values.y;
    unsigned both;
    if (OUT == BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

#if OUT != INT8
// Stores 16 bytes where `needed`. The instruction is predicated: a branch would keep the next load waiting for this store.
__device__ __forceinline__ void store_chunk(Out* at, const unsigned (&words)[4], bool needed)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}"
                 ::"l"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"((unsigned)needed) : "memory");
}

// A warp stores 16 rows of a tile that begin anywhere in memory, of which columns `first` and on are in the slab `now` and those before in
// the slab `before`, in chunks of 16 bytes that are swizzled. Lanes store whole chunks of memory, each put together of two in shared memory,
// up to where the last whole sector ends: what is left goes with the next slab, because a sector that is stored in two parts costs twice.
// What is no whole chunk, where a row begins and ends, is stored by elements.
__device__ __forceinline__ void store_rows(Out* to, long long step, const Out (*now)[SLAB], const Out (*before)[SLAB], int first, int rows,
                                           int columns)
{
    if (first > 0 && first >= columns) return;
    constexpr int SIZE_C = sizeof(Out), CHUNK_C = 16 / SIZE_C, LOG_CHUNK = SIZE_C == 2 ? 3 : 2, SECTOR = 32;
    const int lane = threadIdx.x % 32, address = (int)(unsigned long long)to / SIZE_C, next = (int)step;
    auto over = [&](int row) { return (address + row * next) & SECTOR / SIZE_C - 1; };  // elements since its sector began
    auto store = [&](int row, int column) {
        const bool needed = row < rows && column >= 0 && column + CHUNK_C <= columns;
        const int at = needed ? column - first : 0, bytes = (at & CHUNK_C - 1) * SIZE_C;  // what is not needed was perhaps never written
        unsigned chunks[8], words[4];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const int chunk = (at >> LOG_CHUNK) + (i && bytes);
            *(uint4*)&chunks[4 * i] = *(const uint4*)&(chunk < 0 ? before : now)[row][((chunk ^ row) & 7) * CHUNK_C];
        }
        shift_words<4>(words, chunks, bytes);
        store_chunk(&to[row * step + column], words, needed);
    };
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 4 + lane / 8;
        store(row, first - over(row) + lane % 8 * CHUNK_C);
    }
    const bool last = first + SLAB >= columns;
    if (last) store(lane % 16, first + SLAB - over(lane % 16) + lane / 16 * CHUNK_C);
    if (first > 0 && !last) return;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 4 + lane / 8, at = lane % 8, within = over(row) % CHUNK_C;
        auto element = [&](int column) {
            return (column < first ? before : now)[row][((column - first >> LOG_CHUNK ^ row) & 7) * CHUNK_C + column % CHUNK_C];
        };
        const int head = min((CHUNK_C - within) % CHUNK_C, columns), end = max(columns - (within + columns) % CHUNK_C, head);
        if (first == 0 && row < rows && at < head) to[row * step + at] = element(at);
        if (last && row < rows && end + at < columns) to[row * step + end + at] = element(end + at);
    }
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
    constexpr int ELEMENTS = 16 / sizeof(Out), ROWS = 64;
    const int thread = threadIdx.x % 128, chunks = width / ELEMENTS;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i * 128 >= ROWS * chunks) break;
        const int at = i * 128 + thread, row = at / chunks, chunk = at % chunks;
        if (row < ROWS && top + row < call.m && left + chunk * ELEMENTS < call.n)
            *(uint4*)&c[z * call.next_c + (top + row) * call.row_c + left + chunk * ELEMENTS] = *(uint4*)&from[row][(chunk ^ row % 8) * ELEMENTS];
    }
}

// One of the two slabs of group `half`, on the way from the sums of the tile whose last stage is `slot`.
__device__ __forceinline__ Out (*slab_of(Shared& s, int slot, int half, int buffer))[SLAB]
{
#if OWN_SLABS
    return (Out(*)[SLAB])s.slabs[half][buffer];
#else
    return (Out(*)[SLAB])((buffer == 0 ? s.a[slot] : s.b[slot]) + half * (64 * 128));
#endif
}

// Waits until all slabs have left, so that copies may take their place.
__device__ __forceinline__ void slabs_leave(int half)
{
    if (STORE_BOXES && threadIdx.x % 128 == 0) store_wait_read<0>();
    if (!STORE_BOXES || MIXED) publish_shared();
    group_sync(1 + half, 128);
}

// Stores the sums of group `half`, whose first row is `top`, of product `z`, in BOXES or not, as columns if they are DOWN. Rows from `bottom` on are not stored. `slot`
// is the stage that was multiplied last, `buffer` the slab that is written next.
template <bool BOXES, bool DOWN, int SUMS>
__device__ __forceinline__ void store_sums_by(Shared& s, const SUM (&d)[SUMS], const TensorMap& c, Out* elements_of_c, const Call& call,
                                           const Finish& finish, int half, int top, int left, int z, int bottom, int slot, int& buffer)
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    auto values = [&](int i, const Slab& columns) {  // of sums i and i + 1 of this thread, which are neighbours in a row
        float2 old = { 0, 0 };
#if ADDS
        const int row = top + row_of_sums(warp, lane, i / 2 % 2), column = left + i / 4 * 8 + lane % 4 * 2;
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
        Out(*to)[SLAB] = slab_of(s, slot, half, buffer);
        const Slab columns = finish.slab(s.columns[half], slab * SLAB);
        if (!OWN_SLABS && GROUPS > 1 && slab == 1) group_sync(READ, 128 * GROUPS);
        if (BOXES && thread == 0) store_wait_read<1>();  // the slab before the last has left
        if (BOXES) group_sync(1 + half, 128);
#if HALF
        #pragma unroll
        for (int i = 0; i < 4; i++) {  // 16 columns: 8×8 matrices of rows 0-7 and 8-15, then of the next 8 columns, if there are any
            if (i * 16 >= width) break;
            const int at = slab * 32 + i * 8;
            const int row = DOWN ? i * 16 + lane / 16 * 8 + lane % 8 : warp * 16 + lane % 16;
            const int chunk = DOWN ? warp * 2 + lane / 8 % 2 : i * 2 + lane / 16;
            void* first = &to[row][(chunk ^ row % 8) * 8];
            const unsigned upper = packed(values(at, columns)), lower = packed(values(at + 2, columns));
            if (width - i * 16 == 8) store_matrices<DOWN>(first, upper, lower);
            else store_matrices<DOWN>(first, upper, lower, packed(values(at + 4, columns)), packed(values(at + 6, columns)));
        }
#else
        #pragma unroll
        for (int i = 0; i < SLAB / 2; i += 2) {
            if (i >= width / 2) break;
            const int row = row_of_sums(warp, lane, i / 2 % 2), col = i / 4 * 8 + lane % 4 * 2, at = slab * (SLAB / 2) + i;
            const auto [x, y] = values(at, columns);
            auto in_column = [&](int col) -> Out& { return to[row / SLAB * SLAB + col][(row % SLAB / 4 ^ col % 8) * 4 + row % 4]; };
            if (DOWN) in_column(col) = (Out)x, in_column(col + 1) = (Out)y;
            else *(Pair*)&to[row][(col / 4 ^ row % 8) * 4 + col % 4] = Pair{ (Out)x, (Out)y };
        }
#endif
        if (BOXES) {
            publish_shared();
            group_sync(1 + half, 128);
            if (thread == 0 && DOWN)
                for (int j = 0; j < 64; j += SLAB)
                    for (int i = 0; i < width; i += BOX_C) store_tile(c, to[j + i], top + j, left + slab * SLAB + i, z);
            else if (thread == 0 && width == SLAB) store_tile(c, to, left + slab * SLAB, top, z);
            if (thread == 0) store_commit();
            if (!DOWN && width < SLAB) store_chunks(elements_of_c, to, call, top, left + slab * SLAB, z, width);
        }
#if OUT != INT8
        else {
            if (IN_REGISTERS) group_sync(1 + half, 128);  // of which other warps have written some
            else __syncwarp();                            // a warp stores the rows that it has written
            const Out(*before)[SLAB] = slab_of(s, slot, half, buffer ^ 1) + warp * 16;
            Out* rows = elements_of_c + z * call.next_c + (top + warp * 16) * call.row_c + left;
            store_rows(rows, call.row_c, &to[warp * 16], before, slab * SLAB, bottom - top - warp * 16, min(2 * SUMS, call.n - left));
            if (IN_REGISTERS) group_sync(1 + half, 128);
            else __syncwarp();  // before the slab after the next is written
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

// The same where a box would reach into the rows of the next group: those are stored row by row. `mirrored` is the map of a symmetric C
// by columns.
template <int SUMS>
__device__ __forceinline__ void store_sums(Shared& s, const SUM (&d)[SUMS], const TensorMap& c, const TensorMap& mirrored,
                                           Out* elements_of_c, const Call& call, const Finish& finish, int half, int top, int left, int z,
                                           int bottom, int slot, int& buffer)
{
    if (!MIXED || top + 64 <= bottom)
        store_sums_by<STORE_BOXES, C_DOWN>(s, d, c, elements_of_c, call, finish, half, top, left, MIXED ? 0 : z, bottom, slot, buffer);
    else {
        if (OWN_SLABS) slabs_leave(half);  // boxes of the tile before
        store_sums_by<false, C_DOWN>(s, d, c, elements_of_c, call, finish, half, top, left, 0, bottom, slot, buffer);
    }
    if (Tiles::is_mirrored(top, left))
        store_sums_by<STORE_BOXES, true>(s, d, mirrored, elements_of_c, call, finish, half, top, left, z, bottom, slot, buffer);
}
