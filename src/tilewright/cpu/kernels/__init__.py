"""The engine's kernels for the CPU, one a file, which states its dtypes, the shapes that it ``suits`` and its ``order``."""
