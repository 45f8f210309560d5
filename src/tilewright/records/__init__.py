"""Evidence as plain data: bench records, explanations, timelines."""
