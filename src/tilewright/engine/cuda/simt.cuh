// The product of float32 or complex64 by multiply-adds: the main loop of the rung register_banks, for any layout and any size.
#pragma once

#include "slabs.cuh"

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;  // 2·4 warps: 256
constexpr int LANES_M = WM / TM, LANES_N = WN / TN;                                    // of a warp: 8·4
constexpr int VECTOR = 16 / sizeof(Element);                                           // elements that one instruction loads

struct Stage {
    // If threads copy 8 steps of 4 places at once, rows that lie 16 bytes apart put them into different banks.
    static constexpr int A_PITCH = BM + VECTOR, B_PITCH = BN + (B_ACROSS ? 0 : VECTOR);
    Element a_tile[BK][A_PITCH];  // 8·132 floats
    Element b_tile[BK][B_PITCH];  // 8·256 floats; both together 12.125 KiB, six stages 72.75 KiB
};

__device__ __forceinline__ void multiply_add(float& sum, float a, float b)
{
    sum += a * b;
}

__device__ __forceinline__ void multiply_add(float2& sum, float2 a, float2 b)
{
    sum.x += a.x * b.x;
    sum.y += a.x * b.y;
    sum.x -= a.y * b.y;
    sum.y += a.y * b.x;
}

// One tile of C. Operands whose elements follow each other across their tile are copied A_WIDTH and B_WIDTH at a time.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Element* c, const Call& call, Stage* stages)
{
    const auto [top, left, z, product, first, length] = place_of_block(call);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    Slab<Element, BM, A_DOWN, A_WIDTH, THREADS, Stage::A_PITCH, 1, 0, true> from_a(
        a + product * call.next_a + first * call.column_a, top, call.m, call.row_a, call.column_a);
    Slab<Element, BN, B_ACROSS, B_WIDTH, THREADS, Stage::B_PITCH, 1, 0, true> from_b(
        b + product * call.next_b + first * call.row_b, left, call.n, call.column_b, call.row_b);
    auto fetch = [&](Stage& stage, int steps) {
        from_a.copy(stage.a_tile[0], steps);
        from_b.copy(stage.b_tile[0], steps);
    };

    const int tiles = length > 0 ? (length - 1) / BK + 1 : 0;
    #pragma unroll
    for (int tile = 0; tile < STAGES; tile++) {
        if (tile < tiles) fetch(stages[tile], tile == 0 ? length - (tiles - 1) * BK : BK);
        copy_async_commit();
    }

    // ---- SHARED → REGISTERS ----------------------------------------------------------------------------------------------
    // A load of 128 bits takes four passes; it takes two if every lane reads the same as its neighbour (lane ^ 1), or every
    // lane the same as the neighbour but one (lane ^ 2). So bit 0 of the lane selects columns, and bit 1 rows: the first is
    // then true for A, the second for B.
    const int lane_x = lane % 2 + lane / 4 % (LANES_N / 2) * 2, lane_y = lane / 2 % 2 + lane / 4 / (LANES_N / 2) * 2;
    const int y = warp % WARPS_M * WM + lane_y * VECTOR, x = warp / WARPS_M * WN + lane_x * VECTOR;
    auto row_of = [](int r) { return r / VECTOR * (LANES_M * VECTOR) + r % VECTOR; };
    auto column_of = [](int s) { return s / VECTOR * (LANES_N * VECTOR) + s % VECTOR; };

    Element of_a[2][TM], of_b[2][TN];  // of this step and of the next
    const Element *a_at = &stages[0].a_tile[0][y], *b_at = &stages[0].b_tile[0][x];
    // With this order the compiler leaves multiply-adds between two loads, as the rung says.
    auto load = [&](int i, int buffer) {
        #pragma unroll
        for (int s = TN - VECTOR; s >= 0; s -= VECTOR)
            *(float4*)&of_b[buffer][s] = *(const float4*)(b_at + i * Stage::B_PITCH + column_of(s));
        #pragma unroll
        for (int r = 0; r < TM; r += VECTOR)
            *(float4*)&of_a[buffer][r] = *(const float4*)(a_at + i * Stage::A_PITCH + row_of(r));
    };

    copy_async_wait<STAGES - 1>();
    __syncthreads();
    if (tiles > 0) load(0, 0);

    // ---- MULTIPLY ----------------------------------------------------------------------------------------------------------
    Element sum[TM][TN] = {};  // 128 registers
    int now = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int old = now;
        #pragma unroll
        for (int i = 0; i < BK; i++) {
            if (i == BK - 1) {
                copy_async_wait<STAGES - 2>();  // this thread's part of the next stage has arrived
                __syncthreads();                // and all other threads' parts; all have read this stage's last step
                if (tile + 1 < tiles) now = now + 1 == STAGES ? 0 : now + 1;
                a_at = &stages[now].a_tile[0][y];
                b_at = &stages[now].b_tile[0][x];
            }
            load((i + 1) % BK, (i + 1) % 2);

            // A multiply-add reads three registers from two banks, even and odd, which serve one read a cycle each. So one of the
            // three must be reused from the last instruction: within a column that of B, from one column to the next that of A.
            #pragma unroll
            for (int s = 0; s < TN; s++)
                #pragma unroll
                for (int t = 0; t < TM; t++) {
                    const int r = s % 2 == 0 ? t : TM - 1 - t;
                    multiply_add(sum[r][s], of_a[i % 2][r], of_b[i % 2][s]);
                }
        }
        if (tile + STAGES < tiles) fetch(stages[old], BK);
        copy_async_commit();
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    // sum[r][s] should not lie in the bank of A's r, so a whole row lies in one bank. But what one instruction stores lies in
    // consecutive registers, in both banks. So copies are stored, and the compiler must not see that they are copies: zero is 0
    // because k is not negative, which the compiler does not know.
    const int zero = call.k >> 31;
    c += z * call.next_c;
    #pragma unroll
    for (int r = 0; r < TM; r++) {
        const int row = top + y + row_of(r);
        if (row >= call.m) break;
        #pragma unroll
        for (int s = 0; s < TN; s += VECTOR) {
            const int col = left + x + column_of(s);
            Element* to = c + row * call.row_c + col;
            union {
                int bits[4];
                float4 all;
                Element v[VECTOR];
            } copy;
            #pragma unroll
            for (int j = 0; j < 4; j++) copy.bits[j] = ((const int*)&sum[r][s])[j] ^ zero;
            if (C_VECTOR == 16 && col + VECTOR <= call.n) *(float4*)to = copy.all;
            else
                #pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    if (col + j < call.n) to[j] = copy.v[j];
        }
    }
}

__device__ __forceinline__ void multiply_strided(const Element* a, const Element* b, Element* c, const Call& call)
{
    extern __shared__ __align__(16) char memory[];
    // Copies of 16 bytes need whole ones: of other sizes no row of A or B is copied in such.
    constexpr bool WIDE_A = A_DOWN && A_VECTOR == 16, WIDE_B = B_ACROSS && B_VECTOR == 16;
    if ((WIDE_A || WIDE_B) && (!WIDE_A || call.m % VECTOR == 0) && (!WIDE_B || call.n % VECTOR == 0))
        multiply<WIDE_A ? VECTOR : 1, WIDE_B ? VECTOR : 1>(a, b, c, call, (Stage*)memory);
    else multiply<1, 1>(a, b, c, call, (Stage*)memory);
}
