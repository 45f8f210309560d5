"""Times kernels in alternation with references."""
