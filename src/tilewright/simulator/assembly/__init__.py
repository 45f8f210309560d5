"""A kernel's assembly code, read from text: PTX, which the simulator runs, and SASS, which the GPU runs."""
