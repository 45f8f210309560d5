// The product of float32 or complex64 by multiply-adds: the main loop of the rung register_banks, for any layout and any size.
#pragma once

#include "rows.cuh"
#include "slabs.cuh"

#ifndef ADD
#define ADD 0  // 1 adds the product to C, of real numbers
#endif
#ifndef A_PADDED  // 1 where a row (or a column that lies like one) may be read to the end of its last vector
#define A_PADDED 0
#endif
#ifndef B_PADDED
#define B_PADDED 0
#endif

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;  // 2·4 warps: 256
constexpr int LANES_M = WM / TM, LANES_N = WN / TN;                                    // of a warp: 8·4

// If threads copy 8 steps of 4 places at once, rows that lie 4 floats further than a multiple of 32 put them into different banks.
constexpr int A_PITCH = BM + (A_DOWN ? 0 : 4), B_PITCH = BN + (B_ACROSS ? 0 : 4);

struct Stage {  // of complex numbers a plane of real parts and one of imaginary ones
    float a_tile[PLANES][BK][A_PITCH];  // 16·132 floats
    float b_tile[PLANES][BK][B_PITCH];  // 16·256 floats; both together 24.25 KiB, four stages 97 KiB
};

struct Fragments {  // of one step
    float a[PLANES][TM], b[PLANES][TN];
};

template <int WIDTH> __device__ __forceinline__ int whole(int size) { return (size + WIDTH - 1) / WIDTH * WIDTH; }

