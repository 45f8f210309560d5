// One wgmma of 64 rows by WIDTH columns: d = a·b + (keep ? d : 0), by the four warps of a group, for the type and the layouts that
// the kernel's macros name. Thread t of warp w holds in d[i] row 16·w + t/4 + 8·(i/2 % 2), column 8·(i/4) + 2·(t % 4) + i % 2.
#pragma once

#define EIGHT(letter, d, i) \
    letter(d[i]), letter(d[i + 1]), letter(d[i + 2]), letter(d[i + 3]), letter(d[i + 4]), letter(d[i + 5]), letter(d[i + 6]), letter(d[i + 7])
#define D_32(letter, d) EIGHT(letter, d, 0), EIGHT(letter, d, 8), EIGHT(letter, d, 16), EIGHT(letter, d, 24)
#define D_48(letter, d) D_32(letter, d), EIGHT(letter, d, 32), EIGHT(letter, d, 40)
#define D_64(letter, d) D_32(letter, d), EIGHT(letter, d, 32), EIGHT(letter, d, 40), EIGHT(letter, d, 48), EIGHT(letter, d, 56)
#define D_96(letter, d) D_64(letter, d), EIGHT(letter, d, 64), EIGHT(letter, d, 72), EIGHT(letter, d, 80), EIGHT(letter, d, 88)
#define D_128(letter, d) D_96(letter, d), EIGHT(letter, d, 96), EIGHT(letter, d, 104), EIGHT(letter, d, 112), EIGHT(letter, d, 120)
#define N_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, " \
    "%8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define N_48 \
    N_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, " \
    "%40, %41, %42, %43, %44, %45, %46, %47"
#define N_64 \
    N_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, " \
    "%40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, " \
    "%56, %57, %58, %59, %60, %61, %62, %63"
#define N_96 \
    N_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, " \
    "%72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, " \
    "%88, %89, %90, %91, %92, %93, %94, %95"
#define N_128 \
    N_96 ", " \
    "%96, %97, %98, %99, %100, %101, %102, %103, " \
    "%104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, " \
    "%120, %121, %122, %123, %124, %125, %126, %127"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)

// SUM, LETTER, SHAPE_K, TYPES and TAIL are those of the type of the operands; REGISTERS are those of the sums of a thread.
#define DEFINE_WGMMA(REGISTERS, A, B, KEEP) \
    __device__ __forceinline__ void wgmma(SUM (&d)[REGISTERS], unsigned long long a, unsigned long long b, int keep) \
    { \
        asm volatile( \
            "{\n.reg .pred p;\nsetp.ne.b32 p, " KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" TEXT(WIDTH) SHAPE_K TYPES " {" \
            JOIN(N_, REGISTERS) "}, " A ", " B ", p" TAIL ";\n}" \
            : JOIN(D_, REGISTERS)(LETTER, d) : "l"(a), "l"(b), "r"(keep)); \
    }
#if WIDTH == 64
DEFINE_WGMMA(32, "%32", "%33", "%34")
#elif WIDTH == 96
DEFINE_WGMMA(48, "%48", "%49", "%50")
#elif WIDTH == 128
DEFINE_WGMMA(64, "%64", "%65", "%66")
#elif WIDTH == 192
DEFINE_WGMMA(96, "%96", "%97", "%98")
#elif WIDTH == 256
DEFINE_WGMMA(128, "%128", "%129", "%130")
#endif
