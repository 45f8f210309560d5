"""How a product larger than a memory is cut, in which order, and what that costs."""
