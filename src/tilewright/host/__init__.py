"""This machine: its facts, its limits and quotas, and the user's cache."""
