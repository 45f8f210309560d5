"""Measures the times of kernels, in alternation with the times of reference kernels and libraries."""
