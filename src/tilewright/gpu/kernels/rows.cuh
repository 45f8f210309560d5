// Rows of C from shared memory: lanes that follow each other store what follows each other, or sectors of C are sent several times.
#pragma once

template <int BYTES> struct Word { typedef unsigned T; };
template <> struct Word<16> { typedef uint4 T; };
template <> struct Word<8> { typedef uint2 T; };

// A warp stores `rows` of ROWS rows, the first `columns` of WIDTH elements of each, `pitch` elements apart. Every row of `to`
// begins at a multiple of C_VECTOR bytes. In shared memory rows are PITCH elements apart, a multiple of C_VECTOR bytes. What is no
// whole word is stored afterwards: with it the loop would have branches, and each store would wait for the load before it.
template <int ROWS, int WIDTH, int PITCH, typename T>
__device__ __forceinline__ void store_rows(const T* from, T* to, long long pitch, int rows, int columns)
{
    const int lane = threadIdx.x % 32, most = min(columns, WIDTH);
    if constexpr (C_VECTOR >= 4 && C_VECTOR >= sizeof(T)) {
        typedef typename Word<C_VECTOR>::T Whole;
        constexpr int EACH = C_VECTOR / sizeof(T), WORDS = WIDTH / EACH;
        #pragma unroll
        for (int i = lane; i < ROWS * WORDS; i += 32) {
            const int row = i / WORDS, col = i % WORDS * EACH;
            if (row < rows && col + EACH <= most) *(Whole*)(to + row * pitch + col) = *(const Whole*)(from + row * PITCH + col);
        }
        if (most > 0 && most % EACH > 0)
            for (int i = lane; i < ROWS * EACH; i += 32) {
                const int row = i / EACH, col = most / EACH * EACH + i % EACH;
                if (row < rows && col < most) to[row * pitch + col] = from[row * PITCH + col];
            }
    } else {  // numbers of two bytes: in every other row words begin at the second
        auto second = [&](int row) { return (int)((unsigned long long)(to + row * pitch) / 2 % 2); };
        #pragma unroll
        for (int i = lane; i < ROWS * (WIDTH / 2); i += 32) {
            const int row = i / (WIDTH / 2), col = i % (WIDTH / 2) * 2 + second(row);
            const T* here = from + row * PITCH + col;
            if (row < rows && col + 1 < most) *(unsigned*)(to + row * pitch + col) = (unsigned)here[0] | (unsigned)here[1] << 16;
        }
        if (lane < ROWS && lane < rows && most > 0) {
            if (second(lane)) to[lane * pitch] = from[lane * PITCH];
            if ((most - second(lane)) % 2) to[lane * pitch + most - 1] = from[lane * PITCH + most - 1];
        }
    }
}
