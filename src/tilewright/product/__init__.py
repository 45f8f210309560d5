"""What a product is before anybody chooses how to compute it: arrays come in, checked operands, sizes and dtypes go out."""
