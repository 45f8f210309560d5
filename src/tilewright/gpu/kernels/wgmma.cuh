// One wgmma of 64 rows by WIDTH columns: d = a·b + (keep ? d : 0), by the four warps of a group, for the type and the layouts that
// the kernel's macros name. Thread t of warp w holds in d[i] row 16·w + t/4 + 8·(i/2 % 2), column 8·(i/4) + 2·(t % 4) + i % 2.
#pragma once

#define FOUR(letter, d, i) letter(d[i]), letter(d[i + 1]), letter(d[i + 2]), letter(d[i + 3])
#define EIGHT(letter, d, i) FOUR(letter, d, i), FOUR(letter, d, i + 4)
#define D_16(letter, d) EIGHT(letter, d, 0), EIGHT(letter, d, 8)
#define D_24(letter, d) D_16(letter, d), EIGHT(letter, d, 16)
#define D_32(letter, d) D_24(letter, d), EIGHT(letter, d, 24)
#define D_36(letter, d) D_32(letter, d), FOUR(letter, d, 32)
#define D_40(letter, d) D_32(letter, d), EIGHT(letter, d, 32)
#define D_44(letter, d) D_40(letter, d), FOUR(letter, d, 40)
#define D_48(letter, d) D_40(letter, d), EIGHT(letter, d, 40)
#define D_52(letter, d) D_48(letter, d), FOUR(letter, d, 48)
#define D_56(letter, d) D_48(letter, d), EIGHT(letter, d, 48)
#define D_60(letter, d) D_56(letter, d), FOUR(letter, d, 56)
#define D_64(letter, d) D_56(letter, d), EIGHT(letter, d, 56)
#define D_68(letter, d) D_64(letter, d), FOUR(letter, d, 64)
#define D_72(letter, d) D_64(letter, d), EIGHT(letter, d, 64)
#define D_76(letter, d) D_72(letter, d), FOUR(letter, d, 72)
#define D_80(letter, d) D_72(letter, d), EIGHT(letter, d, 72)
#define D_84(letter, d) D_80(letter, d), FOUR(letter, d, 80)
#define D_88(letter, d) D_80(letter, d), EIGHT(letter, d, 80)
#define D_92(letter, d) D_88(letter, d), FOUR(letter, d, 88)
#define D_96(letter, d) D_88(letter, d), EIGHT(letter, d, 88)
#define D_100(letter, d) D_96(letter, d), FOUR(letter, d, 96)
#define D_104(letter, d) D_96(letter, d), EIGHT(letter, d, 96)
#define D_108(letter, d) D_104(letter, d), FOUR(letter, d, 104)
#define D_112(letter, d) D_104(letter, d), EIGHT(letter, d, 104)
#define D_116(letter, d) D_112(letter, d), FOUR(letter, d, 112)
#define D_120(letter, d) D_112(letter, d), EIGHT(letter, d, 112)
#define D_124(letter, d) D_120(letter, d), FOUR(letter, d, 120)
#define D_128(letter, d) D_120(letter, d), EIGHT(letter, d, 120)
#define N_16 \
    "%0, %1, %2, %3, %4, %5, %6, %7, " \
    "%8, %9, %10, %11, %12, %13, %14, %15"
#define N_24 N_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define N_32 N_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define N_36 N_32 ", %32, %33, %34, %35"
#define N_40 N_36 ", %36, %37, %38, %39"
#define N_44 N_40 ", %40, %41, %42, %43"
#define N_48 N_44 ", %44, %45, %46, %47"
#define N_52 N_48 ", %48, %49, %50, %51"
#define N_56 N_52 ", %52, %53, %54, %55"
#define N_60 N_56 ", %56, %57, %58, %59"
#define N_64 N_60 ", %60, %61, %62, %63"
#define N_68 N_64 ", %64, %65, %66, %67"
#define N_72 N_68 ", %68, %69, %70, %71"
#define N_76 N_72 ", %72, %73, %74, %75"
#define N_80 N_76 ", %76, %77, %78, %79"
#define N_84 N_80 ", %80, %81, %82, %83"
#define N_88 N_84 ", %84, %85, %86, %87"
#define N_92 N_88 ", %88, %89, %90, %91"
#define N_96 N_92 ", %92, %93, %94, %95"
#define N_100 N_96 ", %96, %97, %98, %99"
#define N_104 N_100 ", %100, %101, %102, %103"
#define N_108 N_104 ", %104, %105, %106, %107"
#define N_112 N_108 ", %108, %109, %110, %111"
#define N_116 N_112 ", %112, %113, %114, %115"
#define N_120 N_116 ", %116, %117, %118, %119"
#define N_124 N_120 ", %120, %121, %122, %123"
#define N_128 N_124 ", %124, %125, %126, %127"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)

