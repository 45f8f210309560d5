"""This machine: facts, limits, quotas, and the user's cache."""
