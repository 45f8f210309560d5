// Functions for instructions that CUDA C++ has no name for, and for storing C; nothing else is here. The PTX ISA describes
// each instruction.
#pragma once

// ---- C --------------------------------------------------------------------------------------------------------------------
// A kernel that declares ``adds`` is also compiled with ACCUMULATE: then its product is added to C. Without it, no kernel
// reads C.
#ifndef ACCUMULATE
#define ACCUMULATE 0
#endif

// The library compiles a kernel without code that the size at hand does not need: the conditions of the header's table
// ``given`` say which.
#ifndef C_ALIGNED
#define C_ALIGNED 0  // rows of C begin at multiples of 16 bytes
#endif
#ifndef NO_STRIPS
#define NO_STRIPS 0  // whole tiles cover C (see edges.cuh)
#endif

template <typename T>
__device__ __forceinline__ void store(T* to, T value)
{
    *to = ACCUMULATE ? *to + value : value;
}

__device__ __forceinline__ void store(float4* to, float4 v)
{
    const float4 old = ACCUMULATE ? *to : float4{};
    *to = ACCUMULATE ? float4{old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w} : v;
}

__device__ __forceinline__ void store(double2* to, double2 v)
{
    const double2 old = ACCUMULATE ? *to : double2{};
    *to = ACCUMULATE ? double2{old.x + v.x, old.y + v.y} : v;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// ---- asynchronous copies from global to shared memory, without registers (8.0) -------------------------------------------

// Copies 4 bytes; if not inside, it writes zeros and reads nothing.
__device__ __forceinline__ void copy_async_4(void* to, const void* from, bool inside = true)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

__device__ __forceinline__ void copy_async_8(void* to, const void* from, bool inside = true)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 8 : 0) : "memory");
}

// Both addresses must be multiples of 16. Bypasses the first-level cache.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool inside = true)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

// Copies the first `bytes` of 16, and writes zeros for the others.
__device__ __forceinline__ void copy_async_some_of_16(void* to, const void* from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// Ends a group of copies of this thread; a group may be empty.
__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until no more than the last N groups of this thread are under way.
template <int N>
__device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- matrices of 8×8 16-bit elements from shared memory into a warp's fragments (7.5) -------------------------------------

// Lane 8·i + r gives the address of row r of matrix i; of each, a lane gets elements 2·(lane % 4) and the next of row lane / 4.
__device__ __forceinline__ void load_matrix_x4(unsigned (&v)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(shared_address(row)) : "memory");
}

// The same of the matrices' transposes.
__device__ __forceinline__ void load_matrix_x4_transposed(unsigned (&v)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(shared_address(row)) : "memory");
}

// ---- a warp's product of fragments: c += a·b -------------------------------------------------------------------------------
// With g = lane / 4 and t = lane % 4, c holds rows g and g + 8, columns 2·t and 2·t + 1.

// 16×8×16, bfloat16 into float32 (8.0). a: rows g and g + 8 by columns 2·t, 2·t + 1, then both + 8; b: those as rows, column g.
__device__ __forceinline__ void multiply_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 16×8×8, TF32 into float32 (8.0). a: rows g and g + 8 of column t, then of column t + 4; b: rows t and t + 4 of column g.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 16×8×K in float64, K = 4, 8 or 16 by the size of b (9.0; before, K steps of 8×8×4, 8.0).
// a: rows g and g + 8 of column t, then of column t + 4, and so on; b: rows t, t + 4 and so on of column g.
template <int B>
__device__ __forceinline__ void multiply_f64(double (&c)[4], const double (&a)[2 * B], const double (&b)[B])
{
#if __CUDA_ARCH__ >= 900
    if constexpr (B == 1)
        asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3]) : "d"(a[0]), "d"(a[1]), "d"(b[0]));
    else if constexpr (B == 2)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
                     "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
                       "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
    #pragma unroll
    for (int i = 0; i < 2 * B; i++)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(c[i % 2 * 2]), "+d"(c[i % 2 * 2 + 1]) : "d"(a[i]), "d"(b[i / 2]));
#endif
}

// ---- rounding (8.0) --------------------------------------------------------------------------------------------------------

// To the nearest TF32, ties away from zero: without it the tensor core uses the upper 19 bits, unrounded.
__device__ __forceinline__ unsigned round_tf32(float x)
{
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// Two numbers to the nearest bfloat16, the first in the lower half.
__device__ __forceinline__ unsigned round_bf16x2(float low, float high)
{
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
