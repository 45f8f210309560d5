"""Computes products that do not fit into the memory of the device that computes them. The operands are cut into blocks,
and blocks are copied while other blocks are multiplied.

A plan says how operands are cut and copied. A place, which is the CPU or a GPU with its memory, multiplies block by
block as the plan says.
"""
