"""Products that are larger than a memory. Operands are matrices in files, at URLs or on a Dask cluster; the result is a
file or an array.
"""
