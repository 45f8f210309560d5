"""Products on the CPU: chooses the kernel and the number of threads, and runs machine code."""
