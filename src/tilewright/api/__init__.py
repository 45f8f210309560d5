"""The public functions that multiply arrays of NumPy or of GPU libraries, and lists of arrays."""
