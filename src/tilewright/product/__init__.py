"""Describes a product before a kernel is chosen: checks its operands, and determines its shape and its dtypes."""
