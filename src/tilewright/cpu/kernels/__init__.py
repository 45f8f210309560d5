"""The engine's kernels for the CPU, one in each file. Each kernel's file states the kernel's dtypes, the shapes that it
``suits``, and its ``order`` among the kernels."""
