"""Kernels on clusters of four blocks of 64 threads, right ones and copies of them with a defect planted in each.

A line that must be named ends with ``// !! `` and the kinds of its findings.
"""

# ruff: noqa: E501 - an entry of a table is a line

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCKS, THREADS, CLUSTER = 8, 64, 4
_HEAD = """
#define meet() __cluster_barrier_arrive(); __cluster_barrier_wait()
template <class T> __device__ T* at_rank(T* mine, unsigned rank) { return (T*)__cluster_map_shared_rank(mine, rank); }
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const int* in, int* out) {
    unsigned rank = __clusterRelativeBlockRank(), t = threadIdx.x, i = blockIdx.x * 64 + t;
"""

#: Every block reads the shared memory of the next one.
EXCHANGE = (
    _HEAD
    + """
    __shared__ int mine[64];
    mine[t] = in[i];
    __cluster_barrier_arrive();
    int own = 3 * in[i];
    __cluster_barrier_wait(); // full
    int* next = at_rank(mine, (rank + 1) % 4);
    out[i] = own + next[63 - t];
    meet(); // empty
}"""
)
#: Every thread adds to a sum in each block of its cluster.
SUMS = (
    _HEAD
    + """
    __shared__ int sum;
    if (t == 0) sum = 0;
    meet(); // zero
    for (int r = 0; r < 4; r++) atomicAdd(at_rank(&sum, r), in[i]);
    meet(); // full
    out[i] = sum;
}"""
)
#: The first block sends to the others; a flag in the receiver says that the data is there.
MESSAGE = (
    _HEAD
    + """
    __shared__ int data[64], flag;
    if (t == 0) flag = 0;
    meet(); // zero
    if (rank == 0) {
        for (int r = 1; r < 4; r++) at_rank(data, r)[t] = in[i] + r;
        asm volatile("fence.acq_rel.cluster;" ::: "memory"); // publish
        __syncthreads();
        if (t == 0) for (int r = 1; r < 4; r++) atomicExch(at_rank(&flag, r), 1);
        out[i] = 0;
    } else {
        if (t == 0) while (atomicAdd(&flag, 0) == 0) {}
        asm volatile("fence.acq_rel.cluster;" ::: "memory");
        __syncthreads();
        out[i] = data[t];
    }
}"""
)
#: Every thread stores 8 bytes in the next block and adds 4 to another array there; both complete at a barrier of that block.
STORES = (
    _HEAD
    + """
    __shared__ __align__(16) int pairs[128], added[64];
    __shared__ __align__(8) unsigned long long full;
    unsigned bar = (unsigned)__cvta_generic_to_shared(&full), next = (rank + 1) % 4, there, to, sum;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 768;" :: "r"(bar) : "memory");
    }
    added[t] = 1;
    meet(); // start
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(bar), "r"(next));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"((unsigned)__cvta_generic_to_shared(pairs) + 8 * t), "r"(next));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(sum) : "r"((unsigned)__cvta_generic_to_shared(added) + 4 * t), "r"(next));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" :: "r"(to), "r"(in[i]), "r"(2 * in[i]), "r"(there) : "memory"); // store
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" :: "r"(sum), "r"(in[i]), "r"(there) : "memory"); // add
    asm volatile("{.reg .pred p; WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra WAIT;}" :: "r"(bar) : "memory"); // wait
    out[i] = pairs[2 * t] + pairs[2 * t + 1] + added[t];
}"""
)
#: Every block copies a quarter of the tile to all blocks of its cluster; a relaxed arrival publishes the barriers alone.
MULTICAST = (
    _HEAD
    + """
    __shared__ __align__(128) int tile[256];
    __shared__ __align__(8) unsigned long long full;
    unsigned bar = (unsigned)__cvta_generic_to_shared(&full), to = (unsigned)__cvta_generic_to_shared(tile) + 256 * rank;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); // visible
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(bar) : "memory"); // expect
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory"); // start
    if (t == 0) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, [%2], %3;" :: "r"(to), "l"(in + blockIdx.x * 64), "r"(bar), "h"((short)15) : "memory"); // copy
    asm volatile("{.reg .pred p; WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra WAIT;}" :: "r"(bar) : "memory"); // wait
    out[i] = tile[t] + tile[64 + t] + tile[128 + t] + tile[192 + t]; // sum
}"""
)
KERNELS = {"multicast": MULTICAST, "exchange": EXCHANGE, "sums": SUMS, "message": MESSAGE, "stores": STORES}


