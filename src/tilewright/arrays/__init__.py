"""Products of arrays that lie on a GPU: whose they are, how they lie, which kernel is for them, and the call."""
