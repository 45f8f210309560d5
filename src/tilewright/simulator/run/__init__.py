"""Runs a kernel's PTX: arguments in, results and findings out."""
