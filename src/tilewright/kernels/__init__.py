"""The ladder: one kernel in each file, to be read in order. ``declared`` and ``header`` say how a kernel declares
itself."""

from .declared import FLOATS, NUMERIC, Kernel, Sharing, kernel

__all__ = ["FLOATS", "NUMERIC", "Kernel", "Sharing", "kernel"]
