"""Reads a kernel's assembly code from text. The code is PTX, which the simulator runs, or SASS, which the GPU runs."""
