"""The references: vendors' libraries, called with the same three arguments as the ladder's kernels."""
