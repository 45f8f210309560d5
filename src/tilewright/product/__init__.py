"""What a product is before a kernel is chosen: the checks of its operands, its shape and its dtypes."""
