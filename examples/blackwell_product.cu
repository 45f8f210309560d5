// C = A·Bᵀ of fp16 by the tensor cores of Blackwell (sm_100a): a block multiplies 128 × 64 numbers into tensor memory.
// The options of a launch with which `tilewright explain examples/blackwell_product.cu --gpu B200` runs:
// explain: --grid 2x2 --block 128 --arg a:float16:256x128 --arg b:float16:128x128 --arg c:float32:256x128:zeros --arg n=128 --arg k=128 --expect "c = a @ b.T"

#define ASM(text, ...) asm volatile(text : : __VA_ARGS__ : "memory")

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// A tile whose rows are 128 bytes of K, in the 128-byte swizzle: 8 rows are 1,024 bytes.
__device__ unsigned long long descriptor(const void* tile)
{
    return (shared_address(tile) >> 4 & 0x3FFF) | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

// 16 bytes of row `row`, the chunk `chunk` of 8, as the swizzle places them.
__device__ void put(char* tile, int row, int chunk, int4 bytes) { *(int4*)(tile + row * 128 + (chunk ^ row % 8) * 16) = bytes; }

extern "C" __global__ void __launch_bounds__(128) product(const unsigned short* a, const unsigned short* b, float* c, int n, int k)
{
    __shared__ __align__(1024) char a_tile[128 * 128], b_tile[64 * 128];
    __shared__ unsigned long long done;  // an mbarrier: a phase is complete when the products of a step are
    __shared__ unsigned sums;            // the address of the sums in tensor memory: lane << 16 | column
    const int t = threadIdx.x, warp = t / 32, top = blockIdx.y * 128, left = blockIdx.x * 64;
    const unsigned shape = 1 << 4 | 64 / 8 << 17 | 128 / 16 << 24;  // float32 sums of fp16, N = 64, M = 128

    if (t == 0) ASM("mbarrier.init.shared::cta.b64 [%0], 1;", "r"(shared_address(&done)));
    if (warp == 0) ASM("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;", "r"(shared_address(&sums)));
    __syncthreads();
    for (int step = 0; step < k / 64; step++) {
        for (int i = t; i < 192 * 8; i += 128) {
            const int row = i / 8, chunk = i % 8;
            const unsigned short* from = row < 128 ? a + (top + row) * k : b + (left + row - 128) * k;
            put(row < 128 ? a_tile : b_tile, row < 128 ? row : row - 128, chunk, *(const int4*)(from + step * 64 + chunk * 8));
        }
        ASM("fence.proxy.async.shared::cta;", "r"(0));  // the tensor cores see what was written
        __syncthreads();
        if (t == 0) {
            for (int i = 0; i < 4; i++)  // 16 of K, 32 bytes, each
                ASM("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }", "r"(sums),
                    "l"(descriptor(a_tile + i * 32)), "l"(descriptor(b_tile + i * 32)), "r"(shape), "r"(step + i));
            ASM("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];", "r"(shared_address(&done)));
        }
        ASM("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra W; }", "r"(shared_address(&done)), "r"(step & 1));
    }
    ASM("tcgen05.fence::after_thread_sync;", "r"(0));
    for (int column = 0; column < 64; column += 4) {  // a warp loads its 32 lanes: a row of C each
        float v[4];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(sums + (warp * 32 << 16) + column));
        ASM("tcgen05.wait::ld.sync.aligned;", "r"(0));
        *(float4*)(c + (top + t) * n + left + column) = make_float4(v[0], v[1], v[2], v[3]);
    }
    ASM("tcgen05.fence::before_thread_sync;", "r"(0));
    __syncthreads();
    if (warp == 0) ASM("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;", "r"(sums));
}
