// Functions for Blackwell's tensor memory and its products, one instruction each, as the PTX ISA describes them (sm_100a).
// Those for copies and mbarriers are the macros of support/async_sources.py.
#pragma once

DEV u32 lane_of(u32 lane, u32 column) { return lane << 16 | column; }

DEV bool elected()
{
    u32 chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.b32 %0, 1, 0, p; }" : "=r"(chosen));
    return chosen;
}

DEV u32 rank_in_cluster()
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

#define CLUSTER_SYNC() asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory")

// ---- tensor memory: a whole warp allocates it, and gives it back ----------------------------------------------------------
#define ALLOC(group, to, columns) asm volatile("tcgen05.alloc.cta_group::" group ".sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(sm(to)), "r"(columns) : "memory")
#define DEALLOC(group, at, columns) asm volatile("tcgen05.dealloc.cta_group::" group ".sync.aligned.b32 %0, %1;" :: "r"(at), "r"(columns) : "memory")
#define RELINQUISH(group) asm volatile("tcgen05.relinquish_alloc_permit.cta_group::" group ".sync.aligned;" ::: "memory")

// ---- order ----------------------------------------------------------------------------------------------------------------
#define BEFORE_SYNC() asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define AFTER_SYNC() asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")
#define WAIT_LD() asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory")
#define WAIT_ST() asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory")
#define COMMIT_TO(group, barrier) asm volatile("tcgen05.commit.cta_group::" group ".mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(sm(barrier)) : "memory")
#define COMMIT_TO_ALL(group, barrier, mask) asm volatile("tcgen05.commit.cta_group::" group ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" :: "r"(sm(barrier)), "h"((unsigned short)(mask)) : "memory")

// ---- loads and stores: eight registers of each thread -----------------------------------------------------------------------
#define EIGHT(letter, v) letter(v[0]), letter(v[1]), letter(v[2]), letter(v[3]), letter(v[4]), letter(v[5]), letter(v[6]), letter(v[7])
#define LD8(shape, v, at) asm volatile("tcgen05.ld.sync.aligned." shape ".b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];" : EIGHT("=r", v) : "r"(at))
#define ST8(shape, at, v) asm volatile("tcgen05.st.sync.aligned." shape ".b32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7};" :: EIGHT("r", v), "r"(at) : "memory")

// ---- products: by one thread ------------------------------------------------------------------------------------------------
#define MMA(group, kind, d, a, b, shape, adds) asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::" group ".kind::" kind " [%0], %1, %2, %3, p; }" :: "r"(d), "l"(a), "l"(b), "r"(shape), "r"((u32)(adds)) : "memory")
#define MMA_A_HERE(kind, d, a, b, shape, adds) asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::" kind " [%0], [%1], %2, %3, p; }" :: "r"(d), "r"(a), "l"(b), "r"(shape), "r"((u32)(adds)) : "memory")
#define MMA_SCALED(kind, d, a, b, shape, sa, sb) asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 1; tcgen05.mma.cta_group::1.kind::" kind " [%0], %1, %2, %3, [%4], [%5], 0; }" :: "r"(d), "l"(a), "l"(b), "r"(shape), "r"(sa), "r"(sb) : "memory")
#define CP_SCALES(to, from) asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(to), "l"(from) : "memory")

// Where an operand lies in shared memory; distances in bytes; `swizzle` is 0 (none), 2 (128 bytes), 4 (64) or 6 (32).
DEV u64 tile(const void* at, u32 leading, u32 stride, u32 swizzle)
{
    return (u64)(sm(at) >> 4 & 0x3FFF) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 46 | (u64)swizzle << 61;
}

// The instruction descriptor: types of D, A and B by their numbers, M and N.
constexpr DEV u32 product_of(u32 d, u32 a, u32 b, u32 m, u32 n) { return d << 4 | a << 7 | b << 10 | n >> 3 << 17 | m >> 4 << 24; }
