"""Products of arrays on GPUs: a product is planned as a list of steps, and its launches are submitted to the caller's
stream."""
