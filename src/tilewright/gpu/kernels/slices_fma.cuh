// The product of few rows by multiply-adds, for any layout: every warp multiplies slices of k of its own, from registers. T is the type
// of the elements, for which there are fused(x, y, sum) = x·y + sum and from_lane(x, mask), the x of the lane whose number differs in
// these bits.
#pragma once
#include "slices.cuh"

constexpr int LK = 32 / (LM * LN), EACH = 16 / sizeof(T);  // lanes along k, and the elements along k that a lane loads of each row
constexpr int CHUNK = LK * EACH, TURN = CHUNK * BUFFERS * WARPS_K, STEP = 64, WARPS = WARPS_N * WARPS_K;
constexpr int BM = TM * LM, BN = TN * LN;
extern __shared__ __align__(16) unsigned char memory[];

template <int VECTOR_A, int VECTOR_B> __device__ __forceinline__ void multiply_tile(const T* a, const T* b, T* c, const Call& call)
{
    // Neighbouring lanes load what lies side by side in B.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / WARPS_N;
    const int along = B_ACROSS ? lane / LN % LK : lane % LK, of_n = B_ACROSS ? lane % LN : lane / LK % LN, of_m = lane / (LN * LK);
    const int across = (call.n - 1) / (BN * WARPS_N) + 1, tiles = ((call.m - 1) / BM + 1) * across;
    const int z = blockIdx.x / tiles, tile = blockIdx.x % tiles, product = z / call.parts;
    const int top = tile / across * BM, left = tile % across * (BN * WARPS_N);
    const int first = z % call.parts * call.part_steps * STEP;
    const int stop = min((long long)call.k, first + (long long)call.part_steps * STEP);

    using A = Operand<T, !A_DOWN, LM, TM, EACH, VECTOR_A>;
    using B = Operand<T, !B_ACROSS, LN, TN, EACH, VECTOR_B, true>;
    const A of_a(a + product * call.next_a, A_DOWN ? call.column_a : call.row_a, top, call.m, of_m, along * EACH);
    const B of_b(b + product * call.next_b, B_ACROSS ? call.row_b : call.column_b, left + warp % WARPS_N * BN, call.n, of_n, along * EACH);

    T d[TM][TN] = {};
    typename A::Fragments x[BOTH ? BUFFERS : 1];
    typename B::Fragments y[BUFFERS];
    auto multiply = [&](const typename A::Fragments& p, const typename B::Fragments& q) {
        #pragma unroll
        for (int e = 0; e < EACH; e++)
            #pragma unroll
            for (int i = 0; i < TM; i++)
                #pragma unroll
                for (int j = 0; j < TN; j++) d[i][j] = fused(p.at(i, e), q.at(j, e), d[i][j]);
    };
    const int whole = first + (stop - first) / CHUNK * CHUNK;
    stream<BUFFERS, CHUNK, TURN>(
        first + slice * BUFFERS * CHUNK, whole,
        [&](int i, int k) {
            if (BOTH) of_a.get(x[BOTH ? i : 0], k);
            of_b.get(y[i], k);
        },
        [&](int i, int k) {
            if (!BOTH) of_a.get(x[0], k);
            multiply(x[BOTH ? i : 0], y[i]);
        });
    if (whole < stop && slice == (whole - first) / (CHUNK * BUFFERS) % WARPS_K) {
        of_a.get(x[0], whole, stop - whole - along * EACH);
        of_b.get(y[0], whole, stop - whole - along * EACH);
        multiply(x[0], y[0]);
    }

    // ---- the sums of lanes along k, then of slices
    constexpr int NEXT = B_ACROSS ? LN : 1;  // lanes from one to the next along k
    #pragma unroll
    for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++)
            #pragma unroll
            for (int half = LK / 2; half > 0; half /= 2) d[i][j] += from_lane(d[i][j], half * NEXT);

    // ---- REGISTERS → SHARED → GLOBAL
    using Sums = SliceSums<WARPS_K, WARPS_N, TM * TN, T>;
    Sums sums = { (T*)memory };
    T* to = c + z * call.next_c;
    #pragma unroll
    for (int pass = 0; pass < Sums::PASSES; pass++) {
        sums.put(*(T(*)[TM * TN])d, pass);
        for_each_element<BM, BN * WARPS_N>(call.row_c == 1, [&](int row, int col) {
            const int i = A::element(row) * TN + B::element(col % BN), of_n = B::lane_of(col % BN);
            if (top + row >= call.m || left + col >= call.n || i / Sums::EACH != pass) return;
            const T sum = sums.total(col / BN, i, A::lane_of(row) * (LN * LK) + (B_ACROSS ? of_n : of_n * LK));
            to[(top + row) * call.row_c + (left + col) * call.column_c] = sum;
        });
    }
}

// Not inlined, so that it takes no registers from the other way.
__noinline__ __device__ void multiply_edges(const T* a, const T* b, T* c, const Call& call) { multiply_tile<1, 1>(a, b, c, call); }

__device__ __forceinline__ void multiply_slices(const T* a, const T* b, T* c, const Call& call)
{
    constexpr int VECTOR_A = A_VECTOR / sizeof(T), VECTOR_B = B_VECTOR / sizeof(T);
    // A vector may be loaded only if it lies in the matrix as a whole.
    constexpr int WIDE_A = A_DOWN && VECTOR_A > TM ? TM : VECTOR_A, WIDE_B = B_ACROSS && VECTOR_B > TN ? TN : VECTOR_B;
    if ((A_DOWN && call.m % WIDE_A) || (B_ACROSS && call.n % WIDE_B)) multiply_edges(a, b, c, call);
    else multiply_tile<WIDE_A, WIDE_B>(a, b, c, call);
}
