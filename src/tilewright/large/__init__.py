"""Multiplies matrices that are too large for the memory of one processor or one machine. The operands of these products
are matrices in files, at URLs, in memory or on a Dask cluster; the result is a file or an array.
"""
