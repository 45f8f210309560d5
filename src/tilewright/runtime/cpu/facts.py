"""What machine code and Python both know: Python's objects, the numbers that machine code reads, the kernels it calls."""

from __future__ import annotations

from ...catalog import engine

#: Multiply-adds of a batch up to which this thread computes it at once: two threads share one of more. A single product may
#: be shared earlier.
MOST_WORK_OF_BATCH = 16_000_000

#: The kernel for small products, that for a vector or a few, and one that is planned before it.
KERNEL, FOR_VECTORS, BEFORE_VECTORS = engine()["cpu/direct"], engine()["cpu/vector"], engine()["cpu/deep"]

# Bytes from the start of a Python object, and of an array: PyArrayObject_fields of NumPy's ndarraytypes.h.
TYPE, DATA, AXES, SHAPE, STRIDES, BASE, DTYPE, FLAGS = 8, 16, 24, 32, 40, 48, 56, 64
# A mask of flags and their required value. Operands: aligned. C: aligned and writeable, without a warning about writing.
ALIGNED, WRITEABLE = (0x100, 0x100), (0x80000500, 0x500)
# Offsets into ``facts``, in bytes. From DTYPES on, four words for each dtype: its address, its machine code, its itemsize,
# and whether the machine code multiplies vectors, too.
NDARRAY, NONE, CREATE, UNWRAP, MOST_WORK, DTYPES = 0, 8, 16, 24, 32, 40
WORDS_OF_DTYPE, MOST_DTYPES = 4, 12

# Words of ``call``: elements of the workspace, counters, threads beside the caller; how many of them must be there, and how
# many of them the caller wakes if they sleep; how many did not get the call, and how many are not in machine code; the
# address of C's dtype; where the counters begin.
ELEMENTS, COUNTS, OTHERS, LEAST, WAKES, MISSING, ABSENT, RESULT, COUNTERS = 43, 44, 45, 46, 47, 48, 49, 50, 56
