// float64 products by int8 tensor cores (Ozaki scheme II): whole numbers are known by their residues modulo MODULI numbers that have no
// common divisor. A sum x of products is found again from its residues, if 2·|x| is below the product of the moduli (Chinese residues).
// Of lines a and b of whole numbers |x| is at most |a|·|b|, the product of their 2-norms (Cauchy and Schwarz), which are
// limited.
//
// Of complex128, -1 has a square root s modulo each of these numbers. x + i·y is known by two residues, x + s·y and x - s·y,
// and a product by the products of both: two real products for each modulus, where the parts would take four.
#pragma once

#ifndef COMPLEX
#define COMPLEX 0
#endif

constexpr int MOST_MODULI = 15;
#if COMPLEX
constexpr int MODULUS[MOST_MODULI] = { 241, 233, 229, 221, 205, 197, 193, 181, 173, 157, 149, 137, 113, 109, 101 };
#else
constexpr int MODULUS[MOST_MODULI] = { 256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197 };
#endif
// Real numbers of an element, and residues that it has for each modulus. The planes of a modulus follow each other.
constexpr int EACH = COMPLEX ? 2 : 1;

// The number modulo which the sums of a plane are stored. Of a small modulus it is the double, whose inverse is smaller.
__host__ __device__ constexpr int divisor_of_plane(int plane)
{
    const int p = MODULUS[plane / EACH];
    return COMPLEX && p <= 128 ? 2 * p : p;
}

// What is flagged has 128 rows and 64 columns: there the bound of the error does not hold, and multiply_flagged_f64.cu computes C.
constexpr int FLAGGED_ROWS = 128, FLAGGED_COLUMNS = 64;

// What is known of a line, a row of A or a column of B, beside its residues.
struct Line {
    unsigned long long sum;  // of the magnitudes of its whole numbers, which are two of a complex one
    short shift;             // each of them is an element times 2^shift, rounded
    short bits;              // none of them is above 2^bits
    int kind;                // bits: ROUNDED, UNFIT
};
constexpr int ROUNDED = 1;  // not all elements times 2^shift were whole
constexpr int UNFIT = 2;    // an infinity or a NaN

// The residues of C lie as tensor cores leave them: of each modulus tiles of 128×WIDTH, of these two halves of 64 rows, of these
// chunks of 32 columns, of these 16 bytes for each of 128 threads. Thread t of warp w has as number i of a chunk row
// 16·w + t/4 + 8·(i/2 % 2) and column 8·(i/4) + 2·(t % 4) + i % 2.
constexpr int TILE_ROWS = 128, CHUNK_COLUMNS = 32, CHUNK_BYTES = 2048;

__host__ __device__ constexpr int power_modulo(int base, int exponent, int p)
{
    int value = 1 % p;
    for (int i = 0; i < exponent; i++) value = value * (base % p) % p;
    return value;
}

// w with w · (product of the other moduli) = 1 modulo number i.
__host__ __device__ constexpr int inverse_of_others(int i)
{
    const int p = MODULUS[i];
    int others = 1;
    for (int j = 0; j < MODULI; j++)
        if (j != i) others = others * (MODULUS[j] % p) % p;
    for (int w = 1; w < p; w++)
        if (w * others % p == 1) return w;
    return 0;
}

// s with s·s = -1 modulo p.
__host__ __device__ constexpr int root_of_minus_one(int p)
{
    for (int s = 1; s < p; s++)
        if ((s * s + 1) % p == 0) return s;
    return 0;
}

// The product of all moduli, or of all but number `left_out`, and of a factor, in limbs of 38 bits.
constexpr int LIMB_BITS = 38;
struct Limbs { unsigned long long of[3]; };
__host__ __device__ constexpr Limbs product_of_moduli(int left_out, int factor = 1)
{
    Limbs limbs = { { (unsigned long long)factor, 0, 0 } };
    for (int j = 0; j < MODULI; j++) {
        if (j == left_out) continue;
        unsigned long long carry = 0;
        for (int l = 0; l < 3; l++) {
            const unsigned long long value = limbs.of[l] * MODULUS[j] + carry;
            limbs.of[l] = l < 2 ? value & ((1ull << LIMB_BITS) - 1) : value;
            carry = value >> LIMB_BITS;
        }
    }
    return limbs;
}
