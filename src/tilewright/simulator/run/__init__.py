"""Runs a kernel's PTX: it takes arguments, and returns results and findings."""
