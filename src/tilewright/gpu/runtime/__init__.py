"""One GPU: memory, streams, events, launches, the compiler and the vendor's libraries."""
