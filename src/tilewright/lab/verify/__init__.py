"""Whether a result is right."""
