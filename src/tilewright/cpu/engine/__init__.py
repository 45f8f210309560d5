"""The kernels that the library dispatches to by shape and dtype, and what they share."""
