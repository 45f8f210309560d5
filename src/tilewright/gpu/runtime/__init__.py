"""One GPU: its memory, streams, events and launches, the compiler, and libraries of the vendor."""
