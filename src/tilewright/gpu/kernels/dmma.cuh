// The product of float64 or complex128 by tensor cores, for any layout and any size.
#pragma once

#include "dmma_places.cuh"
#include "slabs.cuh"

constexpr int THREADS = WARPS * 32;
constexpr int STEPS = BK / MMA_K;  // MMAs along k of a stage

// Of every 4 steps of k a lane takes numbers of one step, but where the first operand lies across 2·t and 2·t + 1 of 8 steps, also in
// one load; of complex numbers, which need more registers, and otherwise t and t + 4.
constexpr bool IN_PAIRS = FIRST_ACROSS && PLANES == 1;

// In shared memory an operand lies as in memory: by rows of A or columns of B, or ACROSS them by steps of k. A load of 16 bytes
// serves 8 lanes at a time, which should cover all banks once: 32 bytes of each of four steps, which lie four numbers more than a
// multiple of 16 apart, if in pairs of steps two; or 64 bytes of each of two swizzled places.
template <int SIDE, bool ACROSS>
struct Laid {
    static constexpr int PITCH = ACROSS ? SIDE + (IN_PAIRS ? 2 : 4) : BK, STEP = ACROSS ? PITCH : 1, NEXT = ACROSS ? 1 : PITCH;
    static constexpr int PLANE = PITCH * (ACROSS ? BK : SIDE);
};
typedef Laid<BM, A_DOWN> LaidA;
typedef Laid<BN, B_ACROSS> LaidB;

struct Stage {  // of complex numbers a plane of real parts and one of imaginary ones
    double a_tile[PLANES][LaidA::PLANE], b_tile[PLANES][LaidB::PLANE];
};

struct Fragments {
    double first[2][PLANES][MMAS_1][MMA_K / 2];  // of this step and of the next
    double second[2][PLANES][MMAS_2][2];         // of these 8 steps of k and of the next

    // Those of MMA `i` along k, from where this lane's first place lies.
    __device__ __forceinline__ void load(const double* first_at, const double* second_at, int i, int g, int t)
    {
        using First = Laid<SWAPPED ? BN : BM, FIRST_ACROSS>;
        using Second = Laid<SWAPPED ? BM : BN, SECOND_ACROSS>;
        #pragma unroll
        for (int p = 0; p < PLANES; p++)
            #pragma unroll
            for (int j = 0; j < MMA_K / 4; j++) {
                const int four = (i * (MMA_K / 4) + j) % (BK / 4), odd = four % 2;
                const int step = four / 2 * 8 + (IN_PAIRS ? 2 * t + odd : 4 * odd + t);
                #pragma unroll
                for (int r = 0; r < MMAS_1; r++) {
                    double* to = &first[i % 2][p][r][2 * j];
                    if (FIRST_ACROSS) *(double2*)to = *(const double2*)&first_at[p * First::PLANE + step * First::PITCH + r * 16];
                    else
                        #pragma unroll
                        for (int h = 0; h < 2; h++)
                            to[h] = first_at[p * First::PLANE + (r * 16 + h * 8) * First::PITCH + swizzled(step, g)];
                }
                #pragma unroll
                for (int s = 0; s < MMAS_2; s++) {
                    auto& to = second[(i * (MMA_K / 4) + j) / 2 % 2][p];
                    const double* from = second_at + p * Second::PLANE;
                    if (SECOND_ACROSS) {
                        if (s % 2) continue;
                        const double2 v = *(const double2*)&from[step * Second::PITCH + s * 8];
                        to[s][odd] = v.x, to[s + 1][odd] = v.y;
                    } else if (!IN_PAIRS) to[s][odd] = from[s * 8 * Second::PITCH + swizzled(step, g)];
                    else if (!odd) *(double2*)to[s] = *(const double2*)&from[s * 8 * Second::PITCH + swizzled(step, g)];
                }
            }
    }
};

template <int NUMBERS> struct Of {
    typedef double Element;
    static __device__ __forceinline__ double made(double x, double) { return x; }
};
template <> struct Of<2> {
    typedef double2 Element;
    static __device__ __forceinline__ double2 made(double re, double im) { return make_double2(re, im); }
};
typedef Of<PLANES>::Element Element;  // of C

struct Sums {
    double of[PLANES][MMAS_1][MMAS_2][4];

    __device__ __forceinline__ Element element(int r, int s, int i) const { return Of<PLANES>::made(of[0][r][s][i], of[PLANES - 1][r][s][i]); }

    __device__ __forceinline__ void add(const Fragments& f, int i)
    {
        #pragma unroll
        for (int s = 0; s < MMAS_2; s++)
            #pragma unroll
            for (int pass = 0; pass < PLANES * PLANES; pass++) {
                // Of complex numbers: real·real, real·imaginary, imaginary·imaginary, imaginary·real.
                const int one = pass / 2 % PLANES, two = (pass == 1 || pass == 2) % PLANES, to = pass % 2;
                double b[MMA_K / 4];
                #pragma unroll
                for (int j = 0; j < MMA_K / 4; j++) {
                    const int four = i * (MMA_K / 4) + j;
                    b[j] = f.second[four / 2 % 2][two][s][four % 2];
                    if (pass == 2) b[j] = -b[j];
                }
                #pragma unroll
                for (int r = 0; r < MMAS_1; r++) multiply_f64(of[to % PLANES][r][s], f.first[i % 2][one][r], b);
            }
    }
};

