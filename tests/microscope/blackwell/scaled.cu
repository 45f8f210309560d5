// C = A·Bᵀ, 128 × 32, of block-scaled types: 32 of K of e4m3 with a scale for each row, or 64 of e2m1 with four. The scales are
// copied from shared to tensor memory.
constexpr int M = 128, N = 32;

template <int D> DEV void run(const u32* x, float* c)
{
    // A and B as 8 rows of 16 bytes, then their other 16 bytes; the scales of A and of B, 4 bytes a row, row r + 32·q at 16·r + 4·q.
    __shared__ alignas(128) u32 tiles[(M + N) * 8 + 2 * 128];
    __shared__ u64 done;
    __shared__ u32 place;
    const int t = threadIdx.x, warp = t / 32;
    constexpr bool four_bits = D == RIGHT_FOUR_BITS;
    constexpr u32 shape = (four_bits ? 1 << 7 | 1 << 10 : 1 << 23) | N >> 3 << 17 | M >> 4 << 24;
    if (t == 0) INIT(&done, 1);
    if (warp == 0) ALLOC("1", &place, 64);
    for (int i = t; i < (M + N) * 8 + 256; i += 128) tiles[i] = x[i];
    if (D != NO_PROXY_FENCE) FENCE();
    __syncthreads();
    const u32 d = place, of_a = d + 32, of_b = d + 36;
    if (t == 0) {
        CP_SCALES(of_a, tile(tiles + (M + N) * 8, 0, 128, 0));  // !! missing fence: NO_PROXY_FENCE
        if (D != NO_SCALES) CP_SCALES(of_b, tile(tiles + (M + N) * 8 + 128, 0, 128, 0));
        const u64 a = tile(tiles, 128, 256, 0), b = tile(tiles + M * 8, 128, 256, 0);
        if (four_bits) MMA_SCALED("mxf4nvf4.block_scale.scale_vec::4X", d, a, b, shape, of_a, of_b);
        else MMA_SCALED("mxf8f6f4.block_scale.scale_vec::1X", d, a, b, shape, of_a, of_b);  // !! unwritten read: NO_SCALES
        COMMIT_TO("1", &done);
    }
    WAIT(&done, 0);
    AFTER_SYNC();
    for (int n = 0; n < N; n += 8) {
        u32 v[8];
        LD8("32x32b.x8", v, d + lane_of(warp * 32, n));
        WAIT_LD();
        for (int i = 0; i < 8; i++) c[t * N + n + i] = __uint_as_float(v[i]);
    }
    BEFORE_SYNC();
    __syncthreads();
    if (warp == 0) DEALLOC("1", d, 64);
}
