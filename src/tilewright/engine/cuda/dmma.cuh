// The product of float64 or complex128 by tensor cores, for any layout and any size.
#pragma once

#include "slabs.cuh"

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8;  // MMAs of a warp's tile
constexpr int STEPS = BK / FRAGMENT_K;            // times that fragments are loaded for a stage

// In shared memory an operand lies as in memory: by rows of A or columns of B, or ACROSS them by steps of k. A lane loads 16 bytes,
// and 8 lanes at a time should cover all banks once. They load 64 bytes of each of two rows: so in odd rows the halves of 128 bytes
// are exchanged. Or 32 bytes of each of
// four steps, all even ones of float64, which lie a quarter of 128 bytes more than a multiple of that apart.
template <int SIDE, bool ACROSS>
struct Laid {
    static constexpr int HALF = 64 / (int)sizeof(Element), PITCH = ACROSS ? SIDE + 2 : BK;
    static constexpr int STEP = ACROSS ? PITCH : 1, NEXT = ACROSS ? 1 : PITCH, SIZE = PITCH * (ACROSS ? BK : SIDE);
    static constexpr int SWIZZLE = ACROSS ? 0 : HALF;
    static_assert(ACROSS || BK % (2 * HALF) == 0, "whole lines");

    // Where step `step` of a place lies, which is odd or even as g is.
    static __device__ __forceinline__ int at(int step, int g)
    {
        return ACROSS ? step * STEP : step ^ g % 2 * HALF;
    }
};
typedef Laid<BM, A_DOWN> LaidA;
typedef Laid<BN, B_ACROSS> LaidB;

struct Stage {
    Element a_tile[LaidA::SIZE];
    Element b_tile[LaidB::SIZE];
};

// With g = lane / 4 and t = lane % 4: for every 4 steps of k the instruction takes rows g and g + 8 of A, column g of B, all at one
// step, and gives columns 2·t and 2·t + 1 of C. Which rows of A and columns of B these are in memory, and which steps of k, may be
// chosen, if both agree: of float64 they are such that a lane loads two neighbours. Of 8 steps a lane has 2·t and 2·t + 1.
constexpr int PARTS = COMPLEX ? 2 : 1;  // real and imaginary
constexpr bool PAIRS_A = A_DOWN && !COMPLEX, PAIRS_B = B_ACROSS && !COMPLEX;  // neighbours are rows of A, or columns of B
struct Fragments {
    double a[PARTS][MMAS_M][FRAGMENT_K / 2], b[PARTS][MMAS_N][FRAGMENT_K / 4];

    // Those of FRAGMENT_K steps from `first` on; `a_at` and `b_at` point to this lane's first row and column at step 0.
    __device__ __forceinline__ void load(const Element* a_at, const Element* b_at, int first, int g, int t)
    {
        #pragma unroll
        for (int j = 0; j < FRAGMENT_K / 4; j++) {
#if COMPLEX
            const int step = first + 4 * j + t;
            #pragma unroll
            for (int r = 0; r < 2 * MMAS_M; r++) {
                const double2 v = a_at[r * 8 * LaidA::NEXT + LaidA::at(step, g)];
                a[0][r / 2][2 * j + r % 2] = v.x, a[1][r / 2][2 * j + r % 2] = v.y;
            }
            #pragma unroll
            for (int s = 0; s < MMAS_N; s++) {
                const double2 v = b_at[s * 8 * LaidB::NEXT + LaidB::at(step, g)];
                b[0][s][j] = v.x, b[1][s][j] = v.y;
            }
#else
            const int step = first + j / 2 * 8 + 2 * t;  // and the next
            if (A_DOWN)
                #pragma unroll
                for (int r = 0; r < MMAS_M; r++) {
                    const double2 v = *(const double2*)&a_at[r * 16 + LaidA::at(step + j % 2, g)];
                    a[0][r][2 * j] = v.x, a[0][r][2 * j + 1] = v.y;
                }
            else if (j % 2 == 0)
                #pragma unroll
                for (int r = 0; r < 2 * MMAS_M; r++) {
                    const double2 v = *(const double2*)&a_at[r * 8 * LaidA::NEXT + LaidA::at(step, g)];
                    a[0][r / 2][2 * j + r % 2] = v.x, a[0][r / 2][2 * j + 2 + r % 2] = v.y;
                }
            if (B_ACROSS)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s += 2) {
                    const double2 v = *(const double2*)&b_at[s * 8 + LaidB::at(step + j % 2, g)];
                    b[0][s][j] = v.x, b[0][s + 1][j] = v.y;
                }
            else if (j % 2 == 0)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) {
                    const double2 v = *(const double2*)&b_at[s * 8 * LaidB::NEXT + LaidB::at(step, g)];
                    b[0][s][j] = v.x, b[0][s][j + 1] = v.y;
                }
#endif
        }
    }
};

struct Sums {
    double of[PARTS][MMAS_M][MMAS_N][4];

    __device__ __forceinline__ void add(int part, int of_a, int of_b, const Fragments& f)
    {
        #pragma unroll
        for (int i = 0; i < FRAGMENT_K / MMA_K; i++)
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++) {
                double a[MMA_K / 2];
                #pragma unroll
                for (int j = 0; j < MMA_K / 2; j++) {
                    a[j] = f.a[of_a][r][i * MMA_K / 2 + j];
                    if (part == 0 && of_a == 1) a[j] = -a[j];  // i·i = −1
                }
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) {
                    double b[MMA_K / 4];
                    #pragma unroll
                    for (int j = 0; j < MMA_K / 4; j++) b[j] = f.b[of_b][s][i * MMA_K / 4 + j];
                    multiply_f64(of[part][r][s], a, b);
                }
            }
    }

    __device__ __forceinline__ void add(const Fragments& f)
    {
        add(0, 0, 0, f);
#if COMPLEX
        add(1, 0, 1, f);
        add(0, 1, 1, f);
        add(1, 1, 0, f);
#endif
    }
};

