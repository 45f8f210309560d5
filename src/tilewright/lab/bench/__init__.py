"""Times kernels in turns with references."""
