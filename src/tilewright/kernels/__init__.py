"""The ladder: one kernel a file, to be read in order; and how a kernel declares itself (``declared``, ``header``)."""

from .declared import FLOATS, NUMERIC, Kernel, Sharing, kernel

__all__ = ["FLOATS", "NUMERIC", "Kernel", "Sharing", "kernel"]
