"""The kernels that a GPU has for a product: dtypes and a shape come in, ways to launch them with predicted times go out."""
