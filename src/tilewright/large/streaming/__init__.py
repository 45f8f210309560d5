"""Products that do not fit where they are computed: cut into blocks, and the blocks moved while others are multiplied.

A plan names no kernel: it says how operands are cut and copied, and a place (the CPU, a GPU) multiplies block by block.
"""
