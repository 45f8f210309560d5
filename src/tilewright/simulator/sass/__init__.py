"""MachineAccesses code of the GPU, matched with the PTX it comes from."""
