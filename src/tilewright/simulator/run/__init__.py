"""Runs a kernel's PTX: takes the kernel's arguments, and returns its results and the findings."""