// One tile of C; operands are copied A_WIDTH and B_WIDTH elements at a time.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Element* c, const Call& call, Stage* stages)
{
    const auto [top, left, z, product, first, length] = place_of_block(call);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    Slab<Element, BM, A_DOWN, A_WIDTH, THREADS, LaidA::STEP, LaidA::NEXT, LaidA::SWIZZLE, false> from_a(
        a + product * call.next_a + first * call.column_a, top, call.m, call.row_a, call.column_a);
    Slab<Element, BN, B_ACROSS, B_WIDTH, THREADS, LaidB::STEP, LaidB::NEXT, LaidB::SWIZZLE, false> from_b(
        b + product * call.next_b + first * call.row_b, left, call.n, call.column_b, call.row_b);
    auto fetch = [&](Stage& stage, int steps) {
        from_a.copy(stage.a_tile, steps);
        from_b.copy(stage.b_tile, steps);
    };

    const int tiles = length > 0 ? (length - 1) / BK + 1 : 0;
    #pragma unroll
    for (int tile = 0; tile < STAGES; tile++) {
        if (tile < tiles) fetch(stages[tile], tile == 0 ? length - (tiles - 1) * BK : BK);
        copy_async_commit();
    }

    // ---- SHARED → REGISTERS ----------------------------------------------------------------------------------------------
    const int g = lane / 4, t = lane % 4;
    const int a_first = (y + (PAIRS_A ? 2 * g : g)) * LaidA::NEXT, b_first = (x + (PAIRS_B ? 2 * g : g)) * LaidB::NEXT;
    const Element *a_at = stages[0].a_tile + a_first, *b_at = stages[0].b_tile + b_first;

    copy_async_wait<STAGES - 1>();
    __syncthreads();
    Fragments fragments[BUFFERS];
    if (BUFFERS > 1 && tiles > 0) fragments[0].load(a_at, b_at, 0, g, t);

    // ---- MULTIPLY ----------------------------------------------------------------------------------------------------------
    Sums sums = {};
    int now = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int old = now;
        auto next_stage = [&] {
            copy_async_wait<STAGES - 2>();  // this thread's part of the next stage has arrived
            __syncthreads();                // and all other threads' parts; all have read this stage's last step
            if (tile + 1 < tiles) now = now + 1 == STAGES ? 0 : now + 1;
            a_at = stages[now].a_tile + a_first;
            b_at = stages[now].b_tile + b_first;
        };
        #pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int next = BUFFERS > 1 ? (i + 1) % STEPS : i;
            if (BUFFERS > 1 && i == STEPS - 1) next_stage();
            fragments[(BUFFERS > 1 ? i + 1 : 0) % BUFFERS].load(a_at, b_at, next * FRAGMENT_K, g, t);
            if (BUFFERS == 1 && i == STEPS - 1) next_stage();
            sums.add(fragments[i % BUFFERS]);
        }
        if (tile + STAGES < tiles) fetch(stages[old], BK);
        copy_async_commit();
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    c += z * call.next_c;
    auto store = [&](int row, int col, const Element (&v)[VECTOR]) {
        Element* to = c + row * call.row_c + col;
        if (VECTOR == 1) {
            if (col < call.n) *to = v[0];
        } else if (C_VECTOR == 16 && col + 1 < call.n) *(double2*)to = *(const double2*)v;
        else
            #pragma unroll
            for (int j = 0; j < VECTOR; j++)
                if (col + j < call.n) to[j] = v[j];
    };
    #pragma unroll
    for (int r = 0; r < 2 * MMAS_M; r++) {
        const int row = top + y + r / 2 * 16 + (PAIRS_A ? 2 * g + r % 2 : r % 2 * 8 + g);
        if (row >= call.m) continue;
        #pragma unroll
        for (int s = 0; s < MMAS_N; s++) {
#if COMPLEX
            const int col = left + x + s * 8 + 2 * t;
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                const double2 v[1] = { { sums.of[0][r / 2][s][r % 2 * 2 + j], sums.of[1][r / 2][s][r % 2 * 2 + j] } };
                store(row, col + j, v);
            }
#else
            // Two MMAs whose columns lie between each other's give four columns in turn.
            const int even = PAIRS_B ? s / 2 * 2 : s, j = r % 2 * 2;
            const int col = left + x + (PAIRS_B ? even * 8 + 4 * t + s % 2 * 2 : s * 8 + 2 * t);
            const auto& of = sums.of[0][r / 2];
            const double v[2] = { of[even][PAIRS_B ? j + s % 2 : j], PAIRS_B ? of[even + 1][j + s % 2] : of[s][j + 1] };
            store(row, col, v);
#endif
        }
    }
}

__device__ __forceinline__ void multiply_strided(const Element* a, const Element* b, Element* c, const Call& call)
{
    extern __shared__ __align__(16) char memory[];
    Stage* stages = (Stage*)memory;
    // Copies of two numbers need whole pairs.
    constexpr bool WIDE_A = VECTOR > 1 && A_VECTOR == 16, WIDE_B = VECTOR > 1 && B_VECTOR == 16;
    const bool a_whole = (A_DOWN ? call.m : call.k) % VECTOR == 0, b_whole = (B_ACROSS ? call.n : call.k) % VECTOR == 0;
    if ((WIDE_A || WIDE_B) && (!WIDE_A || a_whole) && (!WIDE_B || b_whole))
        multiply<WIDE_A ? VECTOR : 1, WIDE_B ? VECTOR : 1>(a, b, c, call, stages);
    else multiply<1, 1>(a, b, c, call, stages);
}
