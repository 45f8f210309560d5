"""Searches for better block sizes and parameters of kernels."""