// One tile of C; operands are copied A_WIDTH and B_WIDTH numbers at a time.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(const double* a, const double* b, double* c, const Call& call, Stage* stages)
{
    const auto [top, left, z, product, first, length] = place_of_block(call);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;

    // ---- GLOBAL → SHARED -------------------------------------------------------------------------------------------------
    Slab<double, PLANES, BM, A_DOWN, A_WIDTH, THREADS, 4, LaidA::STEP, LaidA::NEXT, !A_DOWN> from_a(
        a + (product * call.next_a + first * call.column_a) * PLANES, top, call.m, call.row_a, call.column_a);
    Slab<double, PLANES, BN, B_ACROSS, B_WIDTH, THREADS, 4, LaidB::STEP, LaidB::NEXT, !B_ACROSS> from_b(
        b + (product * call.next_b + first * call.row_b) * PLANES, left, call.n, call.column_b, call.row_b);
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
    const int g = lane / 4, t = lane % 4;
    const int in_a = (y + (A_DOWN ? 2 * g : g)) * LaidA::NEXT, in_b = (x + (B_ACROSS ? 2 * g : g)) * LaidB::NEXT;
    Fragments fragments;
    auto load = [&](const Stage& stage, int i) {
        const double *of_a = &stage.a_tile[0][in_a], *of_b = &stage.b_tile[0][in_b];
        fragments.load(SWAPPED ? of_b : of_a, SWAPPED ? of_a : of_b, i, g, t);
    };

    copy_async_wait<STAGES - 1>();
    __syncthreads();
    if (tiles > 0) load(stages[0], 0);

    // ---- MULTIPLY ----------------------------------------------------------------------------------------------------------
    Sums sums = {};
    int now = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int old = now;
        #pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (i == STEPS - 1) {
                copy_async_wait<STAGES - 2>();  // this thread's part of the next stage has arrived
                __syncthreads();                // and all other threads' parts; all have read this stage's last step
                if (tile + 1 < tiles) now = now + 1 == STAGES ? 0 : now + 1;
            }
            load(stages[now], i + 1);
            sums.add(fragments, i);
        }
        if (tile + STAGES < tiles) fetch(stages[old], BK);
        copy_async_commit();
    }

    // ---- REGISTERS → GLOBAL ------------------------------------------------------------------------------------------------
    // The lane's elements are 2·h + e, of row h of the first operand and column e of the second; this is where they lie in the warp's tile.
    auto row_of = [&](int r, int s, int h, int e) { return SWAPPED ? in_second(s, e, t) : in_first(r, h, g); };
    auto col_of = [&](int r, int s, int h, int e) { return SWAPPED ? in_first(r, h, g) : in_second(s, e, t); };
    Element* to = (Element*)c + z * call.next_c;
    if (PLANES == 1 && C_VECTOR == 16) {
        #pragma unroll
        for (int r = 0; r < MMAS_1; r++)
            #pragma unroll
            for (int s = 0; s < MMAS_2; s++)
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    // Two of the elements lie in a row of C: this one and that of the other h, or of the other e.
                    const int h = SWAPPED ? 0 : i, e = SWAPPED ? i : 0, at = 2 * h + e, other = SWAPPED ? 2 : 1;
                    const int row = top + y + row_of(r, s, h, e), col = left + x + col_of(r, s, h, e);
                    if (row >= call.m || col >= call.n) continue;
                    Element* two = &to[row * call.row_c + col];
                    if (col + 1 < call.n) *(double2*)two = make_double2(sums.of[0][r][s][at], sums.of[0][r][s][at + other]);
                    else *two = sums.element(r, s, at);
                }
        return;
    }
    // Through shared memory, 16 rows at a time, so that a warp stores what lies together in a row, wherever the row begins.
    __syncthreads();  // all have read the last stage
    Element(*rows)[WN + 1] = (Element(*)[WN + 1])stages + warp * 16;
    #pragma unroll
    for (int part = 0; part < WM / 16; part++) {
        #pragma unroll
        for (int r = 0; r < MMAS_1; r++)
            #pragma unroll
            for (int s = 0; s < MMAS_2; s++)
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    if ((SWAPPED ? s / 2 : r) == part)
                        rows[row_of(r, s, i / 2, i % 2) % 16][col_of(r, s, i / 2, i % 2)] = sums.element(r, s, i);
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < WN / 2; i++) {
            const int in_part = (i * 32 + lane) / WN, in_row = (i * 32 + lane) % WN;
            const int row = top + y + part * 16 + in_part, col = left + x + in_row;
            if (row < call.m && col < call.n) to[row * call.row_c + col] = rows[in_part][in_row];
        }
        __syncwarp();
    }
}

__device__ __forceinline__ void multiply_strided(const double* a, const double* b, double* c, const Call& call)
{
    extern __shared__ __align__(16) char memory[];
    Stage* stages = (Stage*)memory;
    // Copies of two elements need whole pairs: where a size is odd, none is copied so.
    constexpr bool WIDE_A = PLANES == 1 && A_VECTOR == 16, WIDE_B = PLANES == 1 && B_VECTOR == 16;
    const bool a_whole = (A_DOWN ? call.m : call.k) % 2 == 0, b_whole = (B_ACROSS ? call.n : call.k) % 2 == 0;
    if ((WIDE_A || WIDE_B) && (!WIDE_A || a_whole) && (!WIDE_B || b_whole))
        multiply<WIDE_A ? 2 : 1, WIDE_B ? 2 : 1>(a, b, c, call, stages);
    else multiply<1, 1>(a, b, c, call, stages);
}
