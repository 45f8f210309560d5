"""Computes what hardware counters would show: sectors, wavefronts, bank conflicts."""