// One tile of C. Operands whose elements follow each other across their tile are copied A_WIDTH and B_WIDTH at a time.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(const float* a, const float* b, float* c, const Call& call, Stage* stages)
{
    const auto [top, left, z, product, first, length] = place_of_block(call);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    Slab<float, PLANES, BM, A_DOWN, A_WIDTH, THREADS, 8, A_PITCH, 1, false> from_a(
        a + (product * call.next_a + first * call.column_a) * PLANES, top, whole<A_WIDTH>(call.m), call.row_a, call.column_a);
    Slab<float, PLANES, BN, B_ACROSS, B_WIDTH, THREADS, 8, B_PITCH, 1, false> from_b(
        b + (product * call.next_b + first * call.row_b) * PLANES, left, whole<B_WIDTH>(call.n), call.column_b, call.row_b);
    auto fetch = [&](Stage& stage, int steps) {
        from_a.copy(stage.a_tile[0][0], steps);
        from_b.copy(stage.b_tile[0][0], steps);
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
    const int y = warp % WARPS_M * WM + lane_y * 4, x = warp / WARPS_M * WN + lane_x * 4;
    auto row_of = [](int r) { return r / 4 * (LANES_M * 4) + r % 4; };
    auto column_of = [](int s) { return s / 4 * (LANES_N * 4) + s % 4; };

    Fragments fragments[2];  // of this step and of the next
    const float *a_at = &stages[0].a_tile[0][0][y], *b_at = &stages[0].b_tile[0][0][x];
    // With this order the compiler leaves multiply-adds between two loads, as the rung says.
    auto load = [&](int i, Fragments& to) {
        #pragma unroll
        for (int p = 0; p < PLANES; p++) {
            #pragma unroll
            for (int s = TN - 4; s >= 0; s -= 4)
                *(float4*)&to.b[p][s] = *(const float4*)(b_at + (p * BK + i) * B_PITCH + column_of(s));
            #pragma unroll
            for (int r = 0; r < TM; r += 4)
                *(float4*)&to.a[p][r] = *(const float4*)(a_at + (p * BK + i) * A_PITCH + row_of(r));
        }
    };

    copy_async_wait<STAGES - 1>();
    __syncthreads();
    if (tiles > 0) load(0, fragments[0]);

    // ---- MULTIPLY ----------------------------------------------------------------------------------------------------------
    float sum[PLANES][TM][TN] = {};  // 128 registers
    int now = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int old = now;
        #pragma unroll
        for (int i = 0; i < BK; i++) {
            if (i == BK - 1) {
                copy_async_wait<STAGES - 2>();  // this thread's part of the next stage has arrived
                __syncthreads();                // and all other threads' parts; all have read this stage's last step
                if (tile + 1 < tiles) now = now + 1 == STAGES ? 0 : now + 1;
                a_at = &stages[now].a_tile[0][0][y];
                b_at = &stages[now].b_tile[0][0][x];
            }
            load((i + 1) % BK, fragments[(i + 1) % 2]);
            const Fragments& f = fragments[i % 2];

            // A multiply-add reads three registers from two banks, even and odd, which serve one read a cycle each. So one of the
            // three must be reused from the last instruction: within a column that of B, from one column to the next that of A.
            #pragma unroll
            for (int s = 0; s < TN; s++)
                #pragma unroll
                for (int pass = 0; pass < PLANES * PLANES; pass++) {
                    // Of complex numbers: real·real, real·imaginary, imaginary·imaginary, imaginary·real.
                    const int of_a = pass / 2, of_b = pass == 1 || pass == 2, to = pass % 2;
                    const float factor = pass == 2 ? -f.b[of_b % PLANES][s] : f.b[of_b % PLANES][s];
                    #pragma unroll
                    for (int t = 0; t < TM; t++) {
                        const int r = (s * PLANES * PLANES + pass) % 2 == 0 ? t : TM - 1 - t;
                        sum[to % PLANES][r][s] += f.a[of_a % PLANES][r] * factor;
                    }
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
    constexpr int VECTOR = 4 / PLANES;  // elements of 16 bytes
    auto vector = [&](int r, int s) {  // 16 bytes of row r
        float v[4];
        #pragma unroll
        for (int j = 0; j < 4; j++) v[j] = __int_as_float(__float_as_int(sum[j % PLANES][r][s + j / PLANES]) ^ zero);
        return make_float4(v[0], v[1], v[2], v[3]);
    };
    c += z * call.next_c * PLANES;
    if (PLANES == 1 && C_VECTOR == 16 && call.n % VECTOR == 0) {
        #pragma unroll
        for (int r = 0; r < TM; r++) {
            const int row = top + y + row_of(r);
            if (row >= call.m) break;
            #pragma unroll
            for (int s = 0; s < TN; s += VECTOR) {
                const int col = left + x + column_of(s);
                if (col >= call.n) continue;
                float4 *to = (float4*)(c + (row * call.row_c + col) * PLANES), value = vector(r, s);
                if (ADD) value = make_float4(value.x + to->x, value.y + to->y, value.z + to->z, value.w + to->w);
                *to = value;
            }
        }
        return;
    }
    if (ADD) {  // rare: C in memory that begins anywhere, or rows of it that are not whole vectors
        #pragma unroll
        for (int r = 0; r < TM; r++)
            #pragma unroll
            for (int s = 0; s < TN; s++) {
                const int row = top + y + row_of(r), col = left + x + column_of(s);
                if (row < call.m && col < call.n) c[row * call.row_c + col] += sum[0][r][s];
            }
        return;
    }
    // Others, and complex ones, of which a lane has two vectors beside each other, pass through shared memory: of each warp one row of
    // each group of lanes at a time.
    static_assert(sizeof(Stage) * STAGES >= WARPS_M * WARPS_N * LANES_M * WN * PLANES * sizeof(float), "rows of all warps");
    __syncthreads();  // all have read the last stage
    float* rows = (float*)stages + warp * (LANES_M * WN * PLANES);
    #pragma unroll
    for (int r = 0; r < TM; r++) {
        #pragma unroll
        for (int s = 0; s < TN; s += VECTOR)
            *(float4*)(rows + (lane_y * WN + lane_x * 4 + column_of(s)) * PLANES) = vector(r, s);
        __syncwarp();
        const int row = top + warp % WARPS_M * WM + row_of(r), col = left + warp / WARPS_M * WN;  // the warp's are 4 apart
        store_rows<LANES_M, WN * PLANES, WN * PLANES>(rows, c + (row * call.row_c + col) * PLANES, call.row_c * 4 * PLANES,
                                                      (call.m - row + 3) / 4, (call.n - col) * PLANES);
        __syncwarp();
    }
}

__device__ __forceinline__ void multiply_strided(const float* a, const float* b, float* c, const Call& call)
{
    extern __shared__ __align__(16) char memory[];
    // Copies of four elements need whole ones: where a size is no multiple of four, and nothing follows, none is copied so.
    constexpr bool WIDE_A = PLANES == 1 && A_DOWN && A_VECTOR == 16, WIDE_B = PLANES == 1 && B_ACROSS && B_VECTOR == 16;
    if ((WIDE_A || WIDE_B) && (!WIDE_A || A_PADDED || call.m % 4 == 0) && (!WIDE_B || B_PADDED || call.n % 4 == 0))
        multiply<WIDE_A ? 4 : 1, WIDE_B ? 4 : 1>(a, b, c, call, (Stage*)memory);
    else multiply<1, 1>(a, b, c, call, (Stage*)memory);
}
