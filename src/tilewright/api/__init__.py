"""The public calls on arrays: operands come in, as NumPy, a GPU's library or a list has them, and their product goes out."""
