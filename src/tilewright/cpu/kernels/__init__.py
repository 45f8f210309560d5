"""The engine's kernels for the CPU, one in each file. A kernel states its dtypes, the shapes that it ``suits``, and its
``order``."""
