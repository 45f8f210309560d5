// What begins within a word, or a vector of 16 bytes, put together of two.
#pragma once

// Of vectors of 16 bytes that follow each other, the COUNT words that begin at byte `shift` of the first.
template <int COUNT> __device__ __forceinline__ void shift_words(unsigned* words, const unsigned* from, int shift)
{
    unsigned w[COUNT + 4];
    #pragma unroll
    for (int i = 0; i < COUNT + 4; i++) w[i] = from[i];
    #pragma unroll
    for (int i = 0; i < COUNT + 2; i++) w[i] = shift & 8 ? w[i + 2] : w[i];
    #pragma unroll
    for (int i = 0; i < COUNT + 1; i++) w[i] = shift & 4 ? w[i + 1] : w[i];
    #pragma unroll
    for (int i = 0; i < COUNT; i++) words[i] = __funnelshift_r(w[i], w[i + 1], shift % 4 * 8);
}