def given() -> np.ndarray:
    """The input of every kernel."""
    return np.arange(BLOCKS * THREADS, dtype=np.int32) * 7 % 101


def right(name: str) -> np.ndarray:
    """What a kernel must make of it."""
    x = given().reshape(-1, CLUSTER, THREADS)
    if name == "exchange":
        return (3 * x + np.roll(x, -1, axis=1)[:, :, ::-1]).reshape(-1)
    if name == "sums":
        return np.repeat(x.sum(axis=(1, 2)), CLUSTER * THREADS)
    if name == "stores":
        return (4 * np.roll(x, 1, axis=1) + 1).reshape(-1)
    if name == "multicast":
        return np.repeat(x.sum(axis=1)[:, None], CLUSTER, axis=1).reshape(-1)
    ranks = np.arange(CLUSTER)[None, :, None]
    return np.where(ranks == 0, 0, x[:, :1] + ranks).reshape(-1)


class Planted(NamedTuple):
    """A defect: what replaces what in a kernel, and words of the first finding."""

    name: str
    kernel: str
    edits: list[tuple[str, str]]
    says: str

    @property
    def source(self) -> str:
        """The kernel with its defect."""
        text = KERNELS[self.kernel]
        for old, new in self.edits:
            assert text.count(old) == 1, f"{self.name}: {old!r} occurs {text.count(old)} times"
            text = text.replace(old, new)
        return text


_ARRIVE, _WAIT = "__cluster_barrier_arrive();\n", "__cluster_barrier_wait(); // full"
_READ, _NEXT, _END = "out[i] = own + next[63 - t];", "int* next = at_rank(mine, (rank + 1) % 4);", "meet(); // empty"
_ADD, _SET = "atomicAdd(at_rank(&sum, r), in[i]);", "atomicExch(at_rank(&flag, r), 1);"
_PUBLISH = 'asm volatile("fence.acq_rel.cluster;" ::: "memory"); // publish'
_POLL = "while (atomicAdd(&flag, 0) == 0) {}"
_WAIT_FULL = STORES[STORES.index('asm volatile("{.reg .pred p; WAIT') : STORES.index("// wait") + 7]
_START = MULTICAST[MULTICAST.index('asm volatile("barrier.cluster') : MULTICAST.index(" // start")]
_VISIBLE = 'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
_WAIT_COPY = MULTICAST[MULTICAST.index('asm volatile("{.reg .pred p; WAIT') : MULTICAST.index(" // wait")]
_RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");'
_CLUSTER_RACE, _EARLY = (
    "nothing orders the blocks of a cluster (a barrier of the cluster would)",
    "may have left the kernel by then",
)

