"""Products larger than a memory: matrices in files, at URLs and on a cluster come in, and a file or array goes out."""
