"""Explains a kernel from its own code, with or without a GPU."""
