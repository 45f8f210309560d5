"""The ladder: a sequence of kernels, one in each file, to be read in order. The modules ``declared`` and ``header``
explain how a kernel declares itself."""

from .declared import FLOATS, NUMERIC, Kernel, Sharing, kernel

__all__ = ["FLOATS", "NUMERIC", "Kernel", "Sharing", "kernel"]
