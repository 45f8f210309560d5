"""Explains what a kernel does to memory and what limits it, from the kernel's code. A GPU is not needed."""
