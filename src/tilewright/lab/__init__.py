"""The laboratory: measuring kernels, verifying them, comparing records."""
