"""Where blocks are multiplied: the host, a GPU, and the memories around them."""
