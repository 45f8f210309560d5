"""Plans a product that is larger than a memory: how it is cut, in which order its blocks are moved, and how long that
takes.
"""
