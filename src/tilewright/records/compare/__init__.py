"""Statistics of samples, and verdicts on two sets of records."""
