// The first operand in registers: tensor cores read numbers of four bytes from shared memory only along k, but from registers as a
// thread loads them. So an A whose columns follow each other in memory need not be transposed first.
#pragma once

// The row of a group, of its 64, of which a lane has sums i with i / 2 % 2 == `lower`. Where A comes from registers, it may be chosen: if
// lanes 0 to 3, …, 28 to 31 take places 0 to 3 and 16 to 19 of 32 that follow each other in chunks of 16 bytes, which are swizzled, and
// at four steps, all of them find different banks.
__device__ __forceinline__ int row_of_sums(int warp, int lane, int lower)
{
    const int g = lane / 4;
    if (IN_REGISTERS && sizeof(Out) == 4) return warp / 2 * 32 + warp % 2 * 8 + lower * 4 + g % 4 + g / 4 * 16;
    return warp * 16 + g + lower * 8;
}

#if IN_REGISTERS
struct FirstOperand {  // of a group, at one stage: at steps t and t + 4 of each 8
    unsigned of[LINE / 8][4];

    // Where the first four are, in bytes, in boxes of LINE rows, of which those at one step follow each other.
    static __device__ __forceinline__ int place(int i)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, row = row_of_sums(warp, lane, i % 2), step = i / 2 * 4 + lane % 4;
        return (row / LINE * LINE + step) * 128 + (row % LINE / 4 ^ step) * 16 + row % 4 * 4;
    }

    __device__ __forceinline__ void load(const unsigned char* tile, const int (&places)[4])
    {
        #pragma unroll
        for (int q = 0; q < LINE / 8; q++)
            #pragma unroll
            for (int i = 0; i < 4; i++) of[q][i] = *(const unsigned*)(tile + places[i] + q * (8 * 128));
    }

    // Tensor cores have read it: until here its registers are no other's.
    __device__ __forceinline__ void keep() const
    {
        #pragma unroll
        for (int q = 0; q < LINE / 8; q++) asm volatile("" ::"r"(of[q][0]), "r"(of[q][1]), "r"(of[q][2]), "r"(of[q][3]) : "memory");
    }
};

// A stage's rows of A are loaded while tensor cores multiply those before. Returns the last stage, which is given back here only if slabs
// do not lie there.
__device__ __forceinline__ int add_steps_from_registers(Shared& s, Ring<DEPTH>& ring, int half, SUM (&d)[BN / 2], int steps)
{
    FirstOperand first;
    int places[4], slot = 0;
    #pragma unroll
    for (int i = 0; i < 4; i++) places[i] = half * 8192 + FirstOperand::place(i);
    auto load = [&](FirstOperand& to) {
        barrier_wait(s.full[ring.slot], ring.parity);
        to.load(s.a[ring.slot], places);
    };
    if (steps > 0) load(first);
    for (int step = 0; step < steps; step++) {
        slot = ring.slot;
        const unsigned long long second = descriptor(s.b[slot], 16, 1024);
        wgmma_fence();
        #pragma unroll
        for (int q = 0; q < LINE / 8; q++) wgmma(d, first.of[q], second + 2 * q, step > 0 || q > 0);
        wgmma_commit();
        ring.advance();
        FirstOperand next = first;
        if (step + 1 < steps) load(next);
        wgmma_wait<0>();
        first.keep();
        if (OWN_SLABS || step + 1 < steps) release(s, slot);
        first = next;
    }
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) asm volatile("" : LETTER(d[i])::"memory");  // read only from here on
    return slot;
}
#endif
