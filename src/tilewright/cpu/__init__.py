"""Products on the processor: a kernel, arrays and a number of threads come in, and machine code writes the product."""
