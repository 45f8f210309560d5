"""Products of arrays on a GPU: the library of each array, their layout in memory, the choice of a kernel, and the call."""
