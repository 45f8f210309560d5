"""Multiplies matrices on a Dask cluster. Each worker computes whole tiles of C block by block, as one machine does.

Dask starts the tasks, moves data between workers, and repeats tasks whose results were lost. This package decides how
the product is cut, how much memory its blocks take, and in which order the products of blocks are added.
"""
