"""Products that do not fit where they are computed: cut into blocks, and the blocks moved while others are multiplied.

A schedule knows no kernel by name: it cuts, moves and counts, and a place (the CPU, a GPU) multiplies block by block.
"""
