// The launches of a product follow each other. In a graph the next one may begin before this one has ended, from Hopper on.
#pragma once

// Waits until the launch before this one has ended, and all that it wrote can be read. Every thread that accesses global memory calls
// it first. Where a launch begins only after the one before has ended, as on a stream, there is nothing to wait for.
__device__ __forceinline__ void wait_for_launch_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Blocks of the next launch may begin on multiprocessors that blocks of this one have left; they wait as above.
__device__ __forceinline__ void let_next_launch_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
