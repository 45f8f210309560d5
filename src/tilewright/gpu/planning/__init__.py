"""The kernels that a GPU has for a dtype and a shape, the ways to launch them, and the predicted time of each."""
