"""Executes a plan: the executor, several GPUs, the journal and the result."""
