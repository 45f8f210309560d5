"""The public functions on arrays of NumPy, of GPU libraries, and on lists of arrays."""
