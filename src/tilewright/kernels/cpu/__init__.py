"""The ladder on the CPU, in reading order. Each file improves on one other rung, its parent, and names that parent."""
