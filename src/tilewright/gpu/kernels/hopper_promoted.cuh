// Sums of float8 in a tensor core keep 13 bits. Here each step's are added up in float32, WIDTH columns while those of the next WIDTH
// are formed.
#pragma once

struct Sums { SUM of[2][WIDTH / 2]; };

#if BLOCKS
// The scales of A, one for each row and step, and of B, one for each 128 columns and step. Those of a step are loaded a step before.
struct Scales {
    static constexpr int ACROSS = (BN + 127) / 128;  // blocks of columns of a tile
    const float *of_rows[2], *of_blocks[ACROSS];
    long long next_of_rows, next_of_blocks;
    int waiting;  // steps whose scales have not been loaded
    float row[2], block[ACROSS], factors[2][ACROSS][2];  // the next step's; of this step and the one before their products

    __device__ __forceinline__ Scales(const Call& call, const Vectors& v, int top, int left, int bottom, int z, int first, int steps)
        : next_of_rows(call.row_scale_next), next_of_blocks(call.column_scale_next), waiting(steps)
    {
        const int thread = threadIdx.x % 128;
        const float* column_scales = v.column_scales;
#if GROUPED
        column_scales += z * call.column_scale_group;
        if (z == call.batch) {  // rows that follow the last group: their sums are zeros, and they have no scales
            waiting = 0;
            row[0] = row[1] = 0;
            #pragma unroll
            for (int i = 0; i < ACROSS; i++) block[i] = 0;
        }
#endif
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = min(top + thread / 32 * 16 + thread % 32 / 4 + 8 * r, bottom - 1);
            of_rows[r] = v.row_scales + at * call.row_scale_step + first * next_of_rows;
        }
        #pragma unroll
        for (int i = 0; i < ACROSS; i++) {
            const int at = min(left / 128 + i, (call.n - 1) / 128);
            of_blocks[i] = column_scales + at * call.column_scale_step + first * next_of_blocks;
        }
        load();
    }
    __device__ __forceinline__ void load()
    {
        if (waiting-- <= 0) return;
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            row[r] = *of_rows[r];
            of_rows[r] += next_of_rows;
        }
        #pragma unroll
        for (int i = 0; i < ACROSS; i++) {
            block[i] = *of_blocks[i];
            of_blocks[i] += next_of_blocks;
        }
    }
    __device__ __forceinline__ void begin(int step)
    {
        #pragma unroll
        for (int i = 0; i < ACROSS; i++)
            #pragma unroll
            for (int r = 0; r < 2; r++) factors[step % 2][i][r] = row[r] * block[i];
        load();
    }
    __device__ __forceinline__ void add(SUM& d, SUM sum, int step, int column, int j) const
    {
        d += sum * factors[step % 2][column / 128][j / 2 % 2];
    }
};
#else
struct Scales {
    __device__ __forceinline__ void begin(int) {}
    __device__ __forceinline__ void add(SUM& d, SUM sum, int, int, int) const { d += sum; }
};
#endif

__device__ __forceinline__ void add_piece(SUM (&d)[BN / 2], int i, SUM (&sums)[WIDTH / 2], const Scales& scales)
{
    const int piece = i % PIECES;
    #pragma unroll
    for (int j = 0; j < WIDTH / 2; j++) {
        asm volatile("" : LETTER(sums[j])::"memory");  // read only from here on
        scales.add(d[piece * (WIDTH / 2) + j], sums[j], i / PIECES, piece * WIDTH, j);
    }
}

// Adds COUNT steps of k to d, whose rows are those of group `half`. While the wgmmas of a piece run, the sums of the one before are
// added; ptxas allows that within straight code only, so nothing is under way at the end.
template <int COUNT> __device__ __forceinline__ void add_steps(Shared& s, Ring<DEPTH>& ring, int half, SUM (&d)[BN / 2], Sums& sums, Scales& scales)
{
    int before = 0;
    #pragma unroll
    for (int i = 0; i < COUNT * PIECES; i++) {
        if (i % PIECES == 0) {
            barrier_wait(s.full[ring.slot], ring.parity);
            scales.begin(i / PIECES);
        }
        const unsigned long long x = descriptor(s.a[ring.slot] + half * 8192, 16, 1024);
        const unsigned long long y = descriptor(s.b[ring.slot] + i % PIECES * WIDTH * 128, 16, 1024);
        wgmma_fence();
        #pragma unroll
        for (int q = 0; q < 4; q++) wgmma(sums.of[i % 2], x + 2 * q, y + 2 * q, q > 0);
        wgmma_commit();
        if (i > 0) {
            wgmma_wait<1>();
            if (i % PIECES == 0) release(s, before);
            add_piece(d, i - 1, sums.of[(i - 1) % 2], scales);
        }
        if (i % PIECES == PIECES - 1) {
            before = ring.slot;
            ring.advance();
        }
    }
    wgmma_wait<0>();
    release(s, before);
    add_piece(d, COUNT * PIECES - 1, sums.of[(COUNT * PIECES - 1) % 2], scales);
}
