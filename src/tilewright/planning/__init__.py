"""The one place that decides what runs: path, kernel, tiles, threads, precision."""
