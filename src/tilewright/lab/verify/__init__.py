"""Verifies that a result is right."""
