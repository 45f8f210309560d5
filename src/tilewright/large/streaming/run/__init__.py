"""A plan carried out: executor, several GPUs, journal, results."""
