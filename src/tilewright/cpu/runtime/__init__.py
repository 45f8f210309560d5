"""Runs one kernel on the CPU: gets its machine code from a compiler or a library, caches it, and shares the work among
threads."""
