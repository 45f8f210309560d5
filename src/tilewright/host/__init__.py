"""The facts of this machine, its limits and quotas, and the user's cache on disk."""
