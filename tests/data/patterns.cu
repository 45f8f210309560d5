// One warp, one access to memory, at any byte offset of each lane: what does it cost? Negative: the lane stays out.
// tests/shared_patterns.py and tests/global_patterns.py have the offsets.

typedef unsigned int word;
typedef unsigned long long wide;

#define AT(pointer) static_cast<word>(__cvta_generic_to_shared(pointer))

#define PATTERN(name, access)                                                     \
  extern "C" __global__ void name(const int* offsets, const uint4* x, word* y) {  \
    extern __shared__ __align__(128) unsigned char box[];                         \
    int offset = offsets[threadIdx.x];                                            \
    word at = AT(box) + offset, a = threadIdx.x, b = 0, c = 0, d = 0;             \
    wide l = threadIdx.x;                                                         \
    [[maybe_unused]] const uint4* from = x + threadIdx.x;                         \
    if (offset >= 0) { access; }                                                  \
    y[threadIdx.x] = a + b + c + d + static_cast<word>(l) + static_cast<word>(l >> 32); \
  }

#define LOAD(type, out) asm volatile("ld.shared." type " %0, [%1];" : out : "r"(at))
PATTERN(ld1, LOAD("u8", "=r"(a)))
PATTERN(ld2, LOAD("u16", "=r"(a)))
PATTERN(ld4, LOAD("u32", "=r"(a)))
PATTERN(ld8, LOAD("u64", "=l"(l)))
PATTERN(ld16, asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at)))

#define STORE(type, in) asm volatile("st.shared." type " [%0], %1;" ::"r"(at), in : "memory")
PATTERN(st1, STORE("u8", "r"(a)))
PATTERN(st2, STORE("u16", "r"(a)))
PATTERN(st4, STORE("u32", "r"(a)))
PATTERN(st8, STORE("u64", "l"(l)))
PATTERN(st16, asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory"))

PATTERN(add4, asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(b) : "r"(at), "r"(a) : "memory"))
PATTERN(cas4, asm volatile("atom.shared.cas.b32 %0, [%1], %2, %3;" : "=r"(b) : "r"(at), "r"(c), "r"(a) : "memory"))
PATTERN(exch8, asm volatile("atom.shared.exch.b64 %0, [%1], %0;" : "+l"(l) : "r"(at) : "memory"))
PATTERN(cas8, asm volatile("atom.shared.cas.b64 %0, [%1], %2, %0;" : "+l"(l) : "r"(at), "l"(l + 1) : "memory"))
PATTERN(max4, asm volatile("atom.shared.max.u32 %0, [%1], %2;" : "=r"(b) : "r"(at), "r"(a) : "memory"))
PATTERN(one4, asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(at) : "memory"))

#define COPY(cache, nbytes) \
  asm volatile("cp.async." cache ".shared.global [%0], [%1], " #nbytes "; cp.async.wait_all;" ::"r"(at), "l"(from) : "memory")
PATTERN(copy4, COPY("ca", 4))
PATTERN(copy8, COPY("ca", 8))
PATTERN(copy16, COPY("ca", 16))
PATTERN(bypass16, COPY("cg", 16))

// All lanes take part; those that give no address need none.
#define MATRIX(name, access)                                                      \
  extern "C" __global__ void name(const int* offsets, const uint4* x, word* y) {  \
    extern __shared__ __align__(128) unsigned char box[];                         \
    word at = AT(box) + offsets[threadIdx.x], a = threadIdx.x, b = 0, c = 0, d = 0; \
    access;                                                                       \
    y[threadIdx.x] = a + b + c + d;                                               \
  }
#define ONE ".shared.b16 {%0}, [%1];"
#define TWO ".shared.b16 {%0, %1}, [%2];"
#define FOUR ".shared.b16 {%0, %1, %2, %3}, [%4];"
MATRIX(ldsm1, asm volatile("ldmatrix.sync.aligned.m8n8.x1" ONE : "=r"(a) : "r"(at)))
MATRIX(ldsm1t, asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans" ONE : "=r"(a) : "r"(at)))
MATRIX(ldsm2, asm volatile("ldmatrix.sync.aligned.m8n8.x2" TWO : "=r"(a), "=r"(b) : "r"(at)))
MATRIX(ldsm4, asm volatile("ldmatrix.sync.aligned.m8n8.x4" FOUR : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at)))
MATRIX(ldsm4t, asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans" FOUR : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at)))
MATRIX(stsm1, asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(a) : "memory"))
MATRIX(stsm2, asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory"))
MATRIX(stsm4, asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory"))
MATRIX(stsm4t, asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory"))

// ---- global memory ----------------------------------------------------------------------------------------------------

#define GLOBAL(name, access)                                                                          \
  extern "C" __global__ void name(const int* offsets, const int*, unsigned char* x, word* y) {        \
    int offset = offsets[threadIdx.x];                                                                \
    unsigned char* at = x + offset;                                                                   \
    word a = threadIdx.x, b = 0;                                                                      \
    wide l = threadIdx.x;                                                                             \
    [[maybe_unused]] float f = threadIdx.x;                                                           \
    if (offset >= 0) { access; }                                                                      \
    y[threadIdx.x] = a + b + static_cast<word>(l);                                                    \
  }
GLOBAL(red4, asm volatile("red.global.add.u32 [%0], %1;" ::"l"(at), "r"(a) : "memory"))
GLOBAL(redf4, asm volatile("red.global.add.f32 [%0], %1;" ::"l"(at), "f"(f) : "memory"))
GLOBAL(red8, asm volatile("red.global.add.u64 [%0], %1;" ::"l"(at), "l"(l) : "memory"))
GLOBAL(atom4, asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(b) : "l"(at), "r"(a) : "memory"))
GLOBAL(atomcas4, asm volatile("atom.global.cas.b32 %0, [%1], %2, %3;" : "=r"(b) : "l"(at), "r"(b), "r"(a) : "memory"))
GLOBAL(atom8, asm volatile("atom.global.exch.b64 %0, [%1], %0;" : "+l"(l) : "l"(at) : "memory"))

extern "C" __global__ void move16(const int* offsets, const int* sources, unsigned char* x, word* y) {
  extern __shared__ __align__(128) unsigned char box[];
  word at = AT(box) + offsets[threadIdx.x];
  const unsigned char* from = x + sources[threadIdx.x];
  COPY("cg", 16);
  y[threadIdx.x] = at;
}
