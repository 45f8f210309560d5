"""One kernel on the CPU: compiled, cached, shared among threads."""
