"""Constants that both machine code and Python use: the words of a shared call, the kernels for small products, a limit
on work."""

from __future__ import annotations

from ...kernels.catalog import engine

#: Multiply-adds of a batch up to which this thread computes it at once: two threads share one of more. A single product may
#: be shared earlier.
MOST_WORK_OF_BATCH = 16_000_000

#: The kernel for small products, that for a vector or a few, and one that is planned before it.
KERNEL, FOR_VECTORS, BEFORE_VECTORS = engine()["cpu/direct"], engine()["cpu/vector"], engine()["cpu/deep"]
#: Those that the short way of small products calls.
OF_SHORT_WAY = KERNEL, FOR_VECTORS

# Words of ``call`` behind those of ``cpu.codegen.mailbox``: elements of the workspace, counters, threads beside the caller;
# how many of them must be there, and how many of them the caller wakes if they sleep; how many did not get the call, and
# how many are not in machine code; where the counters begin, on cache lines of their own.
ELEMENTS, COUNTS, OTHERS, NEEDED, WAKES, NOT_CALLED, NOT_READY, COUNTERS = 43, 44, 45, 46, 47, 48, 49, 56