PLANTED = [
    Planted("no wait before reading", "exchange", [(_WAIT, ""), (_READ, f"{_READ} // !! race"), (_END, f"{_END} // !! barrier misuse")],
            _CLUSTER_RACE),
    Planted("no arrival before reading", "exchange", [(_ARRIVE, "\n"), (_WAIT, f"{_WAIT} // !! barrier misuse"),
            (_READ, f"{_READ} // !! race")], "waits without having arrived"),
    Planted("a barrier of each block alone", "exchange", [(_ARRIVE, "\n"), (_WAIT, "__syncthreads();"), (_READ, f"{_READ} // !! race")],
            _CLUSTER_RACE),
    Planted("arrives twice", "exchange", [(_ARRIVE, f"{_ARRIVE[:-1]} __cluster_barrier_arrive(); // !! barrier misuse\n")],
            "arrives a second time without waiting for the first"),
    Planted("a relaxed arrival publishes nothing", "exchange", [(_ARRIVE, f"{_RELAXED}\n"), (_READ, f"{_READ} // !! race")],
            _CLUSTER_RACE),
    Planted("no barrier at the end", "exchange", [(_END, ""), (_READ, f"{_READ} // !! block left early")], _EARLY),
    Planted("arrives at the end and leaves", "exchange", [(_END, "__cluster_barrier_arrive();"),
            (_READ, f"{_READ} // !! block left early")], _EARLY),
    Planted("one block does not wait at the end", "exchange", [(_END, "__cluster_barrier_arrive(); if (rank) __cluster_barrier_wait();"),
            (_READ, f"{_READ} // !! block left early")], "addresses the shared memory of block (0, 0, 0)"),
    Planted("half of the threads meet", "exchange", [(_END, "if (t < 32) { meet(); } // !! divergent barrier"),
            (_READ, f"{_READ} // !! block left early")], _EARLY),
    Planted("one block meets", "exchange", [(_END, "if (rank == 0) { meet(); } // !! divergent barrier"),
            (_READ, f"{_READ} // !! block left early")], _EARLY),
    Planted("a warp waits at another barrier", "exchange",
            [(_END, "if (rank == 0 && t < 32) __syncthreads(); // !! endless wait\n    meet(); // !! endless wait")],
            "32 threads of the block wait for ever"),
    Planted("the next of the last block", "exchange", [(_NEXT, "int* next = at_rank(mine, rank + 1); // !! out of bounds"),
            (_READ, f"{_READ} // !! out of bounds")], "a cluster has 4 blocks, and none of rank 4"),
    Planted("beyond what the block has", "exchange", [(_READ, "out[i] = own + next[64 - t]; // !! out of bounds")],
            "4 bytes at byte 256 of shared mine (256 bytes), 4 beyond its end"),
    Planted("writes while the block before reads", "exchange", [(_READ, f"{_READ} mine[t] = 0; // !! race")], _CLUSTER_RACE),
    Planted("only the first block is awaited", "sums", [("meet(); // zero", "__syncthreads();"), (_ADD, f"{_ADD} // !! race")],
            "which thread (0, 0, 0) of block (0, 0, 0) wrote at line 8"),
    Planted("the sum is read too early", "sums", [("meet(); // full", "__syncthreads();"), (_ADD, f"{_ADD} // !! block left early"),
            ("out[i] = sum;", "out[i] = sum; // !! race")], _EARLY),
    Planted("a sum that is no atomic", "sums", [(_ADD, "*at_rank(&sum, r) += in[i]; // !! race")], _CLUSTER_RACE),
    Planted("the data is not published", "message", [(_PUBLISH, ""), ("[t] = in[i] + r;", "[t] = in[i] + r; // !! block left early"),
            ("out[i] = data[t];", "out[i] = data[t]; // !! race")], _EARLY),
    Planted("a flag that is set too early", "message", [("meet(); // zero", "__syncthreads();"), (_SET, f"{_SET} // !! race")],
            _CLUSTER_RACE),
    Planted("a block that gets no message", "message", [(f"r < 4; r++) {_SET}", f"r < 3; r++) {_SET}"),
            (_POLL, f"{_POLL} // !! endless wait")], "nothing that they read changes any more"),
    Planted("reads before the stores have arrived", "stores", [(_WAIT_FULL, "// wait"),
            ("// add", "// !! block left early"), ("+ added[t];", "+ added[t]; // !! race")], _CLUSTER_RACE),
    Planted("more bytes are expected than arrive", "stores", [("[%0], 768;\" :: \"r\"(bar) : \"memory\");",
            "[%0], 776;\" :: \"r\"(bar) : \"memory\"); // !! byte count"), ("// wait", "// !! endless wait")], "776 expected, 768 arrived"),
    Planted("stores before the next block has a barrier", "stores", [("meet(); // start", "__syncthreads();"),
            ("// store", "// !! race"), ("// add", "// !! race")], _CLUSTER_RACE),
    Planted("copies before the other blocks have barriers", "multicast", [(_START, "__syncthreads();"), ("// copy", "// !! race")],
            _CLUSTER_RACE),
    Planted("barriers that other blocks may not see", "multicast", [(_VISIBLE, ""), ("// copy", "// !! race, missing fence"),
            ("// wait", "// !! race")], _CLUSTER_RACE),
    Planted("a mask beyond the cluster", "multicast", [('"h"((short)15)', '"h"((short)31)'), ("// copy", "// !! out of bounds")],
            "the mask 0x1f names blocks beyond the 4 of the cluster"),
    Planted("a mask without the own block", "multicast", [('"h"((short)15)', '"h"((short)(15 & ~(1 << rank)))'),
            ("// expect", "// !! byte count"), ("// wait", "// !! endless wait")], "1,024 expected, 768 arrived"),
    Planted("leaves without waiting for the copies", "multicast", [("// copy", "// !! block left early"),
            (f"{_WAIT_COPY} // wait", ""), ("// sum", "// !! unwritten read")], _EARLY),
]  # fmt: skip