// SUM, LETTER, SHAPE_K, TYPES and TAIL are those of the type of the operands; REGISTERS are those of the sums of a thread, and N_0 to
// N_5 the numbers of the arguments after them. The first operand is in shared memory, or, along rows of four bytes, in registers.
#define DEFINE_WGMMA(REGISTERS, N_0, N_1, N_2, N_3, N_4, N_5) \
    __device__ __forceinline__ void wgmma(SUM (&d)[REGISTERS], unsigned long long a, unsigned long long b, int keep) \
    { \
        asm volatile( \
            "{\n.reg .pred p;\nsetp.ne.b32 p, " N_2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" TEXT(WIDTH) SHAPE_K TYPES " {" \
            JOIN(N_, REGISTERS) "}, " N_0 ", " N_1 ", p" TAIL ";\n}" \
            : JOIN(D_, REGISTERS)(LETTER, d) : "l"(a), "l"(b), "r"(keep)); \
    } \
    __device__ __forceinline__ void wgmma(SUM (&d)[REGISTERS], const unsigned (&a)[4], unsigned long long b, int keep) \
    { \
        asm volatile( \
            "{\n.reg .pred p;\nsetp.ne.b32 p, " N_5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" TEXT(WIDTH) SHAPE_K TYPES " {" \
            JOIN(N_, REGISTERS) "}, {" N_0 ", " N_1 ", " N_2 ", " N_3 "}, " N_4 ", p" TAIL ";\n}" \
            : JOIN(D_, REGISTERS)(LETTER, d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)); \
    }
#if WIDTH == 32
DEFINE_WGMMA(16, "%16", "%17", "%18", "%19", "%20", "%21")
#elif WIDTH == 48
DEFINE_WGMMA(24, "%24", "%25", "%26", "%27", "%28", "%29")
#elif WIDTH == 64
DEFINE_WGMMA(32, "%32", "%33", "%34", "%35", "%36", "%37")
#elif WIDTH == 72
DEFINE_WGMMA(36, "%36", "%37", "%38", "%39", "%40", "%41")
#elif WIDTH == 80
DEFINE_WGMMA(40, "%40", "%41", "%42", "%43", "%44", "%45")
#elif WIDTH == 88
DEFINE_WGMMA(44, "%44", "%45", "%46", "%47", "%48", "%49")
#elif WIDTH == 96
DEFINE_WGMMA(48, "%48", "%49", "%50", "%51", "%52", "%53")
#elif WIDTH == 104
DEFINE_WGMMA(52, "%52", "%53", "%54", "%55", "%56", "%57")
#elif WIDTH == 112
DEFINE_WGMMA(56, "%56", "%57", "%58", "%59", "%60", "%61")
#elif WIDTH == 120
DEFINE_WGMMA(60, "%60", "%61", "%62", "%63", "%64", "%65")
#elif WIDTH == 128
DEFINE_WGMMA(64, "%64", "%65", "%66", "%67", "%68", "%69")
#elif WIDTH == 136
DEFINE_WGMMA(68, "%68", "%69", "%70", "%71", "%72", "%73")
#elif WIDTH == 144
DEFINE_WGMMA(72, "%72", "%73", "%74", "%75", "%76", "%77")
#elif WIDTH == 152
DEFINE_WGMMA(76, "%76", "%77", "%78", "%79", "%80", "%81")
#elif WIDTH == 160
DEFINE_WGMMA(80, "%80", "%81", "%82", "%83", "%84", "%85")
#elif WIDTH == 168
DEFINE_WGMMA(84, "%84", "%85", "%86", "%87", "%88", "%89")
#elif WIDTH == 176
DEFINE_WGMMA(88, "%88", "%89", "%90", "%91", "%92", "%93")
#elif WIDTH == 184
DEFINE_WGMMA(92, "%92", "%93", "%94", "%95", "%96", "%97")
#elif WIDTH == 192
DEFINE_WGMMA(96, "%96", "%97", "%98", "%99", "%100", "%101")
#elif WIDTH == 200
DEFINE_WGMMA(100, "%100", "%101", "%102", "%103", "%104", "%105")
#elif WIDTH == 208
DEFINE_WGMMA(104, "%104", "%105", "%106", "%107", "%108", "%109")
#elif WIDTH == 216
DEFINE_WGMMA(108, "%108", "%109", "%110", "%111", "%112", "%113")
#elif WIDTH == 224
DEFINE_WGMMA(112, "%112", "%113", "%114", "%115", "%116", "%117")
#elif WIDTH == 232
DEFINE_WGMMA(116, "%116", "%117", "%118", "%119", "%120", "%121")
#elif WIDTH == 240
DEFINE_WGMMA(120, "%120", "%121", "%122", "%123", "%124", "%125")
#elif WIDTH == 248
DEFINE_WGMMA(124, "%124", "%125", "%126", "%127", "%128", "%129")
#elif WIDTH == 256
DEFINE_WGMMA(128, "%128", "%129", "%130", "%131", "%132", "%133")
#endif
