"""Describes a product before a kernel is chosen: it takes arrays, and gives checked operands, sizes and dtypes."""
