"""One kernel a file."""
