// C = A·Bᵀ, 64 × 16 × 32, of one byte an element: integers, or 8-bit floats. A and B lie without swizzle, and the 64 rows of C in
// every other 16 lanes.
constexpr int M = 64, N = 16;

template <int D> DEV void run(const u32* a, const u32* b, float* c)
{
    __shared__ alignas(128) u32 tiles[(M + N) * 8];  // 8 rows of 16 bytes, then their other 16 bytes
    __shared__ u64 done;
    __shared__ u32 place;
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    constexpr bool floats = D == RIGHT_FLOATS, upper = D == RIGHT_UPPER_LANES;
    if (t == 0) INIT(&done, 1);
    if (warp == 0) ALLOC("1", &place, 32);
    if (t < M + N)
        for (int i = 0; i < 8; i++) tiles[t / 8 * 64 + i / 4 * 32 + t % 8 * 4 + i % 4] = t < M ? a[t * 8 + i] : b[(t - M) * 8 + i];
    if (D != NO_PROXY_FENCE) FENCE();
    __syncthreads();
    const u32 d = place + lane_of(D == BETWEEN_LANES ? 8 : upper ? 16 : 0, 0);
    if (t == 0) {
        const u64 of_a = tile(tiles, 128, 256, 0), of_b = tile(tiles + M * 8, 128, 256, 0);
        if (floats) MMA("1", "f8f6f4", d, of_a, of_b, product_of(1, 0, 1, M, N), 0);
        else MMA("1", "i8", d, of_a, of_b, product_of(2, 1, D == WRONG_TYPE ? 5 : 0, M, N), 0);  // !! missing fence: NO_PROXY_FENCE; descriptor: WRONG_TYPE BETWEEN_LANES
        COMMIT_TO("1", &done);
        if (D == OVERWRITES_TILE) tiles[0] = 0;  // !! race: OVERWRITES_TILE
    }
    WAIT(&done, 0);
    AFTER_SYNC();
    u32 v[8];
    LD8("16x256b.x2", v, place + lane_of(warp * 32 + (upper ? 16 : 0), 0));
    WAIT_LD();
    for (int r = 0; r < 8; r++) {
        const int row = warp * 16 + lane / 4 + 8 * (r / 2 % 2), column = 2 * (lane % 4) + r % 2 + 8 * (r / 4);
        c[row * N + column] = floats ? __uint_as_float(v[r]) : (int)v[r];
    }
    BEFORE_SYNC();
    __syncthreads();
    if (warp == 0) DEALLOC("1", place, 32);
}
