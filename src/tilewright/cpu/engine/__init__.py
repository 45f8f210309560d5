"""Functions that the engine's kernels share: they cut products into jobs and tiles, and handle edges and triangles."""
