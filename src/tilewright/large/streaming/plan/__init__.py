"""Plans a product that does not fit in memory: how it is cut into blocks, in which order the blocks are copied, and how
long the product takes.
"""
