"""What the engine's kernels have in common: how products are cut, jobs, tiles, edges, and triangles."""
