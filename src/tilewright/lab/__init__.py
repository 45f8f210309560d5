"""The laboratory: verifies, measures, tunes and explains kernels, and compares records."""
