// What racecheck takes for a race: a ring of stages that 128 threads fill by cp.async, and 128 others read.
//
//     nvcc -arch=sm_90a -lineinfo -o ring benchmarks/racecheck_ring.cu && compute-sanitizer --tool racecheck ./ring [each | warp]
//
// each: every reader says that it has read a stage: nothing is found. warp: one lane says so after __syncwarp, which orders the reads
// of the whole warp before it: reads are reported as races with the copies of the next stage.
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

constexpr int STAGES = 4, NUMBERS = 256, STEPS = 40;  // numbers of a stage
struct Shared {
    double stage[STAGES][NUMBERS];
    unsigned long long full[STAGES], empty[STAGES];
};

__device__ unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

__device__ void init(unsigned long long& barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

__device__ void arrive(unsigned long long& barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

__device__ void wait(unsigned long long& barrier, int parity)
{
    int done;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(&barrier)), "r"(parity) : "memory");
    while (!done);
}

template <bool ONE_LANE> __global__ void ring(const double* numbers, double* sums)
{
    __shared__ Shared s;
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) {
            init(s.full[i], 128);
            init(s.empty[i], ONE_LANE ? 4 : 128);
        }
    __syncthreads();
    double sum = 0;
    for (int step = 0; step < STEPS; step++) {
        const int slot = step % STAGES, parity = step / STAGES % 2, thread = threadIdx.x % 128;
        if (threadIdx.x < 128) {
            wait(s.empty[slot], parity ^ 1);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         ::"r"(shared_address(&s.stage[slot][2 * thread])), "l"(numbers + step * NUMBERS + 2 * thread) : "memory");
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&s.full[slot])) : "memory");
        } else {
            wait(s.full[slot], parity);
            for (int i = 0; i < 4; i++) sum += s.stage[slot][(thread * 7 + i * 61) % NUMBERS];
            if (ONE_LANE) __syncwarp();
            if (!ONE_LANE || thread % 32 == 0) arrive(s.empty[slot]);
        }
    }
    if (threadIdx.x < 128) asm volatile("cp.async.wait_all;" ::: "memory");
    else sums[threadIdx.x - 128] = sum;
}

int main(int count, char** words)
{
    double *numbers, *sums;
    cudaMalloc(&numbers, STEPS * NUMBERS * sizeof(double));
    cudaMalloc(&sums, 128 * sizeof(double));
    cudaMemset(numbers, 0, STEPS * NUMBERS * sizeof(double));
    if (count > 1 && strcmp(words[1], "warp") == 0) ring<true><<<1, 256>>>(numbers, sums);
    else ring<false><<<1, 256>>>(numbers, sums);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
}
