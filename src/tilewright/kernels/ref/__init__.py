"""The libraries to beat, each behind the same three arguments as the ladder."""
