"""Products that do not fit into the memory of the device that computes them. They are cut into blocks, which are copied
while other blocks are multiplied.

A plan says how operands are cut and copied. A place, which is the CPU or a GPU with its memory, then multiplies block by
block.
"""
