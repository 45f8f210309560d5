"""Reads a kernel's assembly code from text: PTX, which the simulator runs, and SASS, which the GPU runs."""
