"""The public calls on arrays. They take operands from NumPy, from a GPU's library or in lists, and return their
product."""
