"""Products of arrays on a GPU: the array's library, its layout in memory, the choice of a kernel, and the call."""
