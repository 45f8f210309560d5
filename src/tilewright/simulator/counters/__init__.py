"""What hardware counters would read: sectors, wavefronts, bank conflicts."""
