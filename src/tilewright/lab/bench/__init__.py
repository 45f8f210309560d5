"""Times kernels beside references."""
