// y[i] = the sum of column i of x, which has 128 columns. One thread asks the copy engine for rows; 128 threads add up those that
// have arrived. It needs Hopper or newer (sm_90). Launch: one block of 160 threads. See docs/asynchronous.md.
constexpr int COLS = 128, STAGES = 2, BYTES = COLS * 4;
typedef unsigned long long Barrier;

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(Barrier& b, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(&b)), "r"(arrivals) : "memory"); }
__device__ void publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void arrive(Barrier& b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(&b)) : "memory"); }
__device__ void expect(Barrier& b, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(&b)), "r"(bytes) : "memory"); }
__device__ void wait(Barrier& b, int parity)
{
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }" :: "r"(at(&b)), "r"(parity) : "memory");
}
__device__ void copy(void* to, const void* from, int bytes, Barrier& b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(at(to)), "l"(from), "r"(bytes), "r"(at(&b)) : "memory");
}

extern "C" __global__ void ring(const float* x, float* y, int rows)
{
    __shared__ alignas(16) float stage[STAGES][COLS];
    __shared__ Barrier full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            init(full[s], 1);   // the producer arrives, and says how many bytes will
            init(empty[s], 4);  // one thread of each of four warps arrives
        }
        publish();
    }
    __syncthreads();
    if (threadIdx.x == 128)  // the producer
        for (int row = 0; row < rows; row++) {
            int s = row % STAGES, parity = row / STAGES % 2;
            wait(empty[s], parity ^ 1);
            expect(full[s], BYTES);
            copy(stage[s], x + row * COLS, BYTES, full[s]);
        }
    else if (threadIdx.x < 128) {  // the consumers
        float sum = 0;
        for (int row = 0; row < rows; row++) {
            int s = row % STAGES, parity = row / STAGES % 2;
            wait(full[s], parity);
            sum += stage[s][threadIdx.x];
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                arrive(empty[s]);
        }
        y[threadIdx.x] = sum;
    }
}
