"""Runs one kernel on the CPU: it is compiled or found in a library, cached, and shared among threads."""
