// The place of a thread in a ring of slots of shared memory, which copies fill and tensor cores empty.
#pragma once
#include "hopper.cuh"

template <int LENGTH> struct Ring {  // the next slot, and the parity of its phase
    int slot = 0, parity = 0;
    __device__ __forceinline__ void advance()
    {
        if (++slot == LENGTH) {
            slot = 0;
            parity ^= 1;
        }
    }
    // Past slots that another thread takes.
    __device__ __forceinline__ void skip(int count)
    {
        parity ^= (slot + count) / LENGTH & 1;
        slot = (slot + count) % LENGTH;
    }
};

// Makes the barriers of a ring, a thread each slot: a copy fills it, and so many arrivals empty it.
template <int LENGTH> __device__ __forceinline__ void init_ring(Barrier (&full)[LENGTH], Barrier (&empty)[LENGTH], int arrivals)
{
    if (threadIdx.x >= LENGTH) return;
    barrier_init(full[threadIdx.x], 1);
    barrier_init(empty[threadIdx.x], arrivals);
    barrier_publish();
}
