"""Products on the workers of a Dask cluster: each computes whole tiles of C with the streaming engine.

Dask starts the tasks, moves data and repeats what was lost. Everything about blocks, memory and bits is decided here.
"""
